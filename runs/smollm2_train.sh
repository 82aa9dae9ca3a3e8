#!/usr/bin/env bash
# SmolLM2-135M learns to write its steps and then to think in latents, with LoRA of rank 40 on one H200: about 8 minutes
# for chain of thought and 9 for COCONUT's thoughts. Data as runs/smollm2_data.sh makes it.
# Usage: runs/smollm2_train.sh BINARY BASE.gguf DATA VALID.json OUT     (writes OUT/cot and OUT/latent)
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} data=${3:?give the data directory}
valid=${4:?give gsm_valid.json} out=${5:?give an output directory}
mixture=(--data "$data/gsm.jsonl:42" --data "$data/gsm_original.jsonl:6" --data "$data/extra.jsonl:13"
  --data "$data/mawps.jsonl:7" --data "$data/short.jsonl:14" --data "$data/long.jsonl:16" --data corpus:2)
common=(--held-out "$valid" --batch 256 --lora 40 --lora-alpha 40 --weight-decay 0.01 --beta2 0.98 --floor 0.02
  --dropout 0.05 --keep last --save-dtype bf16)
"$binary" train reasoner --mode cot --init "$base" "${mixture[@]}" "${common[@]}" --steps "${COT_STEPS:-5265}" \
  --lr 3e-3 --warmup 120 --out "$out/cot"
"$binary" train reasoner --mode latent --init "$out/cot" "${mixture[@]}" "${common[@]}" --thoughts 6 \
  --steps "${LATENT_STEPS:-4950}" --lr 2e-3 --warmup 100 --rise 0.35 --digits 0.5 --out "$out/latent"
