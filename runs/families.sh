#!/usr/bin/env bash
# Small models like Latent-SFT and Render-of-Thought, two families of the paper whose weights are not available: trained on the built-in
# corpus from a model that writes its steps, then greedy, coverage and majority at N = 1 to 16 with dropout and with noise.
# Usage: runs/families.sh BINARY OUT [PART...]     (published results: OUT = runs/families)
#   cot, latent-sft, rot   the trainings; the others start from the first; interrupted ones are resumed
#   strengths              p and sigma of each model, by the largest coverage@16 on valid: OUT/NAME-SAMPLER-valid.json
#   measure                OUT/NAME-SAMPLER-SPLIT.json: held-out problems from 2000 on of test, hard and ood
# By variable: SIZE (embedded: the embedded models' shape, for one H200, two to three minutes a model; tiny: for two cores, a model of
# a fifth of a million parameters on the problems of at most two steps and numbers below 100), MODELS (where the models are kept; a temporary
# directory), PROBLEMS (of a split; of tiny those among which the easy ones are taken), SEEDS, LIMIT (seconds after which a training stops, to
# go on with the next call).
# What is kept below OUT is small: results.json of every run, the sweeps and the evaluations of the trainings.
# runs/tables.py families prints the table.
set -euo pipefail
binary=${1:?give a latent-tts} out=${2:?say where the results go}
shift 2
parts=${*:-cot latent-sft rot strengths measure}
size=${SIZE:-embedded}
case $size in
embedded)
    splits=(test hard ood)
    problems=${PROBLEMS:-1000} seeds=${SEEDS:-3}
    common=(--batch 512 --keep last --held-out-count 1000 --save-dtype bf16)
    cot=(--steps 3300 --lr 1.5e-3 --warmup 300)
    latent_sft=(--steps 4500 --lr 1e-3 --warmup 200 --min-lr-ratio 0.02 --dropout 0.1 --compression 2 --thoughts 64)
    rot=(--steps 4500 --lr 1e-3 --warmup 200 --min-lr-ratio 0.02 --dropout 0.1 --compression 3 --thoughts 32 --latent-head 512)
    ;;
tiny)
    splits=(test)
    problems=${PROBLEMS:-6000} seeds=${SEEDS:-1}
    common=(--batch 32 --keep last --held-out-count 100 --save-every 50)
    cot=(--width 64 --layers 3 --heads 4 --context 192 --steps 800 --lr 4e-3 --warmup 60 --dropout 0)
    latent_sft=(--steps 350 --lr 3e-3 --warmup 30 --min-lr-ratio 0.02 --compression 2 --thoughts 24)
    rot=(--steps 350 --lr 3e-3 --warmup 30 --min-lr-ratio 0.02 --compression 2 --thoughts 16 --latent-head 64)
    ;;
*) echo "SIZE is embedded or tiny, not $size" >&2 && exit 2 ;;
esac
p=0.02,0.05,0.1,0.2,0.3
sigma=0.01,0.03,0.1,0.2,0.4
if [[ -z ${MODELS:-} ]]; then
    MODELS=$(mktemp -d)
    trap 'rm -rf "$MODELS"' EXIT
fi
mkdir -p "$out" "$MODELS"

# Problems of a split; of tiny the easy ones among them.
data() { # SPLIT OFFSET COUNT
    if [[ -e $MODELS/$1.json ]]; then return; fi
    "$binary" corpus --split "$1" --offset "$2" --count "$3" --out "$MODELS/$1.json"
    if [[ $size == tiny ]]; then
        python3 - "$MODELS/$1.json" <<'PY'
import json, re, sys
problems = json.load(open(sys.argv[1]))
numbers = lambda problem: [int(n) for step in problem["steps"] for n in re.findall(r"\d+", step)]
json.dump([p for p in problems if len(p["steps"]) <= 2 and max(numbers(p)) < 100], open(sys.argv[1], "w"))
PY
    fi
}

train() { # NAME flags...
    local dir=$MODELS/$1 more=()
    if [[ -e $dir/training/state.safetensors ]]; then more=(--resume); fi
    if [[ $size == tiny ]]; then
        data train 0 400000
        data valid 0 "$problems"
        more+=(--data "$MODELS/train.json" --held-out "$MODELS/valid.json")
    fi
    timeout -s INT "${LIMIT:-0}" "$binary" train reasoner --out "$dir" "${common[@]}" "${@:2}" "${more[@]}"
    cp "$dir/training/evals.jsonl" "$out/training-$1.jsonl"
}

# The sweep of one sampler on valid.
strength() { # NAME SAMPLER FLAG VALUES
    local name=$1-$2-valid
    if [[ -e $out/$name.json ]]; then return; fi
    rm -rf "$MODELS/$name"
    "$binary" sweep --model "$MODELS/$1" --reward-model none --data "$MODELS/valid.json" --samples 16 --k 1,4,16 "$3" "$4" \
        --metric coverage --no-report -q --out "$MODELS/$name" >/dev/null
    cp "$MODELS/$name/sweep.json" "$out/$name.json"
}

best() { python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); print(next(p["strength"] for p in s["points"] if p["run"] == s["best"]))' "$1"; }

run() { # NAME SAMPLER FLAG
    local split name value
    value=$(best "$out/$1-$2-valid.json")
    for split in "${splits[@]}"; do
        name=$1-$2-$split
        "$binary" eval --model "$MODELS/$1" --reward-model none --data "$MODELS/$split.json" --samples 16 --seeds "$seeds" --sampler "$2" \
            "$3" "$value" --aggregate majority --no-report -q --json --overwrite --out "$MODELS/$name" >/dev/null
        cp "$MODELS/$name/results.json" "$out/$name.json"
    done
}

for part in $parts; do
    from=$SECONDS
    case $part in
    cot) train cot --mode cot "${cot[@]}" ;;
    latent-sft) train latent-sft --method latent-sft --ordered --init "$MODELS/cot" "${latent_sft[@]}" ;;
    rot) train rot --method rot --ordered --init "$MODELS/cot" "${rot[@]}" ;;
    strengths)
        data valid 0 "$problems"
        for name in latent-sft rot; do
            strength "$name" dropout --dropout-p "$p"
            strength "$name" noise --noise-std "$sigma"
        done
        ;;
    measure)
        for split in "${splits[@]}"; do data "$split" 2000 "$problems"; done
        for name in latent-sft rot; do
            run "$name" dropout --dropout-p
            run "$name" noise --noise-std
        done
        ;;
    *) echo "no part $part" >&2 && exit 2 ;;
    esac
    echo "$part: $((SECONDS - from)) s"
done
