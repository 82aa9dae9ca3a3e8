#!/usr/bin/env bash
# A step of training, COCONUT (reasoner) and LatentRM (reward): this engine and PyTorch on the same work (prompt 72, 6 thoughts, 16
# target tokens; 256 sequences, at Llama's shape 64), on an otherwise idle GPU. PyTorch runs eagerly, compiled (torch.compile), with
# CUDA graphs of what is compiled (reduce-overhead) and as one CUDA graph of the compiled step; see its file. All take turns in
# rounds. Then the engine's step with recomputed activations, for its time and memory.
# Usage: OUT=DIR runs/gpu_train.sh BINARY PYTHON [ROUNDS]     (PYTHON has torch; 5 rounds unless said otherwise)
# By variable: SHAPES, WORKS, WAYS (PRECISION:RUN...), BATCH, LIMIT (240: the seconds of a shape and work).
# Seconds, mostly of compilation and of making weights: about 130 for a shape, at Llama's 300. Output: OUT/train_SHAPE_WORK.jsonl, and here the best
# and the median of each.
set -uo pipefail
binary=${1:?give a latent-tts} python=${2:?give a python that has torch} rounds=${3:-5} out=${OUT:?say where the output goes}
here=$(dirname "$0") limit=${LIMIT:-240} failed=0
read -ra shapes <<<"${SHAPES:-gpt2 smollm2 llama-1b}"
read -ra works <<<"${WORKS:-reasoner reward-shared}"
read -ra ways <<<"${WAYS:-autocast:eager master:eager master:compile master:reduce-overhead master:compile-graph}"
mkdir -p "$out"
# What one shape has compiled another need not compile again, as far as it is the same.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$(mktemp -d)}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for shape in "${shapes[@]}"; do
  batch=${BATCH:-256}
  [[ $shape != llama-1b ]] || batch=${BATCH:-64}
  for work in "${works[@]}"; do
    file=$out/train_${shape}_$work.jsonl
    timeout "$limit" "$python" "$here/pytorch_train_peer.py" --device cuda --shape "$shape" --work "$work" --batch "$batch" \
      --run "${ways[@]}" --rounds "$rounds" --repeat 10 --ours "$binary" >"$file" 2>"${file%.jsonl}.log" || failed=1
    "$python" "$here/gpu_rounds.py" "$file"
  done
  for target in reasoner reward; do
    for flags in "" --recompute; do
      read -ra given <<<"$flags"
      printf '%-10s %-9s %-12s' "$shape" "$target" "${flags:-kept}"
      timeout 60 "$binary" bench --device cuda --train "$target" --shape "$shape" --batch "$batch" --repeat 5 \
        ${given[@]+"${given[@]}"} --json || echo "failed with $?"
    done
  done >"$out/train_${shape}_recompute.txt" 2>&1
  grep -q failed "$out/train_${shape}_recompute.txt" && failed=1
  cat "$out/train_${shape}_recompute.txt"
done
exit $failed
