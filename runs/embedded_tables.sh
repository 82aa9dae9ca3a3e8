#!/bin/bash
# The tables of the embedded models: every rule by three seeds on three splits, with dropout and with noise.
# Usage: runs/embedded_tables.sh BIN REASONER REWARD OUT; on one H200 about a minute. OUT/*.json are the results.json of every run.
set -uo pipefail
bin=$1 reasoner=$2 reward=$3 out=$4
work=$(mktemp -d)
mkdir -p "$out"
for split in test hard ood; do "$bin" corpus --split $split --count 1000 --out "$work/$split.json" 2>/dev/null; done
measure() { # NAME SPLIT flags...
    local name=$1 split=$2
    shift 2
    "$bin" eval --model "$reasoner" --reward-model "$reward" --data "$work/$split.json" --out "$work/$name-$split" --max-new-tokens 12 \
        --seeds 3 --memory 8GiB -q --json "$@" >/dev/null 2>"$work/$name-$split.txt" || echo "$name $split: $(tail -1 "$work/$name-$split.txt")"
    cp "$work/$name-$split/results.json" "$out/$name-$split.json"
}
for split in test hard ood; do
    measure main $split --samples 64 --dropout-p 0.1 &
    measure noise $split --samples 64 --noise-std 0.5 --aggregate majority,weighted,normalized,best_of &
    for n in 4 16; do measure beam$n $split --samples $n --dropout-p 0.1 --aggregate majority,beam & done
    wait
done
rm -rf "$work"
