#!/usr/bin/env bash
# Runs published checkpoints on GSM8K's test set and prints the greedy accuracy beside the published one.
# It needs a network, some tens of gigabytes, and `hf` (pip install huggingface_hub); gated bases
# need HF_TOKEN. Usage: runs/published.sh [OUT] [NAME ...]
set -euo pipefail

out=${1:-published}
shift || true
wanted=("$@")
data=openai/gsm8k/main/test-00000-of-00001.parquet
gpt2=openai-community/gpt2
llama1b=meta-llama/Llama-3.2-1B-Instruct
llama3b=meta-llama/Llama-3.2-3B-Instruct
mkdir -p "$out"

# Whether a name was asked for.
asked() {
  [ ${#wanted[@]} -eq 0 ] && return 0
  local name
  for name in "${wanted[@]}"; do [ "$name" = "$1" ] && return 0; done
  return 1
}

# measure NAME PUBLISHED ARGUMENTS...: the accuracy of greedy runs, in %.
measure() {
  local name=$1 published=$2
  shift 2
  latent-tts eval "$@" --data "$data" --samples 1 --greedy --sampler none --reward-model none \
    --out "$out/runs/$name" --resume >"$out/$name.txt"
  local found
  found=$(python3 -c "
import json, sys
metrics = json.load(open(sys.argv[1]))['metrics']
print(round(100 * next(m['value'] for m in metrics if m['name'] == 'greedy'), 2))
" "$out/runs/$name/results.json")
  printf '%-28s %8s %8s\n' "$name" "$found" "$published" | tee -a "$out/accuracy.txt"
}

# fetch ID: the repository as its authors uploaded it.
fetch() {
  hf download "$1" --local-dir "$out/${1##*/}" >/dev/null
  echo "$out/${1##*/}"
}

printf '%-28s %8s %8s\n' checkpoint here published | tee "$out/accuracy.txt"
if asked coconut; then
  measure coconut 34.1 --model ModalityDance/latent-tts-coconut
fi
if asked codi; then
  measure codi 43.7 --model ModalityDance/latent-tts-codi
fi
if asked colar; then
  measure colar 40.1 --model ModalityDance/latent-tts-colar
fi
if asked slpo; then
  measure slpo 35.63 --model ModalityDance/slpo-coconut-gpt2
fi
if asked latent-sft; then
  measure latent-sft 44.5 --model DJCheng/LLaMA3.2-1B-Instruct-Latent-SFT-Top10 --method latent-sft
fi
if asked latent-grpo; then
  measure latent-grpo - --model DJCheng/LLaMA3.2-1B-Instruct-Latent-GRPO-Top10 --method latent-sft
fi
if asked codi-gpt2; then
  latent-tts convert "$(fetch zen-E/CODI-gpt2)" "$out/codi-gpt2" --base "$gpt2" --overwrite
  measure codi-gpt2 43.7 --model "$out/codi-gpt2"
fi
if asked codi-llama; then
  latent-tts convert "$(fetch zen-E/CODI-llama3.2-1b-Instruct)" "$out/codi-llama" \
    --base "$llama1b" --overwrite
  measure codi-llama 55.6 --model "$out/codi-llama"
fi
if asked simcot-coconut; then
  latent-tts convert "$(fetch internlm/SIM_COT-GPT2-Coconut)/checkpoint_28" "$out/simcot-coconut" \
    --base "$gpt2" --overwrite
  measure simcot-coconut 44.7 --model "$out/simcot-coconut"
fi
if asked simcot-codi; then
  measure simcot-codi 42.6 --model "$(fetch internlm/SIM_COT-GPT2-CODI)" --base "$gpt2"
fi
if asked simcot-codi-1b; then
  measure simcot-codi-1b 56.0 --model "$(fetch internlm/SIM_COT-LLaMA3-CODI-1B)" --base "$llama1b"
fi
if asked simcot-codi-3b; then
  measure simcot-codi-3b 62.3 --model "$(fetch internlm/SIM_COT-LLaMA3-CODI-3B)" --base "$llama3b"
fi
if asked colar-lightning; then
  checkpoint=$(find "$(fetch AlbertTan/CoLaR)" -name '*.ckpt' | sort | head -n 1)
  latent-tts convert "$checkpoint" "$out/colar-lightning" --base "$llama1b" --overwrite
  measure colar-lightning 40.1 --model "$out/colar-lightning"
fi
