#!/usr/bin/env bash
# Every CUDA kernel under compute-sanitizer: races in shared memory (racecheck), piece by piece, as it is slow, and accesses out of
# bounds (memcheck). Small shapes, on deterministic devices, where our own kernels run at any size; NVIDIA's are left out.
# Usage: OUT=DIR runs/gpu_sanitizer.sh CUDA_CHECK     (about 4 minutes; compute-sanitizer on the path or named by SANITIZER)
# By variable: LIMIT (90) the seconds of a piece, PIECES the pieces.
# Output: OUT/sanitizer_TOOL_PIECE.txt as printed; here a line for each piece, then one for each kernel: the pieces that launched it
# under racecheck and under memcheck, and the lines of both tools' reports that name it.
set -uo pipefail
check=${1:?give the example cuda_check} out=${OUT:?say where the output goes} limit=${LIMIT:-90}
sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
command -v "$sanitizer" >/dev/null || { echo "no compute-sanitizer: it comes with the CUDA toolkit; SANITIZER names it"; exit 1; }
read -ra pieces <<<"${PIECES:-linear norm residual masks noise rope_and_cache attention rows greedy_tokens mixture training fp8 step}"
mkdir -p "$out"
failed=0

# The arguments of a piece: a check, the checks of fp8, or the parts of a training step.
arguments() {
  case $1 in
    step) echo --training --small ;;
    fp8) echo --fp8 --small ;;
    *) echo --check --small --only "$1" ;;
  esac
}

piece() { # TOOL PIECE FLAGS...
  local tool=$1 name=$2 from=$SECONDS status=0 file given
  file=$out/sanitizer_${tool}_$name.txt
  read -ra given <<<"$(arguments "$name")"
  timeout "$limit" "$sanitizer" --tool "$tool" ${exclude[@]+"${exclude[@]}"} "${@:3}" --error-exitcode 9 "$check" "${given[@]}" \
    >"$file" 2>&1 || status=$?
  [[ $status == 0 ]] || failed=1
  [[ $status != 124 ]] || status="124 (out of time)"
  printf '%-10s %-15s exit %s after %3s s, %s comparisons ok, %s missed; %s\n' "$tool" "$name" "$status" "$((SECONDS - from))" \
    "$(grep -c '^ok ' "$file")" "$(grep -c '^MISS' "$file")" "$(grep -h 'SUMMARY' "$file" | tail -1 | sed 's/^=* *//')"
}

launched() { # TOOL KERNEL: the pieces of a tool that launched a kernel
  local file found=()
  for file in "$out"/sanitizer_"$1"_*.txt; do
    grep -q "^kernels:.* $2\( \|$\)" "$file" && file=${file##*_"$1"_} && found+=("${file%.txt}")
  done
  echo "${found[*]:-none}"
}

rm -f "$out"/sanitizer_*.txt
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
# Without the sanitizer: kernels are compiled and cached, and comparisons hold at these shapes.
timeout 60 "$check" --check --small >"$out/sanitizer_none_check.txt" 2>&1 || failed=1
timeout 60 "$check" --training --small >"$out/sanitizer_none_step.txt" 2>&1 || failed=1
timeout 60 "$check" --fp8 --small >"$out/sanitizer_none_fp8.txt" 2>&1 || failed=1
# A sanitizer that does not know how to leave kernels out checks NVIDIA's, too.
exclude=(--kernel-regex-exclude kns=cublas --kernel-regex-exclude kns=cutlass --kernel-regex-exclude kns=nvjet)
timeout "$limit" "$sanitizer" "${exclude[@]}" "$check" --check --small --only noise 2>&1 | grep -q '^kernels:' || exclude=()
for name in "${pieces[@]}"; do piece racecheck "$name" --racecheck-report all; done
for name in "${pieces[@]}"; do piece memcheck "$name"; done
echo
read -ra kernels <<<"$(grep -h '^kernels:' "$out"/sanitizer_none_*.txt | cut -d: -f2 | tr ' ' '\n' | sort -u | tr '\n' ' ')"
for kernel in ${kernels[@]+"${kernels[@]}"}; do
  named=$(grep -h '^=========' "$out"/sanitizer_racecheck_*.txt "$out"/sanitizer_memcheck_*.txt | grep -c "\b$kernel\b")
  printf '%-24s racecheck: %-28s memcheck: %-28s %s lines of reports name it\n' \
    "$kernel" "$(launched racecheck "$kernel")" "$(launched memcheck "$kernel")" "$named"
  [[ $(launched racecheck "$kernel") != none && $named == 0 ]] || failed=1
done
exit $failed
