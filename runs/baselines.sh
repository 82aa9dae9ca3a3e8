#!/bin/bash
# No-CoT, latent and CoT models of one shape, greedy and with N trajectories (the paper's table of explicit and latent reasoning):
# accuracy, coverage, votes, best of N, decoding steps, FLOPs.
# Usage: runs/baselines.sh BIN COT NO_COT OUT     (COT and NO_COT: models of runs/train_embedded.sh; the latent reasoner is the
# embedded one; published results: OUT = runs/baselines; about a minute on one H200)
# Held-out problems from 2000 on of each split. PROBLEMS (1000), N (16) and SEEDS (3) make it smaller.
# OUT/MODEL-SPLIT.json is the results.json of each run; runs/tables.py baselines prints the table.
set -euo pipefail
bin=$1 cot=$2 nocot=$3 out=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
measure() { # NAME SPLIT flags...
    "$bin" eval --data "$work/$2.json" --samples "${N:-16}" --seeds "${SEEDS:-3}" --max-new-tokens 128 --memory 8GiB --no-report -q --json \
        --out "$work/$1-$2" "${@:3}" >/dev/null
    cp "$work/$1-$2/results.json" "$out/$1-$2.json"
}
jobs=()
for split in test hard ood; do
    "$bin" corpus --split "$split" --offset 2000 --count "${PROBLEMS:-1000}" --out "$work/$split.json"
    measure latent "$split" --aggregate majority,weighted,best_of & jobs+=($!)
    measure cot "$split" --model "$cot" --reward-model none --sampler tokens --temperature 0.7 --aggregate majority & jobs+=($!)
    measure no-cot "$split" --model "$nocot" --reward-model none --sampler tokens --temperature 0.7 --aggregate majority & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
