#!/usr/bin/env bash
# Peak memory of a whole GSM8K test run at N=64 with default settings: GPT-2 124M's shape, random weights, real prompts.
# Usage: runs/cpu_memory.sh TOKENIZER_DIR DATA OUT [eval flags...]     (--device cpu --max-new-tokens 6 for the published figure)
# Random weights never end an answer by themselves: cut answers with --max-new-tokens.
set -euo pipefail
cd "$(dirname "$0")/.."
tokenizer=$(realpath "$1") data=$(realpath "$2") out=$3
shift 3
cargo run --release --quiet -p latent-tts-model --features testkit --example random_checkpoint -- "$tokenizer" "$out/model"
cargo build --release --quiet
/usr/bin/time -v target/release/latent-tts eval --model "$out/model" --data "$data" --out "$out/run" "$@" 2>"$out/time.txt"
grep -E 'Maximum resident|Elapsed' "$out/time.txt"
