#!/usr/bin/env bash
# The shapes of Llama 3.2 1B and of Qwen3-VL 2B's text tower, bf16, 64 questions x 64 samples and 1 x 32: this engine, with its
# share of the measured product peak, and PyTorch with the same algorithm (prefixes shared, and copied where that is faster).
# PyTorch's share is its "flops" / "best_s" / our "peak_flops".
# Usage: runs/gpu_shapes.sh BINARY PYTHON [ROUNDS]     (PYTHON has torch)
set -euo pipefail
binary=${1:?give a latent-tts} python=${2:?give a python that has torch} rounds=${3:-1}
peer=$(dirname "$0")/pytorch_peer.py
ours() { printf '%-26s' "$1 ours:" && "$binary" bench --device cuda --json --repeat 3 "${@:2}"; }
pytorch() { echo "$1 pytorch:" && "$python" "$peer" --device cuda --json --repeat 3 --shape "$1" --points "${@:2}"; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for round in $(seq "$rounds"); do
  echo "round $round"
  for shape in llama-1b qwen3-2b; do
    ours "$shape 64x64" --shape "$shape" --questions 64 --samples 64
    ours "$shape 1x32" --shape "$shape" --questions 1 --samples 32
    pytorch "$shape" 64x64 1x32 1x32:copied
  done
done
