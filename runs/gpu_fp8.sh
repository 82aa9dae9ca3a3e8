#!/usr/bin/env bash
# What fp8 has to show on an H200, in about three minutes: its checks and tests, times of its kernels, bf16 and fp8 in turn at GPT-2's
# and Llama 1B's shapes, the reference dumps (what it costs in accuracy: runs/dtype_tables.sh). Each part has its own limit and its own file
# below OUT; one that fails or runs out of time does not stop the others. Look at check.txt first: a line with MISS names the kernel
# and the first wrong row and column.
# Usage: OUT=DIR [ROUNDS=5] runs/gpu_fp8.sh BINARY CUDA_CHECK TENSOR_TESTS [GOLDENS...]
#   CUDA_CHECK     target/release/examples/cuda_check
#   TENSOR_TESTS   what `cargo test --no-run -p latent-tts-tensor --lib` built
#   GOLDENS        folders of reference dumps, as `verify` takes them
set -uo pipefail
binary=${1:?give a latent-tts} check=${2:?give the example cuda_check} tests=${3:?give the unit tests of tensor} goldens=("${@:4}")
out=${OUT:?say where the output goes} rounds=${ROUNDS:-5}
mkdir -p "$out"
failed=0
part() { # FILE SECONDS COMMAND...
  local file=$1 limit=$2 from=$SECONDS status
  { echo "\$ ${*:3}"; timeout "$limit" "${@:3}"; } >>"$out/$file" 2>&1 && status=ok || { status="failed with $?" && failed=1; }
  echo "$file: ${*:3:5} $status after $((SECONDS - from)) s" | tee -a "$out/summary.txt"
}
nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader >>"$out/summary.txt" 2>&1
part check.txt 60 "$check" --fp8
part tests.txt 45 "$tests" fp8 --nocapture --test-threads 1
for round in $(seq "$rounds"); do
  for dtype in bf16 fp8; do
    part gpt2.txt 15 "$binary" bench --device cuda --dtype $dtype --questions 64 --samples 64 --repeat 20 --json
  done
done
part gpt2.txt 15 "$binary" bench --device cuda --dtype fp8 --deterministic --questions 64 --samples 64 --repeat 10 --json
for dtype in bf16 fp8; do
  part few_rows.txt 15 "$binary" bench --device cuda --dtype $dtype --questions 1 --samples 32 --repeat 10 --json
done
for dump in ${goldens[@]+"${goldens[@]}"}; do
  part verify.txt 10 "$binary" verify "$dump" --device cuda --dtype fp8
done
for round in $(seq "$rounds"); do
  for dtype in bf16 fp8; do
    part llama.txt 25 "$binary" bench --device cuda --dtype $dtype --shape llama-1b --questions 64 --samples 64 --repeat 3 --json
  done
done
grep -c MISS "$out/check.txt" "$out/tests.txt" | sed 's/^/misses in /' | tee -a "$out/summary.txt"
exit $failed
