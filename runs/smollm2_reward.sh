#!/usr/bin/env bash
# Reward models for the SmolLM2 reasoner from problems whose sources were held back from it: two that read answers (with and
# without the reasoner's unperturbed thoughts as reference trace), and the paper's ablation with the published head. About
# five minutes on one H200.
# Usage: runs/smollm2_reward.sh BINARY BASE.gguf REASONER DATA OUT     (writes OUT/NAME for each, and the labels beside them)
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} reasoner=${3:?give the reasoner} data=${4:?give the data directory}
out=${5:?give an output directory}
mkdir -p "$out"
cat "$data"/judge_*.jsonl >"$out/problems.jsonl"
shuf -n "${ROLLED:-2500}" --random-source="$out/problems.jsonl" "$out/problems.jsonl" >"$out/rolled.jsonl"
label() { # NAME PROBLEMS flags...
  "$binary" annotate --model "$reasoner" --base "$base" --data "$out/$2.jsonl" --too-long skip --thoughts-dtype bf16 --memory 16GiB \
    --quiet --out "$out/labels-$1" "${@:3}" >/dev/null
}
label weak problems --labels final --samples 8 --dropout-p 0.2 --seed 3 &
label strong problems --labels final --samples 8 --dropout-p 0.3 --seed 4 &
label rolled rolled --samples 4 --rollouts 4 --dropout-p 0.2 --seed 5 &
label rolled-final rolled --labels final --samples 4 --dropout-p 0.2 --seed 5 &
wait
learn() { # NAME STEPS flags...
  "$binary" train reward --model "$reasoner" --base "$base" --lora 8 --lora-alpha 8 --adapter over --digit-loss-weight 0 --batch ${BATCH:-48} --lr 1e-3 \
    --warmup 40 --dropout 0.05 --min-lr-ratio 0.02 --save-dtype bf16 --quiet --out "$out/$1" --steps "$2" "${@:3}" >/dev/null
}
both=(--annotations "$out/labels-weak" --annotations "$out/labels-strong")
learn answers "${STEPS:-700}" "${both[@]}" --reads-answers --objective pairwise &
learn reference "${STEPS:-700}" "${both[@]}" --reads-answers --objective pairwise --reference reasoner &
learn contrastive "${HEAD_STEPS:-250}" --annotations "$out/labels-rolled" --head linear &
learn bce "${HEAD_STEPS:-250}" --annotations "$out/labels-rolled" --head linear --objective bce &
learn final "${HEAD_STEPS:-250}" --annotations "$out/labels-rolled-final" --head linear &
"$binary" train reward --model "$reasoner" --base "$base" --lora 8 --adapter over --digit-loss-weight 0 --head linear --objective untrained \
  --save-dtype bf16 --quiet --out "$out/untrained" >/dev/null &
wait
