#!/usr/bin/env bash
# What only a GPU can show, in parts that are chosen one by one. Each step of a part has its own limit, and each part its own file
# OUT/PART.txt beside the files of the scripts that it runs; one that fails or runs out of time does not stop the others.
# OUT/summary.txt has a line for each step.
# Usage: OUT=DIR BINARY=latent-tts ... runs/gpu_all.sh PART...
#
#   part       seconds  needs
#   tests          150  TESTS: what `cargo test --no-run` built, of tensor (unit tests) and engine (properties)
#   check          100  CHECK: target/release/examples/cuda_check
#   sanitizer      240  CHECK, compute-sanitizer
#   engine          60  BINARY
#   train          560  BINARY, PYTHON (with torch); SHAPES="gpt2" for one of three shapes: gpt2 130, smollm2 130, llama-1b 300
#   peers          240  BINARY, PYTHON; SHAPES likewise: 60
#   shapes         110  BINARY, PYTHON
#   scaling        120  BINARY
#   serve          120  BINARY, LOAD, CHECKPOINT (the examples load and random_checkpoint), TOKENIZER (a folder)
#
# The seconds are estimates; a machine that has not run our kernels before compiles them first, 10 s. ROUNDS (5; serve 3) are those of
# train, peers and serve, LIMIT is handed on to the scripts that have it.
set -uo pipefail
parts=("$@") out=${OUT:?say where the output goes} here=$(dirname "$0")
[[ ${#parts[@]} -gt 0 ]] || { sed -n '2,22s/^# \{0,1\}//p' "$0" && exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
export OUT=$out
if [[ -n ${BINARY:-} ]]; then BINARY=$(realpath "$BINARY") && export BINARY; fi # scripts change the folder
failed=0

step() { # PART SECONDS COMMAND...
  local part=$1 limit=$2 from=$SECONDS status
  { echo "\$ ${*:3}"; timeout "$limit" "${@:3}"; } >>"$out/$part.txt" 2>&1 && status=ok || { status="failed with $?" && failed=1; }
  echo "$part: ${*:3:5} $status after $((SECONDS - from)) s" | tee -a "$out/summary.txt"
}

needs() { # VARIABLE...
  local name
  for name in "$@"; do
    [[ -n ${!name:-} ]] || { echo "$part: needs $name" | tee -a "$out/summary.txt" && failed=1 && return 1; }
  done
}

# Other tests' GPU parts are in the same binaries; those that need no GPU have run elsewhere.
tests() {
  local test
  for test in $TESTS; do
    case $test in
      *properties*)
        step tests 75 "$test" gpu:: --nocapture --skip deterministic
        step tests 75 "$test" gpu::deterministic --nocapture ;;
      *) step tests 40 "$test" ops:: --nocapture ;;
    esac
  done
}

check() {
  local check=$CHECK
  step check 40 "$check" --check
  step check 30 "$check" --time
  step check 30 "$check" --training
}

engine() {
  local binary=$BINARY
  for _ in 1 2; do
    step engine 15 "$binary" bench --device cuda --questions 64 --samples 64 --repeat 10 --json
  done
  step engine 15 "$binary" bench --device cuda --deterministic --questions 64 --samples 64 --repeat 10 --json
  step engine 15 "$binary" bench --device cuda --questions 1 --samples 32 --reward --repeat 10 --json
  step engine 30 "$binary" bench --device cuda --shape gpt2 --annotate --questions 512 --samples 8 --rollouts 4 --json
}

for part in "${parts[@]}"; do
  case $part in
    tests) needs TESTS && tests ;;
    check) needs CHECK && check ;;
    sanitizer) needs CHECK && step sanitizer 420 "$here/gpu_sanitizer.sh" "$CHECK" ;;
    engine) needs BINARY && engine ;;
    train) needs BINARY PYTHON && step train 590 "$here/gpu_train.sh" "$BINARY" "$PYTHON" "${ROUNDS:-5}" ;;
    peers) needs BINARY PYTHON && step peers 420 "$here/gpu_peers.sh" "$BINARY" "$PYTHON" "${ROUNDS:-5}" ;;
    shapes) needs BINARY PYTHON && step shapes 150 "$here/gpu_shapes.sh" "$BINARY" "$PYTHON" 1 ;;
    scaling) needs BINARY && step scaling 240 "$here/scaling.sh" cuda ;;
    serve)
      needs BINARY LOAD CHECKPOINT TOKENIZER &&
        step serve 240 "$here/serve_gpu.sh" "$BINARY" "$LOAD" "$CHECKPOINT" "$TOKENIZER" "${ROUNDS:-3}" ;;
    *) echo "$part: no such part" | tee -a "$out/summary.txt" && failed=1 ;;
  esac
done
exit $failed
