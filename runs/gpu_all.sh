#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: tests, checks and times of single kernels, and the figures beside PyTorch's. Each
# part has its own limit and its own file below OUT; one that fails or runs out of time does not stop the others.
# Usage: OUT=DIR [ROUNDS=2] runs/gpu_all.sh BINARY PYTHON CUDA_CHECK [TEST_BINARY...]
#   CUDA_CHECK    target/release/examples/cuda_check
#   TEST_BINARY   what `cargo test --no-run` built, of tensor (unit tests) and engine (properties)
set -uo pipefail
binary=${1:?give a latent-tts} python=${2:?give a python that has torch} check=${3:?give the example cuda_check} tests=("${@:4}")
out=${OUT:?say where the output goes} here=$(dirname "$0")
mkdir -p "$out"
failed=0
part() { # FILE SECONDS COMMAND...
  local file=$1 limit=$2 from=$SECONDS status
  { echo "\$ ${*:3}"; timeout "$limit" "${@:3}"; } >>"$out/$file" 2>&1 && status=ok || { status="failed with $?" && failed=1; }
  echo "$file: ${*:3:4} $status after $((SECONDS - from)) s" | tee -a "$out/summary.txt"
}
# Other tests' GPU parts are in the same binaries; those that need no GPU have run elsewhere.
for test in ${tests[@]+"${tests[@]}"}; do
  case $test in
    *properties*)
      part tests.txt 75 "$test" gpu:: --nocapture --skip deterministic
      part tests.txt 75 "$test" gpu::deterministic --nocapture ;;
    *) part tests.txt 40 "$test" ops:: --nocapture ;;
  esac
done
part check.txt 40 "$check" --check
part times.txt 30 "$check" --time
part times.txt 30 "$check" --training
for _ in 1 2; do
  part engine.txt 15 "$binary" bench --device cuda --questions 64 --samples 64 --repeat 10 --json
done
part engine.txt 15 "$binary" bench --device cuda --deterministic --questions 64 --samples 64 --repeat 10 --json
part engine.txt 15 "$binary" bench --device cuda --questions 1 --samples 32 --reward --repeat 10 --json
part engine.txt 30 "$binary" bench --device cuda --shape gpt2 --annotate --questions 512 --samples 8 --rollouts 4 --json
part train.txt 100 "$here/gpu_train.sh" "$binary" "$python" "${ROUNDS:-2}"
part shapes.txt 110 "$here/gpu_shapes.sh" "$binary" "$python" 1
exit $failed
