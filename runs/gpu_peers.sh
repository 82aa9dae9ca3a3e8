#!/usr/bin/env bash
# Inference, 1 question x 32 samples and 64 x 64, bf16: this engine and PyTorch with the same algorithm, eagerly, compiled
# (torch.compile), as one CUDA graph, and as one of the compiled operations, on an otherwise idle GPU. All take turns in rounds.
# Usage: OUT=DIR runs/gpu_peers.sh BINARY PYTHON [ROUNDS]     (PYTHON has torch; 5 rounds unless said otherwise)
# By variable: SHAPES, POINTS, RUNS, LIMIT (200: the seconds of a shape).
# Seconds: about 60 for a shape, at Llama's and Qwen's 120. Output: OUT/peers_SHAPE.jsonl, and here the best and the median of each.
set -uo pipefail
binary=${1:?give a latent-tts} python=${2:?give a python that has torch} rounds=${3:-5} out=${OUT:?say where the output goes}
here=$(dirname "$0") limit=${LIMIT:-200} failed=0
read -ra shapes <<<"${SHAPES:-gpt2 smollm2 llama-1b}"
# Prefixes copied to every row are faster with few rows, shared ones with many.
read -ra points <<<"${POINTS:-1x32:copied 64x64}"
read -ra runs <<<"${RUNS:-eager compile graph compile-graph}"
mkdir -p "$out"
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$(mktemp -d)}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for shape in "${shapes[@]}"; do
  file=$out/peers_$shape.jsonl
  timeout "$limit" "$python" "$here/pytorch_peer.py" --device cuda --shape "$shape" --points "${points[@]}" --run "${runs[@]}" \
    --rounds "$rounds" --repeat 10 --ours "$binary" --json >"$file" 2>"${file%.jsonl}.log" || failed=1
  "$python" "$here/gpu_rounds.py" "$file"
done
exit $failed
