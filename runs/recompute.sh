#!/usr/bin/env bash
# Memory of a training step with kept and with recomputed activations, at small sizes on a processor. Each line is a process of its
# own, so that its memory is that line's.
# Usage: runs/recompute.sh BINARY >runs/recompute.txt
set -euo pipefail
binary=${1:?give a latent-tts}
grep -m1 'model name' /proc/cpuinfo
line() { # FLAGS...
  echo "\$ latent-tts bench --device cpu $*"
  "$binary" bench --device cpu "$@" --quiet
}
for flags in "" --recompute; do
  read -ra given <<<"$flags"
  line --train reasoner --shape embedded --batch 64 --repeat 1 ${given[@]+"${given[@]}"}
  line --train reward --shape embedded --batch 128 --repeat 1 ${given[@]+"${given[@]}"}
  line --train reasoner --shape smollm2 --batch 4 --prompt 40 --thoughts 2 --target 4 --repeat 1 ${given[@]+"${given[@]}"}
  line --train reward --shape smollm2 --batch 8 --prompt 40 --thoughts 2 --repeat 1 ${given[@]+"${given[@]}"}
done
