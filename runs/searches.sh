#!/usr/bin/env bash
# Searches that rewards guide, beside the votes over samples: beam search, particle filtering and diverse verifier tree search with
# the embedded models, 64 samples and searches of their default size, on problems 2000 to 3000 of test and hard. The temperature of
# the particle filter is the default; problems 0 to 1000 of valid have others.
# Usage: runs/searches.sh BINARY [OUT]      (OUT: runs/searches; about three minutes a line on two Zen 5 cores)
# Prints the commands and writes OUT/SPLIT-METHOD.json, which `runs/tables.py searches` reads.
set -euo pipefail
binary=$(realpath "${1:?usage: runs/searches.sh BINARY [OUT]}")
cd "$(dirname "$0")/.."
out=${2:-runs/searches}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

evaluate() { # NAME FLAG...
  local name=$1
  shift
  local command=(eval --samples 64 --k 64 --no-report --device cpu "$@")
  echo "latent-tts ${command[*]}"
  "$binary" "${command[@]}" --quiet --out "$work/$name" >"$work/$name.txt"
  cp "$work/$name/results.json" "$out/$name.json"
}

for split in test hard; do
  for method in beam particles dvts; do
    evaluate "$split-$method" --data "embedded:$split:2000..3000" --aggregate "majority,weighted,best_of,$method"
  done
done
for temperature in 0.3 3; do
  evaluate "valid-particles-$temperature" --data embedded:valid:0..1000 --aggregate majority,particles \
    --search-temperature "$temperature"
done
