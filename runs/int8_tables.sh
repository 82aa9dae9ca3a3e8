#!/usr/bin/env bash
# What int8 costs in accuracy: the embedded models on three splits of 1,000 problems, every rule, in f32 and in int8 on the processor.
# Usage: runs/int8_tables.sh BIN OUT [COUNT]; about half an hour on two cores. OUT/*.json are the results.json of every run.
set -euo pipefail
bin=$1 out=$2 count=${3:-1000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
for split in test hard ood; do
    "$bin" corpus --split $split --count "$count" --out "$work/$split.json" 2>/dev/null
    for dtype in f32 int8; do
        "$bin" eval --device cpu --dtype $dtype --data "$work/$split.json" --out "$work/$dtype-$split" --max-new-tokens 12 --samples 64 -q --json >/dev/null
        cp "$work/$dtype-$split/results.json" "$out/$dtype-$split.json"
        echo "$dtype $split done after $SECONDS s"
    done
done
