#!/usr/bin/env bash
# Soft Thinking on a plain language model beside greedy, temperature and dropout sampling, at equal
# tokens: 512 thoughts and 256 answer tokens against 768 tokens of a written chain.
# Usage: runs/soft_thinking.sh MODEL DATA OUT [LIMIT] [SAMPLES]
#   MODEL   a directory, a GGUF file or an id of a Llama or Qwen that follows instructions
#   DATA    problems with answers, such as gsm_valid.json
set -euo pipefail

model=$1 data=$2 out=$3 limit=${4:-200} samples=${5:-16}
mkdir -p "$out"
shared=(--model "$model" --data "$data" --limit "$limit" --samples "$samples" --greedy
  --reward-model none --resume)

latent-tts eval "${shared[@]}" --method cot --max-new-tokens 768 \
  --sampler tokens --temperature 0.7 --top-p 0.95 --out "$out/temperature"
latent-tts eval "${shared[@]}" --method cot --max-new-tokens 768 \
  --sampler dropout --dropout-p 0.02 --scope generated --out "$out/dropout"
latent-tts eval "${shared[@]}" --method soft-thinking --sampler gumbel --out "$out/gumbel"
latent-tts eval "${shared[@]}" --method soft-thinking --sampler multiplex --multiplex-width 3 \
  --out "$out/multiplex"
latent-tts eval "${shared[@]}" --method soft-thinking --sampler gumbel --cold-stop-entropy 0 \
  --out "$out/no-cold-stop"
latent-tts report "$out/temperature" "$out/dropout" "$out/gumbel" "$out/multiplex" \
  "$out/no-cold-stop" --out "$out/report"
