#!/usr/bin/env bash
# The embedded models on held-out problems (2000 to 4000 of each split), three seeds. All settings are chosen on `valid`. Every gain
# is also compared with the reward model's reference reasoner alone.
# Usage: runs/fresh.sh BINARY OUT [PART...]     (published results: OUT = runs/fresh with LABELLED=160000 STEPS=2000, about six
# minutes on one H200)
#   tables    the embedded reward model, and its reference reasoner sampled without a reward model, its p chosen on valid
#   judges    two reward models without a stronger reference reasoner: one for the reasoner with the reasoner itself as
#             reference, one for the reference reasoner with that reasoner itself as reference
#   compare   OUT/SPLIT.txt: every rule of the runs above, paired with greedy and with the reference reasoner (runs/fresh.py)
#   sweep     strengths of both samplers on valid and on every split: OUT/sweep-*.json, and OUT/findings.txt (runs/findings.py)
#   beams     beam search and best of N at every square N
#   lengths   4 to 6 thoughts, drawn at random: best of 4, 8 and 16 by the mean process reward (a table of the paper)
#   geometry  drift and dimensions of sampled thoughts: OUT/geometry.txt (runs/geometry.py)
# PROBLEMS, SAMPLES, SEEDS, LABELLED and STEPS make it smaller. Only results.json of every run and the texts are kept.
set -euo pipefail
binary=${1:?give a latent-tts built with CUDA} out=${2:?say where the results go}
shift 2
parts=${*:-tables judges compare sweep beams lengths geometry}
here=$(cd "$(dirname "$0")" && pwd)
problems=${PROBLEMS:-2000} samples=${SAMPLES:-64} seeds=${SEEDS:-3} labelled=${LABELLED:-320000} steps=${STEPS:-3500}
splits=(test hard ood)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# The models of assets/ as directories of their own, each with the tokenizer that they share.
model() { # FOLDER NAME
    mkdir -p "$work/$2"
    cp -r "$here/../assets/$1/." "$work/$2/"
    cp "$here"/../assets/tokenizer*.json "$work/$2/"
}
model reasoner reasoner
model reward reward
model reward/reference reward/reference
model reward/reference reference
for split in "${splits[@]}"; do
    "$binary" corpus --split "$split" --offset 2000 --count "$problems" --out "$work/$split.json"
done
"$binary" corpus --split valid --count "$((problems / 2))" --out "$work/valid.json"

measure() { # NAME SPLIT MODEL REWARD_MODEL flags...
    local name=$1-$2
    "$binary" eval --model "$work/$3" --reward-model "$4" --data "$work/$2.json" --out "$work/$name" --samples "$samples" --seeds "$seeds" \
        --max-new-tokens 12 --memory 8GiB --no-report -q --json "${@:5}" >/dev/null 2>"$work/$name.log" ||
        { echo "$name: $(tail -1 "$work/$name.log")" && return 1; }
    cp "$work/$name/results.json" "$out/$name.json"
}

# The strength of a sweep's best point.
best() { python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); print(next(p["strength"] for p in s["points"] if p["run"] == s["best"]))' "$1"; }

reference_p() { # the reference reasoner's best p for the vote, on valid
    if [[ ! -e $out/reference-valid.json ]]; then
        "$binary" sweep --model "$work/reference" --reward-model none --data "$work/valid.json" --samples "$samples" --dropout-p 0.02,0.05,0.1,0.2 \
            --metric majority --max-new-tokens 12 --no-report -q --out "$work/reference-valid" >/dev/null
        cp "$work/reference-valid/sweep.json" "$out/reference-valid.json"
    fi
    best "$out/reference-valid.json"
}

tables() {
    local p split job jobs=()
    p=$(reference_p)
    for split in "${splits[@]}"; do
        measure judged "$split" reasoner "$work/reward" --dropout-p 0.1 & jobs+=($!)
        measure reference "$split" reference none --dropout-p "$p" & jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
}

# A judge of a reasoner that thinks with that reasoner: labels of its own samples, then training.
judge() { # REASONER P
    "$binary" annotate --model "$work/$1" --data "$work/train.json" --labels final --trajectories 8 --max-new-tokens 12 --dropout-p "$2" \
        --thoughts-dtype bf16 --memory 10GiB --out "$work/labels-$1" -q
    "$binary" annotate --model "$work/$1" --data "$work/valid.json" --labels final --trajectories 8 --max-new-tokens 12 --dropout-p "$2" \
        --thoughts-dtype bf16 --memory 10GiB --out "$work/labels-$1-valid" -q
    "$binary" train reward --model "$work/$1" --init "$work/$1" --reference reasoner --reads-answers --objective pairwise --digit-loss-weight 0.9 \
        --annotations "$work/labels-$1" --held-out "$work/labels-$1-valid" --out "$work/judge-$1" --steps "$steps" --batch 128 --lr 5e-4 \
        --warmup 100 --min-lr-ratio 0.02 --dropout 0.1 --keep last --save-dtype bf16 2>&1 | sed "s/^/$1: /"
}

judges() {
    local p split job jobs=()
    p=$(reference_p)
    "$binary" corpus --split train --seed 41 --count "$labelled" --out "$work/train.json"
    judge reasoner 0.1 >"$out/training-reasoner.txt" & jobs+=($!)
    judge reference "$p" >"$out/training-reference.txt" & jobs+=($!)
    for job in "${jobs[@]}"; do wait "$job"; done
    jobs=()
    for split in "${splits[@]}"; do
        measure self-judged "$split" reasoner "$work/judge-reasoner" --dropout-p 0.1 & jobs+=($!)
        measure reference-judged "$split" reference "$work/judge-reference" --dropout-p "$p" & jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
}

# With the samples of this call: after `tables`, and with what `judges` made.
compare() {
    local split name job runs jobs=()
    for split in "${splits[@]}"; do
        runs=()
        for name in judged self-judged reference-judged reference; do
            if [[ -e $work/$name-$split ]]; then runs+=("$name=$work/$name-$split"); fi
        done
        python3 "$here/fresh.py" "${runs[@]}" >"$out/$split.txt" & jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
}

sweep() {
    local split job jobs=()
    for split in valid "${splits[@]}"; do
        "$binary" sweep --model "$work/reasoner" --reward-model none --data "$work/$split.json" --limit "$((problems / 2))" --samples "$samples" \
            --dropout-p 0.02,0.1,0.2,0.3,0.4,0.6 --noise-std 0.1,0.3,0.5,0.7,1,2 --max-new-tokens 12 --memory 8GiB --no-report -q \
            --out "$work/sweep-$split" >"$out/sweep-$split.txt" & jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
    for split in valid "${splits[@]}"; do cp "$work/sweep-$split/sweep.json" "$out/sweep-$split.json"; done
    python3 "$here/findings.py" "$work/sweep-test" >"$out/findings.txt"
}

beams() {
    local n job jobs=()
    for n in 4 9 16 25 36 49 64; do
        samples=$n measure "beam$n" test reasoner "$work/reward" --dropout-p 0.1 --aggregate majority,best_of,beam & jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
}

lengths() {
    local split job jobs=()
    for split in "${splits[@]}"; do
        samples=16 measure lengths "$split" reasoner "$work/reward" --dropout-p 0.1 --thoughts 4-6 --aggregate majority,best_of,best_of_mean \
            --k 1,4,8,16 & jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job"; done
}

geometry() {
    local name
    for name in "p 0.1" "p 0.4" "sigma 0.5" "sigma 1"; do
        "$binary" eval --model "$work/reasoner" --reward-model none --data "$work/test.json" --limit 200 --samples "$samples" "--${name% *}" "${name#* }" \
            --aggregate majority --latents --max-new-tokens 12 --no-report -q --json --out "$work/geometry-${name/ /-}" >/dev/null
    done
    python3 "$here/geometry.py" "$work"/geometry-* >"$out/geometry.txt"
}

for part in $parts; do
    from=$SECONDS
    "$part"
    echo "$part: $((SECONDS - from)) s"
done
