#!/usr/bin/env bash
# The figures of the embedded models in docs/images: from raw runs to PNG files.
#   runs/gallery.sh [OUT [PICTURES]]
# OUT (default runs/gallery-out) gets run directories and pages, PICTURES (default docs/images) the PNG files. It takes about
# ten minutes on two cores; existing runs are resumed. SWEEP and SPLIT are the numbers of questions for each strength and
# each split (defaults 200 and 150), LATENT_TTS the program.
set -euo pipefail
out=${1:-runs/gallery-out} pictures=${2:-docs/images}
sweep=${SWEEP:-200} split=${SPLIT:-150}
latent_tts=${LATENT_TTS:-cargo run --release --quiet --}
tts() { $latent_tts "$@"; }
mkdir -p "$out"

# Strengths of both samplers, thoughts kept: coverage, diversity and the map of thoughts.
tts sweep --model embedded --reward-model none --data "embedded:test:0..$sweep" --samples 64 --latents --resume \
    --dropout-p 0.02,0.1,0.2,0.4,0.6 --noise-std 0.1,0.3,0.5,1,2 --no-report --out "$out/sweep" | tee "$out/sweep.txt"
# Every rule on every split, with the embedded reward model.
for name in test hard ood; do
    tts eval --model embedded --data "embedded:$name:0..$split" --samples 64 --resume --no-report --out "$out/$name"
done

tts report "$out/sweep" --out "$out/report-sweep"
# The map shows four strengths only: ten would cover each other.
tts report "$out"/sweep/{dropout-0.1,dropout-0.4,noise-0.5,noise-1} --out "$out/report-map"
tts report "$out"/{test,hard,ood} --out "$out/report-splits"
mkdir -p "$pictures"
cp "$out"/report-sweep/figures/{coverage-diversity,diversity-steps}.png "$pictures/"
cp "$out/report-map/figures/thoughts.png" "$pictures/"
cp "$out/report-splits/figures/accuracy.png" "$pictures/accuracy.png"
# 64 colours hold these drawings at a third of the size; without Pillow the files stay as they are.
python3 - "$pictures"/*.png <<'SMALLER' || printf 'pictures are as report wrote them: there is no Pillow\n' >&2
import sys
from PIL import Image
for path in sys.argv[1:]:
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
SMALLER
