#!/usr/bin/env bash
# The paper's experiment on SmolLM2-135M: strengths, reward model and rule are chosen on gsm_valid; then GSM8K test, GSM-Hard and
# MultiArith are run once with three seeds. On one H200 about five minutes.
# Usage: runs/smollm2_tables.sh BINARY BASE.gguf MODELS REWARDS DATA OUT [PART...]
#   MODELS   holds ordered (the latent reasoner), cot and no-cot, as runs/smollm2_train.sh writes them
#   REWARDS  is what runs/smollm2_reward.sh wrote
#   sweep    strengths of both samplers on valid, without a reward model: OUT/sweep-*.json
#   choose   both reward models that read answers on valid, and the choice: OUT/chosen.json
#   valid    on valid: baselines, ablated thoughts, one mask for a whole trajectory, temperature
#   tests    each test set with the chosen settings, dropout and noise; baselines; ablated thoughts
#   heads    the published head's ablation on GSM8K test
#   scaled   four chains of thought, sampled tokens, on each test set
#   strengths  both samplers at several strengths on each test set, 16 trajectories (whether one strength does for all; nothing is chosen
#            by it): OUT/strengths-*.json, and OUT/findings.txt (runs/findings.py)
#   geometry drift and dimensions of twelve thoughts on valid: OUT/geometry.txt (runs/geometry.py)
# The last three came later, and are run when named.
# What is kept is small: results.json of every run.
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} models=${3:?give the models} rewards=${4:?give the reward models}
data=${5:?give the data directory} out=${6:?say where the results go}
shift 6
parts=${*:-sweep choose valid tests heads}
samples=${SAMPLES:-64} seeds=${SEEDS:-3}
tests=(gsm_test gsm_hard multiarith)
rules=majority,likely,weighted,normalized,combined,best_of
work=${WORK:-$(mktemp -d)}
mkdir -p "$out" "$work"

measure() { # NAME MODEL REWARD_MODEL DATA flags...
  local start=$SECONDS
  "$binary" eval --model "$models/$2" --base "$base" --reward-model "$3" --data "$data/$4.json" --out "$work/$1" --memory 16GiB --no-report \
    --quiet --json "${@:5}" >/dev/null 2>"$work/$1.log" || { echo "$1: $(tail -1 "$work/$1.log")" && return 1; }
  cp "$work/$1/results.json" "$out/$1.json"
  echo "$1: $((SECONDS - start)) s, loading included"
  if [[ -e $work/$1/ablation.json ]]; then # without its questions
    python3 -c 'import json, sys; a = json.load(sys.stdin); a.pop("questions"); print(json.dumps(a, indent=1))' <"$work/$1/ablation.json" >"$out/$1-ablation.json"
  fi
}
chosen() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$out/chosen.json" "$1"; }

sweep() {
  strengths() { # NAME flag values
    "$binary" sweep --model "$models/ordered" --base "$base" --reward-model none --data "$data/gsm_valid.json" --samples "$samples" "$2" "$3" \
      --memory 16GiB --quiet --out "$work/sweep-$1" >/dev/null && cp "$work/sweep-$1/sweep.json" "$out/sweep-$1.json"
  }
  strengths dropout --dropout-p 0.05,0.1,0.15,0.2,0.3,0.4 &
  strengths noise --noise-std 0.02,0.04,0.06,0.08,0.1,0.15 &
  wait
}

choose() {
  for judge in answers reference; do
    for p in 0.2 0.3; do
      measure "valid-$judge-p$p" ordered "$rewards/$judge" gsm_valid --samples "$samples" --dropout-p "$p" --aggregate "$rules" &
    done
  done
  wait
  python3 - "$out" "$samples" <<'P'
import json, sys
out, samples = sys.argv[1], sys.argv[2]
value = lambda file, name, k: next(m["value"] for m in json.load(open(file))["metrics"] if m["name"] == name and m["k"] == k)
points = [(value(f"{out}/valid-{judge}-p{p}.json", rule, int(samples)), judge, p, rule)
          for judge in ("answers", "reference") for p in ("0.2", "0.3") for rule in ("weighted", "best_of")]
accuracy, judge, p, rule = max(points)
noise = json.load(open(f"{out}/sweep-noise.json"))
sigma = max(noise["points"], key=lambda point: point["majority"][samples]["value"])["strength"]
json.dump({"judge": judge, "p": p, "rule": rule, "valid": accuracy, "sigma": sigma}, open(f"{out}/chosen.json", "w"))
P
  cat "$out/chosen.json"
}

valid() {
  measure valid-cot cot none gsm_valid --samples 1 &
  measure valid-no-cot no-cot none gsm_valid --samples 1 &
  measure valid-ablated ordered none gsm_valid --samples 1 --ablate zero,mean,swap,freeze,shuffle &
  measure valid-mask ordered none gsm_valid --samples "$samples" --dropout-p "$(chosen p)" --mask trajectory &
  measure valid-tokens ordered none gsm_valid --samples "$samples" --sampler tokens &
  wait
}

tests() {
  local judged=(--samples "$samples" --seeds "$seeds" --dropout-p "$(chosen p)" --aggregate)
  measure gsm_test-dropout ordered "$rewards/$(chosen judge)" gsm_test "${judged[@]}" "$rules,beam" # alone, for its time
  for test in gsm_hard multiarith; do measure "$test-dropout" ordered "$rewards/$(chosen judge)" "$test" "${judged[@]}" "$rules" & done
  for test in "${tests[@]}"; do
    measure "$test-cot" cot none "$test" --samples 1 &
    measure "$test-no-cot" no-cot none "$test" --samples 1 &
    measure "$test-ablated" ordered none "$test" --samples 1 --ablate zero,mean,swap,freeze,shuffle &
  done
  wait
  for test in "${tests[@]}"; do
    measure "$test-noise" ordered none "$test" --samples "$samples" --seeds "$seeds" --noise-std "$(chosen sigma)" &
  done
  wait
}

heads() {
  for head in contrastive bce final untrained; do
    measure "gsm_test-$head" ordered "$rewards/$head" gsm_test --samples "$samples" --dropout-p "$(chosen p)" --aggregate majority,weighted,best_of &
  done
  wait
}

scaled() {
  for test in "${tests[@]}"; do
    measure "$test-cot-4" cot none "$test" --samples 4 --seeds "$seeds" --sampler tokens --temperature 0.7 --aggregate majority &
  done
  wait
}

strengths() {
  for test in "${tests[@]}"; do
    "$binary" sweep --model "$models/ordered" --base "$base" --reward-model none --data "$data/$test.json" --samples 16 --dropout-p 0.1,0.2,0.3,0.4 \
      --noise-std 0.04,0.08,0.1,0.15 --memory 16GiB --no-report --quiet --out "$work/strengths-$test" >/dev/null &&
      cp "$work/strengths-$test/sweep.json" "$out/strengths-$test.json" &
  done
  wait
  python3 "$(dirname "$0")/findings.py" --pair "$work/strengths-gsm_test" dropout-0.3 noise-0.1 >"$out/findings.txt"
}

geometry() {
  local of=(--model "$models/ordered" --base "$base" --reward-model none --data "$data/gsm_valid.json" --limit "${PROBLEMS:-200}" --samples "$samples" --thoughts 12)
  for strength in "p 0.3" "sigma 0.1"; do
    "$binary" eval "${of[@]}" "--${strength% *}" "${strength#* }" --aggregate majority --latents --memory 16GiB --no-report --quiet --json \
      --out "$work/geometry-${strength/ /-}" >/dev/null &
  done
  wait
  python3 "$(dirname "$0")/geometry.py" "$work"/geometry-* >"$out/geometry.txt"
  python3 "$(dirname "$0")/findings.py" --steps "$work"/geometry-* >>"$out/geometry.txt"
}

for part in $parts; do "$part"; done
