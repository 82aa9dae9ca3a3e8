#!/usr/bin/env bash
# Choosing the right trajectory with SmolLM2-135M: a probe on the reasoner's hidden states is trained on problems whose sources
# were held back from it, the combination of all signals is learned on gsm_valid, and both are measured on test sets that nothing
# was chosen on. On one H200 under four minutes.
# Usage: runs/selection.sh BINARY BASE.gguf DATA OUT     (DATA holds gsm8k_train.jsonl, extra_train.jsonl, gsm_valid.json,
#                                                         gsm_test.json, gsm_hard.json, multiarith.json)
#   PARTS   latent (default), written (the chain of thought with dropout), or both
#   TESTS   the test sets [gsm_test multiarith gsm_hard]
#   LIMIT   problems of each test set [all]
# What is kept is small: OUT/NAME.json (results.json of every run), OUT/NAME-calibration.json (the learned weights),
# OUT/NAME-ablation.json (each signal alone, all but each, all), OUT/NAME-probe.json and OUT/seconds.txt.
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file} data=${3:?give the data directory} out=${4:?give an output directory}
here=$(dirname "$0")
models=$here/../models
samples=${SAMPLES:-64} tests=${TESTS:-gsm_test multiarith gsm_hard}
work=${WORK:-$(mktemp -d)}
mkdir -p "$out" "$work"
limit=(${LIMIT:+--limit "$LIMIT"})

# Variants of problems that no reasoner was trained on, as runs/smollm2_data.sh makes them for the reward model.
without=$data/gsm_valid.json,$data/gsm_test.json,$data/gsm_hard.json,$data/multiarith.json
grep -v '"source": *"mawps"' "$data/extra_train.jsonl" | awk 'NR % 12 == 0' >"$work/extra.source"
grep '"source": *"mawps"' "$data/extra_train.jsonl" | awk 'NR % 12 == 0' >"$work/mawps.source"
awk 'NR % 12 == 0' "$data/gsm8k_train.jsonl" >"$work/gsm.source"
part() { # NAME COUNT flags...
  "$binary" augment "$work/$1.source" --count "$2" --decontaminate "$without" --seed 1 --quiet --out "$work/$1.jsonl" "${@:3}" >/dev/null
}
part gsm 8 --keep-original &
part extra 3 &
part mawps 4 &
wait
cat "$work"/{gsm,extra,mawps}.jsonl >"$work/all.jsonl"
shuf -n "${PROBLEMS:-2500}" --random-source="$work/all.jsonl" "$work/all.jsonl" >"$work/held_back.jsonl"

timed() { # NAME command...
  local start=$SECONDS
  "${@:2}" || { echo "$1 failed: $(tail -1 "$work/$1.log")" && return 1; }
  echo "$1: $((SECONDS - start)) s" | tee -a "$out/seconds.txt"
}
learn() { # NAME KIND MODEL flags...
  "$binary" train probe --model "$models/$3" --base "$base" --data "$work/held_back.jsonl" --too-long skip --samples 16 --kind "$2" \
    --steps "${STEPS:-1500}" --memory 16GiB --quiet --json --overwrite --out "$work/probe-$1" "${@:4}" >"$out/$1-probe.json" 2>"$work/$1-probe.log"
}
measure() { # NAME MODEL REWARD_MODEL PROBE TEST flags...
  "$binary" eval --model "$models/$2" --base "$base" --reward-model "$3" --probe "$work/probe-$4" --data "$data/$5.json" --too-long skip \
    --samples "$samples" --check-steps --overwrite --out "$work/$1" --memory 16GiB --no-report --quiet --json "${@:6}" \
    >/dev/null 2>"$work/$1.log"
  cp "$work/$1/results.json" "$out/$1.json"
}
combine() { # NAME TESTS...
  for test in "${@:2}"; do
    "$binary" calibrate "$work/$1-gsm_valid" --measure "$work/$1-$test" --quiet --json --out "$out/$1-calibration.json" \
      >"$out/$1-$test-ablation.json" 2>"$work/$1-combine.log"
  done
}
latent() {
  local how=(--dropout-p 0.3 --k 1,4,16,64 --aggregate majority,weighted,best_of,likelihood,combined,probe,best_probe,arithmetic)
  timed latent-probe learn latent encoder smollm2-135m --dropout-p 0.3 --seed 11
  timed linear-probe learn linear linear smollm2-135m --dropout-p 0.3 --seed 11
  timed latent-gsm_valid measure latent-gsm_valid smollm2-135m "$models/smollm2-135m-reward" latent gsm_valid "${how[@]}"
  timed linear-gsm_valid measure linear-gsm_valid smollm2-135m none linear gsm_valid --dropout-p 0.3 --k 1,4,16,64 --aggregate majority,probe,best_probe
  for test in $tests; do
    timed "latent-$test" measure "latent-$test" smollm2-135m "$models/smollm2-135m-reward" latent "$test" "${how[@]}" "${limit[@]}"
  done
  timed latent-combine combine latent $tests
}
written() {
  local how=(--sampler dropout --dropout-p "${WRITTEN_P:-0.1}" --scope all --k 1,4,16,64 --aggregate majority,likelihood,probe,best_probe,arithmetic)
  timed written-probe learn written encoder smollm2-135m-cot --sampler dropout --dropout-p "${WRITTEN_P:-0.1}" --scope all --seed 11
  timed written-gsm_valid measure written-gsm_valid smollm2-135m-cot none written gsm_valid "${how[@]}"
  for test in ${tests%% *}; do
    timed "written-$test" measure "written-$test" smollm2-135m-cot none written "$test" "${how[@]}" "${limit[@]}"
  done
  timed written-combine combine written ${tests%% *}
}
rm -f "$out/seconds.txt"
for part in ${PARTS:-latent}; do "$part"; done
