#!/bin/bash
# Thinking in vectors against thinking in words and answering at once, models of one shape: accuracy, votes, coverage, decoding steps, FLOPs, seconds.
# Usage: runs/baselines.sh BIN COT NO_COT OUT [PROBLEMS] [N]   (COT and NO_COT: what runs/train_embedded.sh wrote; the reasoner is the embedded one)
set -euo pipefail
bin=$1 cot=$2 nocot=$3 out=$4 problems=${5:-200} n=${6:-16}
for split in test hard ood; do
    data=(--data "embedded:$split" --limit "$problems" --samples "$n" --aggregate majority --no-report -q --overwrite)
    "$bin" eval --reward-model none "${data[@]}" --out "$out/latent-$split" >/dev/null
    "$bin" eval --model "$cot" "${data[@]}" --sampler tokens --temperature 0.7 --out "$out/cot-$split" >/dev/null
    "$bin" eval --model "$nocot" "${data[@]}" --sampler tokens --temperature 0.7 --out "$out/no-cot-$split" >/dev/null
done
python3 - "$out" "$n" <<'PY'
import json, sys
out, n = sys.argv[1], int(sys.argv[2])
print(f"| model, split | greedy | majority@{n} | coverage@{n} | decoding steps | GFLOP a question | seconds |\n|---|---|---|---|---|---|---|")
for model in ("no-cot", "latent", "cot"):
    for split in ("test", "hard", "ood"):
        d = json.load(open(f"{out}/{model}-{split}/results.json"))
        of = {(m["name"], m["k"]): m for m in d["metrics"]}
        show = lambda m: f'{100*m["value"]:.1f} ({100*m["low"]:.1f}-{100*m["high"]:.1f})'
        c = d["cost"]
        print(f'| {model}, {split} | {show(of["greedy", 1])} | {show(of["majority", n])} | {show(of["coverage", n])} | {c["steps"]:.0f} | {c["flops"]/1e9:.1f} | {c["seconds"]["total"]:.1f} |')
PY
