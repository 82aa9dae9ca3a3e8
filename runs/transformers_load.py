"""What we save, transformers loads: the same tokens, and equal logits (or scores) at every position.

A reasoner is loaded as GPT2LMHeadModel or LlamaForCausalLM by AutoModelForCausalLM; a reward model with the published, linear
head as AutoModel with the file's `classifier` behind it. Both sides compute in float32 on a CPU; weights saved as bf16 are
widened by both. Ours come from `cargo run -p latent-tts-model --example logits`.

  python runs/transformers_load.py DIR...

Prints a line for each directory and exits with 1 if one differs by more than its tolerance. Needs torch, transformers and
safetensors; not part of the gate. transformers_load.txt is its output of one run.
"""

import json
import os
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "Fiona keeps 15 cups in a crate. She gets 15 cups a day for 7 days. How many cups does she have?\n",
    "Tom has 3 apples and buys 128 more. He gives half of them away. How many apples are left?\n<|start-latent|>",
    "each friend gets <<105+15=120>>\n### 120<|endoftext|>",
    "Zyzzyva: a word that is not in the vocabulary?",
]
# float32 sums in another order, as a share of the largest magnitude.
TOLERANCE = 2e-5


def ours(directory):
    command = ["cargo", "run", "--quiet", "-p", "model", "--example", "logits", "--", directory, *TEXTS]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def loaded(model_class, directory):
    """The model in float32, and what transformers missed or could not use."""
    model, info = model_class.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    return model.eval(), {k: sorted(v) for k, v in info.items() if v}


def judge(directory):
    weights = load_file(os.path.join(directory, "model.safetensors"))
    if "classifier.weight" not in weights:
        sys.exit(f"{directory}: its head compares thoughts and is ours alone; take one trained with --head linear")
    model, info = loaded(AutoModel, directory)
    weight, bias = (weights[f"classifier.{part}"].float() for part in ("weight", "bias"))
    info["unexpected_keys"] = [k for k in info.get("unexpected_keys", []) if not k.startswith("classifier.")]
    return (lambda ids: model(ids).last_hidden_state @ weight.T + bias), {k: v for k, v in info.items() if v}, model


def reasoner(directory):
    model, info = loaded(AutoModelForCausalLM, directory)
    return (lambda ids: model(ids).logits), info, model


@torch.no_grad()
def check(directory):
    config = AutoConfig.from_pretrained(directory)
    scores = any("TokenClassification" in name for name in config.architectures)
    compute, info, model = (judge if scores else reasoner)(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    worst, largest, positions, same = 0.0, 0.0, 0, True
    for own in ours(directory):
        ids = tokenizer(own["text"], add_special_tokens=False)["input_ids"]
        if ids != own["tokens"]:
            print(f"  tokens differ: {ids} by transformers, {own['tokens']} by us, of {own['text']!r}")
            same = False
            continue
        theirs, mine = compute(torch.tensor([ids]))[0], torch.tensor(own["outputs"])
        worst = max(worst, (theirs - mine).abs().max().item())
        largest = max(largest, theirs.abs().max().item())
        positions += len(ids)
        same &= scores or bool((theirs.argmax(-1) == mine.argmax(-1)).all())
    fine = same and not info and worst <= TOLERANCE * largest
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{'ok  ' if fine else 'MISS'} {os.path.basename(os.path.normpath(directory))}: {type(model).__name__}"
        f"{' + classifier' if scores else ''}, {parameters:,} parameters, {positions} positions, "
        f"largest {'score' if scores else 'logit'} {largest:.3f}, largest difference {worst:.2e}"
    )
    if info:
        print(f"  transformers says: {info}")
    return fine


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    results = [check(directory) for directory in sys.argv[1:]]
    sys.exit(0 if all(results) else 1)
