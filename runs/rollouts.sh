#!/bin/bash
# The paper's recipe of labels, M = 128 rollouts from every thought, on the embedded reasoner: reward models of the published head that
# learn from M = 128 and from M = 4 rollouts of the same problems, and from M = 4 of eight times as many; and the published training
# (--preset paper: batches of 2,048 trajectories, ten epochs, its learning rate) on M = 128.
# Usage: runs/rollouts.sh BIN REASONER OUT     (published results: OUT = runs/rollouts; about four minutes on one H200)
# PROBLEMS (10000) are labelled; STEPS (600) of training. Problems 2000 to 3000 of each split, three seeds.
# OUT gets the results.json of every run, labels.txt and training.txt (their logs), and SPLIT.txt (best of 64 and the weighted vote,
# paired with each other). runs/tables.py rollouts prints the table.
set -uo pipefail
bin=$1 reasoner=$2 out=$3 problems=${PROBLEMS:-10000} steps=${STEPS:-600}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
for split in test hard ood; do "$bin" corpus --split $split --offset 2000 --count 1000 --out "$work/$split.json" 2>/dev/null; done
"$bin" corpus --split valid --count 3000 --out "$work/valid.json" 2>/dev/null
"$bin" corpus --split train --seed 13 --count $((8 * problems)) --out "$work/train.json" 2>/dev/null
label() { # NAME DATA flags...
    local from=$SECONDS
    "$bin" annotate --preset paper --model "$reasoner" --data "$work/$2.json" --max-new-tokens 12 --dropout-p 0.1 --thoughts-dtype bf16 --memory 12GiB \
        --out "$work/$1" -q "${@:3}" 2>&1 | head -1 | sed "s/^/$1: /"
    echo "$1: $((SECONDS - from)) s"
}
{
    label m128 train --limit "$problems" &
    label m4 train --limit "$problems" --rollouts 4 &
    label m4-eightfold train --rollouts 4 &
    label valid valid --labels final &
    wait
} | tee "$out/labels.txt"
learn() { # NAME ANNOTATIONS flags...
    local name=$1
    "$bin" train reward --model "$reasoner" --annotations "$work/$2" --held-out "$work/valid" --out "$work/rm-$name" --preset paper \
        --save-dtype bf16 "${@:3}" 2>&1 | grep -E "after|error|problems" | sed "s/^/$name: /"
    for split in test hard ood; do
        "$bin" eval --model "$reasoner" --reward-model "$work/rm-$name" --data "$work/$split.json" --out "$work/$name-$split" --max-new-tokens 12 \
            --samples 64 --seeds 3 --dropout-p 0.1 --memory 8GiB --aggregate majority,weighted,best_of -q --json >/dev/null 2>"$work/$name-$split.txt" ||
            echo "$name $split: $(tail -1 "$work/$name-$split.txt")"
        cp "$work/$name-$split/results.json" "$out/$name-$split.json"
    done
}
# Rates and steps as for the ablation (embedded_ablation.sh), whose model is this small one; then the published ones.
rates=(--steps "$steps" --batch 128 --lr 5e-4 --warmup 100 --min-lr-ratio 0.02 --dropout 0.1)
# Ten epochs of the problems that are kept, 256 at a time.
kept=$(sed -n 's/^m128: \([0-9,]*\) of .*/\1/p' "$out/labels.txt" | tr -d ,)
{
    learn m128 m128 "${rates[@]}" &
    learn m4 m4 "${rates[@]}" &
    learn m4-eightfold m4-eightfold "${rates[@]}" &
    learn published m128 --steps $((10 * kept / 256 + 1)) --warmup 0 --min-lr-ratio 1 &
    wait
} | tee "$out/training.txt"
for split in test hard ood; do
    for rule in best_of weighted; do
        python3 "$(dirname "$0")/fresh.py" --between $rule m128="$work/m128-$split" m4="$work/m4-$split" \
            m4-eightfold="$work/m4-eightfold-$split" published="$work/published-$split"
    done >"$out/$split.txt" &
done
wait
