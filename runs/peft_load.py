"""What training saves, transformers and peft load: equal logits at every position.

Tiny random models of four architectures and a byte-level tokenizer are made with transformers; a few steps of each method
are trained from them; what was written is loaded on both sides, in float32 on a CPU:

  full   AutoModelForCausalLM.from_pretrained(DIR). Only the weights of a method's head may be unknown to it.
  LoRA   the base, its embeddings resized by the tokens that training added and their rows set (heads.safetensors:
         new_rows.TABLE.weight), then PeftModel.from_pretrained(base, DIR). Every tensor of adapter_model.safetensors must
         be an adapter's of the model, and the reverse.

Ours are those of crates/model/examples/logits.rs (cargo build -p latent-tts-model --example logits). A case is in order if both sides
cut the same tokens from the prompts, if the largest difference of two logits is within 1e-4 of the largest logit, and if
training changed the logits by far more than that: equal logits of an untouched base would prove nothing. The weights of
heads (projector, Gaussian head) are counted, not computed with: neither library knows them.

  python runs/peft_load.py BINARY LOGITS_EXAMPLE OUT_DIR

Prints a line for each case and exits with 1 if one is not in order. Needs torch, transformers, peft, tokenizers and
safetensors; not part of the gate. peft_load.txt is its output of one run.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import peft
import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-4  # of the largest logit: float32 sums in another order
EOS = "<|endoftext|>"
HEADS = ("projector.", "lt_head.")  # what methods add beside a language model
TRAINING = "--steps 3 --batch 4 --lr 1e-2 --warmup 0 --dropout 0 --thoughts 3 --digit-loss-weight 0 --held-out-count 4 --keep last --device cpu --quiet"

# name: what training starts from (a base, or the result of a case before), flags. A base called "padded" has rows of the
# embeddings to spare, so that no new ones are needed.
CASES = {
    "coconut-full-qwen2": ("qwen2", "--method coconut"),
    "coconut-full-qwen3": ("qwen3", "--method coconut"),
    "codi-full-llama": ("llama", "--method codi"),
    "codi-full-gpt2": ("gpt2", "--method codi"),
    "codi-lora-llama": ("llama", "--method codi --lora 4"),
    "codi-lora-llama-untied": ("llama-untied", "--method codi --lora 4"),
    "codi-lora-llama-continued": ("codi-lora-llama", "--method codi --lora 4"),
    "coconut-lora-llama-padded": ("llama-padded", "--method coconut --lora 4"),
    "codi-lora-gpt2": ("gpt2", "--method codi --lora 4"),
    "codi-lora-qwen2": ("qwen2", "--method codi --lora 4"),
    "codi-lora-qwen3": ("qwen3", "--method codi --lora 4 --lora-alpha 7 --lora-targets q_proj,v_proj"),
    "simcot-full-llama": ("llama", "--method codi --step-decoder 1"),
    "simcot-lora-llama": ("llama", "--method codi --step-decoder 1 --lora 4"),
    "colar-full-llama": ("llama", "--method colar --latent-head 48"),
    "colar-lora-llama": ("llama", "--method colar --latent-head 48 --lora 4"),
}


def problems(count):
    rng = random.Random(0)
    for _ in range(count):
        name, things = rng.choice(["Ann", "Tom", "Fiona"]), rng.choice(["apples", "cups", "books"])
        a, b, c = (rng.randint(2, 40) for _ in range(3))
        question = f"{name} has {a} {things} and buys {b} more. Then {name} gets {c} times as many. How many {things} are there?"
        total = a + b
        steps = f"{a}+{b} = <<{a}+{b}={total}>>{total}\n{total}*{c} = <<{total}*{c}={total * c}>>{total * c}"
        yield {"question": question, "answer": f"{steps}\n#### {total * c}"}


# How Qwen's tokenizers split text. transformers 5 splits so for a qwen2, whatever its tokenizer.json says.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(like_qwen):
    """A byte-level BPE trained on the problems, with a token for CoLaR's separator."""
    texts = [f"{x['question']} The answer is: {x['answer']}" for x in problems(64)] + ["###Answer: 7"] * 64
    made, stages = tokenizers.Tokenizer(tokenizers.models.BPE()), tokenizers.pre_tokenizers
    made.pre_tokenizer = stages.ByteLevel(add_prefix_space=False)
    if like_qwen:
        split = stages.Split(tokenizers.Regex(QWEN_SPLIT), behavior="isolated")
        made.normalizer = tokenizers.normalizers.NFC()
        made.pre_tokenizer = stages.Sequence([split, stages.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = stages.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=EOS, bos_token=EOS)


def make_base(name, directory):
    """A random model with weights large enough that positions and attention matter."""
    torch.manual_seed(sum(name.encode()))
    tokenizer = make_tokenizer(name.startswith("qwen"))
    vocab = len(tokenizer) + (8 if name.endswith("-padded") else 0)
    ids = dict(vocab_size=vocab, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=256, **ids)
    else:
        kind = name.split("-")[0].capitalize()
        shape = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
        shape |= dict(head_dim=16) if kind == "Qwen3" else {}
        tied = dict(tie_word_embeddings=not name.endswith("-untied"), max_position_embeddings=256)
        config = getattr(transformers, f"{kind}Config")(rope_theta=50_000.0, **shape, **tied, **ids)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def train(binary, base, data, out, flags):
    command = [binary, "train", "reasoner", "--init", base, "--data", data, "--held-out", data, "--out", out]
    done = subprocess.run([*map(str, command), *flags.split(), *TRAINING.split()], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"training failed: {done.stderr.strip()}")


def load_full(directory):
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    heads = [key for key in info["unexpected_keys"] if key.startswith(HEADS)]
    problems = {key: sorted(value) for key, value in info.items() if value}
    problems["unexpected_keys"] = sorted(set(info["unexpected_keys"]) - set(heads))
    problems = {key: value for key, value in problems.items() if value}
    if problems:
        raise RuntimeError(f"transformers says: {problems}")
    return model.eval(), f"{len(heads)} tensors of a head"


def grow_embeddings(model, heads, vocab):
    """Sets the last rows of the embeddings, grown to the vocabulary, and of the language-model head where it is another table."""
    rows = {name: tensor for name, tensor in heads.items() if name.startswith("new_rows.")}
    if not rows:
        return 0
    (count,) = {len(tensor) for tensor in rows.values()}
    model.resize_token_embeddings(vocab, mean_resizing=False)
    with torch.no_grad():
        for name, tensor in rows.items():
            is_head = name == "new_rows.lm_head.weight"
            table = model.get_output_embeddings() if is_head else model.get_input_embeddings()
            table.weight[-count:] = tensor.float()
    return count


def load_adapter(directory):
    config = json.loads((directory / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    beside = directory / "heads.safetensors"
    heads = load_file(beside) if beside.exists() else {}
    vocab = json.loads((directory / "config.json").read_text())["vocab_size"]
    count = grow_embeddings(base, heads, vocab)
    model = peft.PeftModel.from_pretrained(base, str(directory)).eval()
    saved = load_file(directory / "adapter_model.safetensors")
    own = {name.replace(".default", ""): x for name, x in model.named_parameters() if "lora_" in name}
    if own.keys() != saved.keys():
        raise RuntimeError(f"adapters of one side alone: {sorted(own.keys() ^ saved.keys())}")
    unequal = [name for name, tensor in saved.items() if not torch.equal(tensor.float(), own[name])]
    if unequal:
        raise RuntimeError(f"peft has other values of {unequal}")
    unknown = [name for name in heads if not name.startswith((*HEADS, "new_rows."))]
    if unknown:
        raise RuntimeError(f"unknown tensors beside the adapter: {unknown}")
    others = len(heads) - sum(name.startswith("new_rows.") for name in heads)
    return model, f"{len(saved)} adapter tensors, {count} new tokens, {others} tensors of a head"


def prompts():
    texts = [problem["question"] for problem in problems(8)]
    texts += ["The answer is: 42<|endoftext|>", "<<3+4=7>> ### 7", "Ann has\n<|start-latent|><|latent|><|end-latent|>The", "Zyzzyva é?"]
    return texts


def ours(example, directory, texts):
    done = subprocess.run([example, directory, *texts], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def check(name, base, directory, example):
    is_adapter = (directory / "adapter_config.json").exists()
    if is_adapter != ("-lora-" in name):
        raise RuntimeError(f"{'an' if is_adapter else 'no'} adapter was saved")
    model, loaded = (load_adapter if is_adapter else load_full)(directory)
    untrained = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    tokenizer, texts = AutoTokenizer.from_pretrained(directory), prompts()
    worst = largest = changed = 0.0
    for own in ours(example, directory, texts):
        ids = tokenizer(own["text"], add_special_tokens=False)["input_ids"]
        if ids != own["tokens"]:
            raise RuntimeError(f"tokens differ: {ids} by transformers, {own['tokens']} by us, of {own['text']!r}")
        theirs, mine = logits(model, ids), torch.tensor(own["outputs"])
        if theirs.shape != mine.shape:
            raise RuntimeError(f"{tuple(theirs.shape)} logits by transformers, {tuple(mine.shape)} by us")
        worst, largest = max(worst, (theirs - mine).abs().max().item()), max(largest, theirs.abs().max().item())
        vocab = untrained.config.vocab_size
        if max(ids) < vocab:
            changed = max(changed, (logits(untrained, ids) - theirs[:, :vocab]).abs().max().item())
    relative, changed = worst / largest, changed / largest
    fine = relative <= TOLERANCE and changed > 10 * TOLERANCE
    print(
        f"{name}: {len(texts)} prompts, largest difference {relative:.0e} of {TOLERANCE:.0e} allowed: {'ok' if fine else 'MISS'}"
        f" ({loaded}; training changed logits by {changed:.0e})",
        flush=True,
    )
    return fine


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    binary, example, out = sys.argv[1], os.path.abspath(sys.argv[2]), Path(sys.argv[3]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")
    data = out / "problems.jsonl"
    data.write_text("".join(json.dumps(problem) + "\n" for problem in problems(64)))
    initial = {name: out / name if name in CASES else out / "bases" / name for name, _ in CASES.values()}
    for name in initial.keys() - CASES.keys():
        make_base(name, initial[name])
    failed = []
    for name, (base, flags) in CASES.items():
        try:
            train(binary, initial[base], data, out / name, flags)
            fine = check(name, out / "bases" / CASES.get(base, (base,))[0], out / name, example)
        except (RuntimeError, ValueError, OSError, subprocess.CalledProcessError) as error:
            fine = False
            print(f"{name}: MISS: {error}{getattr(error, 'stderr', None) or ''}", flush=True)
        failed += [] if fine else [name]
    print(f"{len(CASES) - len(failed)} of {len(CASES)} in order")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
