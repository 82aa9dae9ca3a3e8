"""A GGUF file gives the logits that transformers computes with the same weights.

Three comparisons for each file, all in float32 on a CPU, ours from `cargo run -p latent-tts-model --example logits`:

- transformers with the directory that `--example gguf_directory` writes: configuration, tokenizer and
  weights as a training from this file writes them, every tensor found and none left over;
- the weights of that directory with those of llama.cpp's Python package, bit by bit, rotary halves put
  back;
- transformers with the file itself (`gguf_file=`), which has an implementation of its own; for files
  that are given, not for the random ones.

  python runs/gguf_transformers.py [FILE.gguf...]

Without files: tiny random models of every architecture and tensor type (`--example random_gguf`). Needs
torch, transformers, accelerate, safetensors, gguf and numpy; not part of the gate. gguf_transformers.txt is its
output.
"""

import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "Tom has 3 apples and buys 128 more. He gives half of them away. How many apples are left?\n",
    "<|im_start|>user\nWhat's the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "naïve café — 東京 12.5%\n\n  def f(x):\n\treturn x",
]
TOLERANCE = 1e-4  # of the largest logit: float32 sums in another order
MODULES = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def example(name, *arguments):
    command = ["cargo", "run", "--quiet", "-p", "model", "--features", "testkit", "--example", name, "--"]
    return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout


def reference_weights(file):
    """The file's weights under transformers' names, by llama.cpp's package."""
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        *path, module, part = tensor.name.split(".")
        if module == "rope_freqs":
            continue
        if architecture == "llama" and module in ("attn_q", "attn_k"):
            key = "head_count" if module == "attn_q" else "head_count_kv"
            heads = np.split(values, reader.fields[f"llama.attention.{key}"].contents())
            values = np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in heads])
        block = f"layers.{path[1]}." if path else ""
        yield "lm_head.weight" if module == "output" else f"model.{block}{MODULES[module]}.{part}", values


def equal_weights(file, directory):
    ours, theirs = load_file(f"{directory}/model.safetensors"), dict(reference_weights(file))
    bits = lambda array: np.ascontiguousarray(array).view(np.uint32)
    return ours.keys() == theirs.keys() and all((bits(ours[k]) == bits(theirs[k])).all() for k in ours)


@torch.no_grad()
def difference(model, own):
    worst, largest = 0.0, 0.0
    for entry in own:
        theirs, mine = model(torch.tensor([entry["tokens"]])).logits[0], torch.tensor(entry["outputs"])
        worst = max(worst, (theirs - mine).abs().max().item())
        largest = max(largest, theirs.abs().max().item())
    return worst, largest


def check(file, directory, reads_file):
    own = json.loads(example("logits", file, *TEXTS))
    example("gguf_directory", file, directory)
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    info = {k: sorted(v) for k, v in info.items() if v}
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokens = all(tokenizer(e["text"], add_special_tokens=False)["input_ids"] == e["tokens"] for e in own)
    worst, largest = difference(model.eval(), own)
    weights = equal_weights(file, directory)
    fine = tokens and weights and not info and worst <= TOLERANCE * largest
    positions = sum(len(e["tokens"]) for e in own)
    line = (
        f"{os.path.basename(file)}: {type(model).__name__}, {positions} positions, tokens "
        f"{'equal' if tokens else 'DIFFER'}, weights {'equal to the bit' if weights else 'DIFFER'}, largest logit "
        f"{largest:.3f}, largest difference {worst:.1e}"
    )
    if reads_file:
        folder, name = os.path.split(os.path.abspath(file))
        direct = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
        worst, largest = difference(direct, own)
        fine &= worst <= TOLERANCE * largest
        line += f"; transformers reading the file: {worst:.1e}"
    print(f"{'ok  ' if fine else 'MISS'} {line}", flush=True)
    if info:
        print(f"  transformers says: {info}")
    return fine


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        given = sys.argv[1:]
        files = given or example("random_gguf", scratch).split()
        results = [check(file, f"{scratch}/{i}", bool(given)) for i, file in enumerate(files)]
    sys.exit(0 if all(results) else 1)
