#!/usr/bin/env bash
# What a narrower number format costs in accuracy: the embedded models on 1,000 problems of three splits, every rule, in both formats.
# Usage: runs/dtype_tables.sh BIN OUT DEVICE WIDE NARROW
#   runs/dtype_tables.sh BIN runs/int8_tables cpu f32 int8      (about half an hour a seed on two cores)
#   runs/dtype_tables.sh BIN runs/fp8_tables cuda bf16 fp8      (on one H200 a minute)
#   FIRST=2000 COUNT=8000 SEEDS=1 SAMPLES=1 RULES=greedy runs/dtype_tables.sh BIN runs/fp8_greedy cuda bf16 fp8
# FIRST (0) and COUNT (1000) of the problems, SEEDS (3), SAMPLES (64), RULES (all five), and SIDE=1 to run all six side by side with
# THREADS each ("2 2": of the wide format and of the narrow one).
# OUT/FORMAT-SPLIT.json are the results.json of every run; OUT/SPLIT.txt has the narrow format less the wide one under every rule, paired
# by question (runs/fresh.py).
set -euo pipefail
bin=$1 out=$2 device=$3 formats=("$4" "$5")
first=${FIRST:-0} end=$((${FIRST:-0} + ${COUNT:-1000})) rules=${RULES:-greedy majority weighted best_of beam}
declare -A threads
read -r "threads[$4]" "threads[$5]" <<<"${THREADS:-2 2}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
measure() { # FORMAT SPLIT
    local options=()
    [[ $device != cpu ]] || options=(--threads "${threads[$1]}")
    [[ $rules != greedy ]] || options+=(--aggregate majority)
    "$bin" eval --device "$device" --dtype "$1" --data "embedded:$2:$first..$end" --out "$work/$1-$2" --max-new-tokens 12 --samples "${SAMPLES:-64}" \
        --seeds "${SEEDS:-3}" ${options[@]+"${options[@]}"} --no-report -q --json >/dev/null
    cp "$work/$1-$2/results.json" "$out/$1-$2.json"
    echo "$1 $2 done after $SECONDS s"
}
jobs=()
for split in test hard ood; do
    for format in "${formats[@]}"; do
        measure "$format" $split & jobs+=($!)
        [[ -n ${SIDE:-} ]] || wait "${jobs[-1]}"
    done
done
for job in "${jobs[@]}"; do wait "$job"; done
for split in test hard ood; do
    for rule in $rules; do
        python3 "$(dirname "$0")/fresh.py" --between $rule "$5=$work/$5-$split" "$4=$work/$4-$split"
    done >"$out/$split.txt"
done
