#!/usr/bin/env bash
# The GPU figures of BENCHMARKS.md: this engine and PyTorch on the same work, interleaved, on an otherwise idle GPU.
# Usage: runs/gpu_speed.sh BINARY PYTHON [ROUNDS] [DATA TOKENIZER]     (PYTHON has torch; each round runs every program once)
# DATA and TOKENIZER: a data set and GPT-2's tokenizer, for the run over real prompts.
set -euo pipefail
binary=${1:?give a latent-tts built with CUDA} python=${2:?give a python that has torch} rounds=${3:-3}
peer=$(dirname "$0")/pytorch_peer.py
line() { printf '%-25s' "$1:" && "${@:2}"; }
ours() { line "$1" "$binary" bench --device cuda --json "${@:2}"; }
pytorch() { line "$1" "$python" "$peer" --device cuda --json "${@:2}"; }
data=${4:-} tokenizer=${5:-}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for round in $(seq "$rounds"); do
  echo "round $round"
  ours "64x64 ours" --questions 64 --samples 64 --repeat 20
  pytorch "64x64 pytorch" --mode same --questions 64 --samples 64 --repeat 20
  pytorch "64x64 pytorch graph" --mode same --questions 64 --samples 64 --repeat 20 --graph
  ours "64x64 ours" --questions 64 --samples 64 --repeat 20
  pytorch "64x64 reference" --mode reference --questions 64 --samples 64 --repeat 3
  ours "1x32 ours" --questions 1 --samples 32 --repeat 10
  pytorch "1x32 pytorch" --mode same --questions 1 --samples 32 --repeat 10
  pytorch "1x32 pytorch copied" --mode same --questions 1 --samples 32 --repeat 10 --cache copied
  pytorch "1x32 pytorch graph" --mode same --questions 1 --samples 32 --repeat 10 --cache copied --graph
  ours "1x32 ours, rewards" --questions 1 --samples 32 --repeat 10 --reward
  ours "1x1 ours" --questions 1 --samples 1 --dropout-p 0 --repeat 10
  ours "1x64 ours" --questions 1 --samples 64 --repeat 10
  if [ -n "$data" ]; then ours "data set x64 ours" --data "$data" --tokenizer "$tokenizer" --samples 64 --repeat 5; fi
  ours "256x64 ours" --questions 256 --samples 64 --repeat 5
  ours "128x64 ours" --questions 128 --samples 64 --repeat 5
  ours "annotate" --annotate --questions 512 --samples 8 --rollouts 4
done
