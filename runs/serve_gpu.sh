#!/usr/bin/env bash
# The server on a GPU, GPT-2 124M's shape with random weights: one question x 32 beside the engine's own time, and 64 clients beside
# `bench`, interleaved, on an otherwise idle GPU.
# Usage: runs/serve_gpu.sh BINARY LOAD RANDOM_CHECKPOINT TOKENIZER_DIR [ROUNDS] >runs/serve_gpu.txt
#   BINARY             cargo build --release
#   LOAD               cargo build --release -p serve --features cuda --example load
#   RANDOM_CHECKPOINT  cargo build --release -p latent-tts-model --features testkit --example random_checkpoint
#   TOKENIZER_DIR      GPT-2's tokenizer with COCONUT's tokens (tokenizer.json, added_tokens.json, ...)
# A machine without Rust needs the three files and the tokenizer; the checkpoint (500 MB) is written there, into a temporary folder.
set -euo pipefail
binary=${1:?give a latent-tts built with CUDA} load=${2:?give the example load} checkpoint=${3:?give the example random_checkpoint}
tokenizer=${4:?give the folder of a tokenizer} rounds=${5:-3}
folder=$(mktemp -d)
server=
stop() { [ -z "$server" ] || { kill "$server" && wait "$server" || true; }; server=; }
trap 'stop; rm -rf "$folder"' EXIT
"$checkpoint" "$tokenizer" "$folder/model"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
line() { printf '%-28s' "$1:" && "${@:2}"; }

# The engine and the server take turns inside one process, over loopback.
for round in $(seq "$rounds"); do
  echo "round $round"
  line "1x32 bench" "$binary" bench --device cuda --questions 1 --samples 32 --repeat 20 --json
  echo "1x32 engine and server:" && "$load" latency --model "$folder/model" --cuda --samples 32 --repeat 100
done

# The program itself, and clients in another process. Each measurement is between two of `bench`.
"$binary" serve --model "$folder/model" --reward-model none --device cuda --port 0 --max-queue 65536 --quiet --json >"$folder/url" 2>"$folder/log" &
server=$!
for _ in $(seq 600); do [ -s "$folder/url" ] && break; kill -0 "$server" || { cat "$folder/log"; exit 1; }; sleep 0.1; done
url=$(sed 's/.*"url": *"\([^"]*\)".*/\1/' "$folder/url")
echo "the program at $url, one question x 32:" && "$load" latency --url "$url" --samples 32 --repeat 100
for round in $(seq "$rounds"); do
  echo "round $round"
  line "64x64 bench" "$binary" bench --device cuda --questions 64 --samples 64 --repeat 20 --json
  echo "64 clients x 64:" && "$load" clients --url "$url" --clients 64 --samples 64 --requests 40 --repeat 3
done
line "64x64 bench" "$binary" bench --device cuda --questions 64 --samples 64 --repeat 20 --json
echo "64 clients x 16:" && "$load" clients --url "$url" --clients 64 --samples 16 --requests 40 --repeat 3
