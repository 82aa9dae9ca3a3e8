#!/usr/bin/env bash
# Do two builds sample the same trajectories on a CPU? Compares texts, answers, thoughts, rewards and log-probabilities to the
# bit: the embedded models with a beam search, a run that is killed and resumed, every golden checkpoint with dropout and with
# noise. Then times `eval` with both, in turns.
# Usage: runs/same_trajectories.sh OLD NEW [GOLDENS] > runs/same_trajectories.txt
#   OLD, NEW: programs; GOLDENS: the reference dumps (../shared/goldens). By variable: LIMIT (100) questions of the embedded
#   test set, ROUNDS (3) of the timing (0 leaves it out), THREADS (2), WORK (a temporary directory that is removed).
set -euo pipefail
cd "$(dirname "$0")/.."
old=$(realpath "${1:?give the old program}") new=$(realpath "${2:?give the new program}")
goldens=${3:-../shared/goldens}
limit=${LIMIT:-100} rounds=${ROUNDS:-3} threads=${THREADS:-2}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
failed=0

# Trajectories in the names of either format, and the tensors of the thoughts without their header.
canonical() { # RUN
  python3 - "$1" <<'PYTHON'
import hashlib, json, pathlib, struct, sys
run = pathlib.Path(sys.argv[1])
names = {"k": "index", "thoughts": "latent_steps", "scores": "process_rewards", "verdict": "outcome_reward"}
def renamed(value):
    if isinstance(value, dict):
        return {names.get(key, key): renamed(item) for key, item in sorted(value.items())}
    return [renamed(item) for item in value] if isinstance(value, list) else value
for line in open(run / "samples.jsonl"):
    sample = {key: value for key, value in json.loads(line).items() if key != "digest"}
    print(json.dumps(renamed(sample), sort_keys=True))
latents = run / "latents.safetensors"
if latents.exists():
    data = latents.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    for name in sorted(set(header) - {"__metadata__"}):
        start, end = header[name]["data_offsets"]
        body = data[8 + size + start:8 + size + end]
        print(name, header[name]["shape"], hashlib.sha256(body).hexdigest())
PYTHON
}

# Samples with both programs and compares.
compare() { # NAME flags...
  local name=$1 which
  shift
  for which in old new; do
    "${!which}" eval --device cpu --threads "$threads" --quiet --out "$work/$name-$which" "$@" >/dev/null
    canonical "$work/$name-$which" >"$work/$name-$which.txt"
  done
  report "$name" "$work/$name-old.txt" "$work/$name-new.txt"
}

report() { # NAME OLD NEW
  if cmp -s "$2" "$3"; then
    printf '%-40s identical  %6d lines  %s\n' "$1" "$(wc -l <"$2")" "$(sha256sum <"$2" | cut -c1-16)"
  else
    printf '%-40s DIFFERS    %s\n' "$1" "$(diff "$2" "$3" | sed -n 2p | cut -c1-200)"
    failed=1
  fi
}

echo "old: $("$old" --version), new: $("$new" --version)"
echo "$(date -u +%F), $(lscpu | sed -n 's/^Model name: *//p'), $threads threads"
compare embedded --limit "$limit" --samples 64 --latents
compare embedded-beam --limit "$((limit / 5))" --samples 16 --aggregate majority,beam --beam-width 3 --beam-candidates 5
compare embedded-seeds --limit "$((limit / 5))" --samples 16 --seeds 2 --sigma 0.3 --latents
# The new program is killed once it has some records, and resumed.
flags=(eval --device cpu --threads "$threads" --quiet --limit "$limit" --samples 64 --latents --out "$work/resumed")
"$new" "${flags[@]}" >/dev/null 2>&1 &
process=$!
records() { if [ -f "$work/resumed/samples.jsonl" ]; then wc -l <"$work/resumed/samples.jsonl"; else echo 0; fi; }
until [ "$(records)" -gt 3 ]; do sleep 0.2; done
kill -INT "$process"
wait "$process" || true
echo "killed after $(records) of $limit questions"
"$new" "${flags[@]}" --resume >/dev/null
canonical "$work/resumed" >"$work/resumed.txt"
report resumed "$work/embedded-old.txt" "$work/resumed.txt"
cat >"$work/questions.jsonl" <<'JSON'
{"question": "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?", "answer": "7"}
{"question": "2 + 2?", "answer": "4"}
{"question": "A train leaves at 5 and arrives at 9. How long is the trip?", "answer": "4"}
JSON
for folder in "$goldens"/*/; do
  name=$(basename "$folder")
  # Families that the old program does not know have no trajectories of it.
  "$old" inspect "$folder/checkpoint" >/dev/null 2>&1 || { echo "$name: not a model of the old program"; continue; }
  rewards=()
  [ -d "$folder/latent-rm" ] && rewards=(--reward-model "$folder/latent-rm")
  for sampler in "--p 0.3 --sites both" "--p 0.3 --scope all --sites mlp" "--sigma 0.5"; do
    read -ra strength <<<"$sampler"
    compare "$name ${sampler//--/}" --model "$folder/checkpoint" "${rewards[@]}" --data "$work/questions.jsonl" --samples 8 \
      --latents "${strength[@]}"
  done
done
for ((round = 1; round <= rounds; round++)); do
  for which in old new; do
    start=$(date +%s.%N)
    "${!which}" eval --device cpu --threads "$threads" --quiet --limit "$limit" --samples 64 --out "$work/time-$which" --overwrite \
      >/dev/null
    printf 'round %d %s %6.2f s\n' "$round" "$which" "$(echo "$(date +%s.%N) - $start" | bc)"
  done
done
exit "$failed"
