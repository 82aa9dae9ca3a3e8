#!/usr/bin/env bash
# A training step of every method at SmolLM2-135M's shape (256 sequences, prompt 72, 6 thoughts, 16 answer tokens): this
# engine and PyTorch on the same work, interleaved method by method, on an otherwise idle GPU. See the peer's file.
# Usage: runs/gpu_methods.sh BINARY PYTHON [ROUNDS]     (PYTHON has torch; each round runs everything once)
# METHODS="cot codi", TUNINGS="lora", LORA_DROPOUT=0.1 and PEER_ARGS="--frozen bfloat16" change what is run.
set -euo pipefail
binary=${1:?give a latent-tts} python=${2:?give a python that has torch} rounds=${3:-3}
read -ra methods <<<"${METHODS:-cot coconut codi simcot colar}"
read -ra tunings <<<"${TUNINGS:-full lora}"
read -ra peer_args <<<"${PEER_ARGS:-}"
peer=$(dirname "$0")/pytorch_methods_peer.py
sizes=(--batch 256 --prompt 72 --thoughts 6)
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for round in $(seq "$rounds"); do
  echo "round $round"
  for method in "${methods[@]}"; do
    for tuning in "${tunings[@]}"; do
      lora=() && [[ $tuning == lora ]] && lora=(--lora 128 --lora-dropout "${LORA_DROPOUT:-0}")
      own=$method && [[ $method == coconut ]] && own=reasoner
      printf '%-9s%-5s%-9s' "$method" "$tuning" ours:
      "$binary" bench --device cuda --train "$own" --shape smollm2 "${sizes[@]}" --target 16 --repeat 10 "${lora[@]}" --json
      printf '%-9s%-5s%-9s' "$method" "$tuning" pytorch:
      "$python" "$peer" --device cuda --work "$method" "${sizes[@]}" --answer 16 --repeat 10 "${lora[@]}" "${peer_args[@]}"
    done
  done
done
