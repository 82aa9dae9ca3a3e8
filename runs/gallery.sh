#!/usr/bin/env bash
# The pictures of docs/gallery and the sweeps of docs/findings.md: the embedded models on the embedded problems, from raw runs to PNG.
#   runs/gallery.sh [OUT [PICTURES]]
# OUT (default runs/gallery-out) gets run directories and pages, PICTURES (default docs/gallery) the PNG files. It took 6.5
# minutes of processor time, 10 on two busy cores; what is on file is not run again. SWEEP and SPLIT are questions of a sweep's value and of a split (defaults 200 and 150),
# LATENT_TTS the program.
set -euo pipefail
out=${1:-runs/gallery-out} pictures=${2:-docs/gallery}
sweep=${SWEEP:-200} split=${SPLIT:-150}
latent_tts=${LATENT_TTS:-cargo run --release --quiet --}
tts() { $latent_tts "$@"; }
mkdir -p "$out"

# Strengths of both samplers, thoughts kept: coverage, diversity and the map of thoughts.
tts sweep --model embedded --reward-model none --data "embedded:test:0..$sweep" --samples 64 --latents --resume \
    --dropout-p 0.02,0.1,0.2,0.4,0.6 --noise-std 0.1,0.3,0.5,1,2 --no-report --out "$out/sweep" | tee "$out/sweep.txt"
# Every rule on every split, with the embedded judge.
for name in test hard ood; do
    tts eval --model embedded --data "embedded:$name:0..$split" --samples 64 --resume --no-report --out "$out/$name"
done
# The cost of other N, each a run of its own.
for n in 1 4 16; do
    tts eval --model embedded --data "embedded:test:0..$split" --samples "$n" --resume --no-report --out "$out/n$n"
done

tts report "$out/sweep" --out "$out/report-sweep"
# The map of fewer strengths: ten lie upon each other.
tts report "$out"/sweep/{dropout-0.1,dropout-0.4,noise-0.5,noise-1} --out "$out/report-map"
tts report "$out"/{test,hard,ood} --out "$out/report-splits"
tts report "$out"/{test,n1,n4,n16} --out "$out/report-cost"
mkdir -p "$pictures"
cp "$out"/report-sweep/figures/{coverage,coverage-diversity,diversity-steps}.png "$pictures/"
cp "$out/report-map/figures/thoughts.png" "$pictures/"
cp "$out/report-splits/figures/accuracy.png" "$pictures/accuracy.png"
cp "$out/report-splits/figures/coverage.png" "$pictures/coverage-splits.png"
cp "$out/report-cost/figures/cost.png" "$pictures/cost.png"
# 64 colours hold these drawings at a third of the size; without Pillow the files stay as they are.
python3 - "$pictures"/*.png <<'SMALLER' || printf 'pictures are as report wrote them: there is no Pillow\n' >&2
import sys
from PIL import Image
for path in sys.argv[1:]:
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
SMALLER
