#!/usr/bin/env bash
# The CPU figures of BENCHMARKS.md: this engine and PyTorch on the same work, interleaved, on an otherwise idle machine.
# Usage: [ONLY=GLOB] [BINARY=latent-tts] runs/cpu_speed.sh PYTHON [ROUNDS]     (PYTHON has torch; each round runs every program once)
#   BINARY is what was built elsewhere, for a machine without Rust; the products alone are left out then.
#   ONLY="4x64*" leaves out the lines of other names. Those of 256-bit instructions need a processor that has others, "pytorch avx2" is
#   PyTorch with those alone, and "bf16 weights" need AMX.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?give a python that has torch} rounds=${2:-3}
ours=${BINARY:-target/release/latent-tts}
if [[ -z ${BINARY:-} ]]; then
  cargo build --release --quiet
  cargo build --release --quiet -p latent-tts-tensor --no-default-features --example cpu_gemm
fi
line() { # NAME COMMAND...
  # shellcheck disable=SC2053
  if [[ $1 == ${ONLY:-*} ]]; then printf '%-25s%s\n' "$1:" "$("${@:2}" 2>/dev/null)"; fi
}
grep -m1 'model name' /proc/cpuinfo
isas=("")
! grep -qm1 avx512f /proc/cpuinfo || isas+=(avx2)
[[ -n ${BINARY:-} ]] || for isa in "${isas[@]}"; do target/release/examples/cpu_gemm 256 $isa; done
for round in $(seq "$rounds"); do
  echo "round $round"
  line "4x64 ours" $ours bench --device cpu --questions 4 --samples 64 --repeat 3 --json
  line "4x64 ours int8" $ours bench --device cpu --dtype int8 --questions 4 --samples 64 --repeat 3 --json
  if grep -qm1 amx_bf16 /proc/cpuinfo; then
    line "4x64 ours bf16 weights" $ours bench --device cpu --weights bf16 --questions 4 --samples 64 --repeat 3 --json
  fi
  if [[ ${#isas[@]} -gt 1 ]]; then
    line "4x64 ours avx2" $ours bench --device cpu --isa avx2 --questions 4 --samples 64 --repeat 2 --json
    line "4x64 ours avx2 int8" $ours bench --device cpu --isa avx2 --dtype int8 --questions 4 --samples 64 --repeat 2 --json
  fi
  if [[ ${#isas[@]} -gt 1 ]]; then
    avx2=(env ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2)
    line "4x64 pytorch avx2" "${avx2[@]}" "$python" runs/pytorch_peer.py --mode same --questions 4 --samples 64 --repeat 2 --json
    line "4x64 pytorch avx2 packed" "${avx2[@]}" "$python" runs/pytorch_peer.py --mode same --questions 4 --samples 64 --repeat 2 --linear packed --json
  fi
  line "4x64 pytorch" "$python" runs/pytorch_peer.py --mode same --questions 4 --samples 64 --repeat 2 --json
  line "4x64 pytorch packed" "$python" runs/pytorch_peer.py --mode same --questions 4 --samples 64 --repeat 2 --linear packed --json
  line "1x64 ours" $ours bench --device cpu --questions 1 --samples 64 --repeat 3 --json
  line "1x64 reference" "$python" runs/pytorch_peer.py --mode reference --questions 1 --samples 64 --repeat 1 --json
  line "1x1 ours" $ours bench --device cpu --questions 1 --samples 1 --dropout-p 0 --repeat 9 --json
  line "1x1 pytorch" "$python" runs/pytorch_peer.py --mode latency --repeat 9 --linear addmm --json
  line "1x1 pytorch packed" "$python" runs/pytorch_peer.py --mode latency --repeat 9 --linear packed --json
done
