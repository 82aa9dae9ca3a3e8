#!/usr/bin/env bash
# From nothing to a reward model on two cores: the commands of README, each with its seconds.
#   runs/from_nothing.sh BINARY FOLDER >runs/from_nothing.txt
set -euo pipefail
binary=$(realpath "$1")
mkdir -p "$2"
cd "$2"
timed() { # NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    "$@" >"$name.log" 2>&1
    printf '%-20s %5d s\n' "$name" "$((SECONDS - start))"
}
printf '%s; %s; %s\n' "$(date -I)" "$(nproc) processors, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)" "$("$binary" --version)"
timed cot "$binary" train reasoner --preset tiny --mode cot --out cot
timed reasoner "$binary" train reasoner --preset tiny --mode latent --init cot --out reasoner
timed annotations "$binary" annotate --model reasoner --data embedded:train:0..2000 --out labels
timed reward-model "$binary" train reward --model reasoner --annotations labels --steps 300 --out reward
timed evaluation "$binary" eval --model reasoner --reward-model reward --limit 100 --out run
cat evaluation.log
