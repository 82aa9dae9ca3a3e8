#!/usr/bin/env bash
# A step of training at GPT-2's shape (256 sequences, prompt 72, 6 thoughts, 16 target tokens): this engine and PyTorch on
# the same work, interleaved, on an otherwise idle GPU. PyTorch's lines are three works in two precisions each; see its file.
# Usage: runs/gpu_train.sh BINARY PYTHON [ROUNDS]     (PYTHON has torch; each round runs every program once)
set -euo pipefail
binary=${1:?give a latent-tts} python=${2:?give a python that has torch} rounds=${3:-3}
peer=$(dirname "$0")/pytorch_train_peer.py
ours() { printf '%-16s' "$1 ours:" && "$binary" bench --device cuda --train "$@" --repeat 10 --json; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for round in $(seq "$rounds"); do
  echo "round $round"
  ours reasoner
  ours reward
  echo "pytorch:"
  "$python" "$peer" --device cuda --repeat 10
done
