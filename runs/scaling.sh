#!/usr/bin/env bash
# Time, speed and memory against N for one question, and against the number of questions at N=1 and N=16.
# Usage: runs/scaling.sh cpu > runs/scaling_cpu.txt      (the embedded model's shape)
#        runs/scaling.sh cuda > runs/scaling_gpu.txt     (GPT-2's shape)
# By variable: MOST (4096) is the largest N and the most questions at N=1, MOST_16 (4096; 256 on a processor) the most
# at N=16, STEP (4) the factor between two lines, REPEAT (3) the runs of a line, FLAGS more flags of bench, BINARY the
# program. Every line is a process of its own, so that its memory is that line's.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:?give a device: cpu or cuda}
most=${MOST:-4096} step=${STEP:-4} repeat=${REPEAT:-3}
bin=${BINARY:-target/release/latent-tts}
case $device in
  cpu) shape=embedded most_16=${MOST_16:-256} ;;
  *) shape=gpt2 most_16=${MOST_16:-4096} ;;
esac
read -ra flags <<<"${FLAGS:-}"

# Powers of the step up to a limit, and the limit.
counts() {
  local n
  for ((n = 1; n < $1; n *= step)); do echo "$n"; done
  echo "$1"
}

line() {
  local found
  found=$("$bin" bench --device "$device" --shape "$shape" --questions "$2" --samples "$3" --repeat "$repeat" \
    "${flags[@]}" --quiet --json)
  echo "$1 $2 $3 $found"
}

[ "$device" = cpu ] && grep -m1 'model name' /proc/cpuinfo
{
  for n in $(counts "$most"); do line N 1 "$n"; done
  for q in $(counts "$most"); do line questions-1 "$q" 1; done
  for q in $(counts "$most_16"); do line questions-16 "$q" 16; done
} | python3 runs/scaling.py
