#!/usr/bin/env bash
# Wall clock of latent thoughts and of written steps (SmolLM2-135M's two reasoners) at N = 1 and N = 32. They take turns on an
# otherwise idle machine; loading is not counted.
# Usage: runs/smollm2_wall_clock.sh BINARY BASE.gguf DATA [ROUNDS] >runs/smollm2_wall_clock.txt     (BASE: see models/README.md)
# By variable: LIMIT (12) the problems of DATA, SAMPLES ("1 32"), FLAGS more flags of eval.
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} data=${3:?give the problems} rounds=${4:-2}
here=$(cd "$(dirname "$0")/.." && pwd) limit=${LIMIT:-12}
read -ra counts <<<"${SAMPLES:-1 32}"
read -ra flags <<<"${FLAGS:-}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -m1 'model name' /proc/cpuinfo
for round in $(seq "$rounds"); do
  for n in "${counts[@]}"; do
    for name in smollm2-135m smollm2-135m-cot; do
      sampler=(--sampler dropout --dropout-p 0.2)
      [[ $name != *cot ]] || sampler=(--sampler tokens --temperature 0.7)
      "$binary" eval --model "$here/models/$name" --base "$base" --reward-model none --data "$data" --limit "$limit" --samples "$n" \
        --aggregate majority "${sampler[@]}" ${flags[@]+"${flags[@]}"} --no-report --quiet --json --overwrite --out "$work/run" >/dev/null
      python3 - "$work/run/results.json" "round $round, $name, N = $n" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
cost = d["cost"]
print(f'{sys.argv[2]}: {cost["seconds"]["total"]:.2f} s for {d["questions"]} problems, {cost["steps"]:.0f} decoding steps and {cost["flops"] / 1e9:.0f} GFLOP a problem')
PY
    done
  done
done
