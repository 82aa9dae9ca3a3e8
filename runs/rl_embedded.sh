#!/usr/bin/env bash
# Reinforcement learning of the embedded reasoner with three seeds, and greedy, majority and coverage before and after on fresh problems,
# paired by question. On one H200 under 3 minutes. Usage: runs/rl_embedded.sh BINARY OUT
#
#   SEEDS (1 2 3), STEPS (200), BATCH (128), SAMPLES (32), LR (1e-5)    of the training; FLAGS has further ones of train rl
#   QUESTIONS (1000), N (64)                                          of the evaluation
#   DEVICE (--device cuda)                                            flags of the device
#
# OUT/summary.txt has the tables, OUT/seed-K the models with their logs (training/log.jsonl), OUT/eval the samples.
set -euo pipefail
bin=$(realpath "$1") out=$2 here=$(cd "$(dirname "$0")" && pwd)
steps=${STEPS:-200} batch=${BATCH:-128} samples=${SAMPLES:-32} lr=${LR:-1e-5} questions=${QUESTIONS:-1000} n=${N:-64}
read -ra seeds <<<"${SEEDS:-1 2 3}"
read -ra device <<<"${DEVICE:---device cuda}"
read -ra more <<<"${FLAGS:-}"
mkdir -p "$out/eval"
cd "$out"

# Neither the training's problems (split train) nor those that chose the model (split valid).
"$bin" corpus --split test --seed 9001 --count "$questions" --out fresh.json >/dev/null

evaluate() { # NAME MODEL
  "$bin" eval --model "$2" --data fresh.json --samples "$n" --greedy --reward-model none --out "eval/$1" --overwrite --quiet \
    "${device[@]}" >/dev/null
}

from=$SECONDS
evaluate before embedded
echo "evaluation: $((SECONDS - from)) s" | tee times.txt
for seed in "${seeds[@]}"; do
  from=$SECONDS
  "$bin" train rl --model embedded --out "seed-$seed" --overwrite --seed "$seed" --steps "$steps" --batch "$batch" --samples "$samples" \
    --lr "$lr" --min-lr-ratio 0.01 --pass-trajectories 4096 --eval-every $((steps / 4)) --held-out-count 500 "${device[@]}" "${more[@]}" 2>&1 | tee "seed-$seed.txt" | grep -E "^after|error" || true
  echo "training with seed $seed: $((SECONDS - from)) s" | tee -a times.txt
  evaluate "seed-$seed" "seed-$seed"
done
python3 "$here/rl_embedded.py" eval/before "${seeds[@]/#/eval/seed-}" | tee tables.txt
{ echo "train rl --steps $steps --batch $batch --samples $samples --lr $lr ${more[*]}, seeds ${seeds[*]}; $questions fresh problems, N = $n"
  "$bin" --version
  cat tables.txt times.txt; } >summary.txt
