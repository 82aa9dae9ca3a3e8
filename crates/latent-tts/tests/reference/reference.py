"""Writes tiny random checkpoints in the published layouts with what transformers computes for them.

    pip install torch==2.5.1 transformers==4.57.1
    python reference.py OUT [FAMILY ...]

A folder per family: checkpoint/ (as a user would download it), golden.json (inputs, token ids,
answers) and golden.safetensors (dropout masks, noise, thoughts, hidden states, logits, float32).
Everything is computed without a cache, one row at a time, so that it can be the oracle of a fast
engine. `latent-tts verify OUT/FAMILY` compares; the committed folders are compared by
tests/reference.rs. Running the script again gives the same checkpoints and masks, and the same
numbers to rounding.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

QUESTIONS = [
    "Tom has 3 boxes of 4 pens. How many?",
    "Is it 7?",
]
CORPUS = [
    *QUESTIONS,
    "### ### ### ### ### ### ### ### 7",
    "Question: Let's think step by step: (Thinking speed: 2) ###",
    "Please reason step by step, and put your final answer within",
    "user assistant system You are a helpful assistant.",
    "The final answer is:",
]
WIDTH, LAYERS, ROWS, ANSWER = 16, 2, 2, 5
DROPOUT, NOISE = 0.2, 0.15
SITES = ("attn_out", "mlp_out")


def train_tokenizer(specials, added):
    """A byte-level BPE with few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(specials) + 256 + 8,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 8, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer


def shake(module, generator):
    """Makes every parameter random, norms and biases too, so that a forgotten one shows."""
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_((1.0 if "weight" in name else 0.0) + 0.2 * noise)
            else:
                scale = 0.12 if parameter.shape[0] > 200 else 1.6 / parameter.shape[-1] ** 0.5
                parameter.copy_(noise * scale)
    return module.eval()


class Reference:
    """What differs between families: prompt, latent head, length, end tokens."""

    fixed = None
    at_most = None
    eos_text = "<|eot_id|>"
    extra = {}
    stops_before = staticmethod(lambda hidden: False)
    stops_after = staticmethod(lambda thought: False)

    def embed(self, ids):
        return self.model.get_input_embeddings()(torch.tensor([ids]))

    def hidden(self, embeddings):
        """(1, positions, width), after the final norm."""
        return self.backbone(inputs_embeds=embeddings, use_cache=False).last_hidden_state

    def logits(self, hidden):
        return self.model.lm_head(hidden)

    def thought(self, hidden):
        return hidden

    def prompt_ids(self, question):
        return self.tokenizer.encode(self.prompt(question), add_special_tokens=False).ids

    def id(self, text):
        return self.tokenizer.token_to_id(text)

    def weights(self):
        """The tensors of each file."""
        state = {k: v for k, v in self.model.state_dict().items() if k != "lm_head.weight"}
        return {"model.safetensors": {**state, **self.extra}}


class Gpt2(Reference):
    """COCONUT on GPT-2."""

    fixed = 3
    eos_text = "<|endoftext|>"
    markers = ["<|start-latent|>", "<|end-latent|>", "<|latent|>"]
    class_name = "COCONUTGPT2"
    config_extra = {}

    def __init__(self, generator):
        self.tokenizer = train_tokenizer([self.eos_text], self.markers)
        self.config = GPT2Config(
            vocab_size=self.tokenizer.get_vocab_size(), n_positions=112, n_embd=WIDTH,
            n_layer=LAYERS, n_head=2, bos_token_id=0, eos_token_id=0,
        )
        self.model = shake(GPT2LMHeadModel(self.config), generator)
        self.backbone = self.model.transformer
        self.end = [self.id("<|end-latent|>")]

    def prompt(self, question):
        return question + "\n<|start-latent|>"

    def sites(self):
        return [site for block in self.backbone.h for site in (block.attn.c_proj, block.mlp.c_proj)]

    def config_json(self):
        ids = {"latent_start_id": self.id(self.markers[0]), "latent_end_id": self.end[0]}
        architectures = {"architectures": [self.class_name]}
        return {**self.config.to_dict(), **architectures, **ids, **self.config_extra}


class Codi(Gpt2):
    """CODI on GPT-2: a projector."""

    class_name = "CODIGPT2"

    def __init__(self, generator):
        super().__init__(generator)
        projector = nn.Sequential(
            nn.Dropout(0.0), nn.Linear(WIDTH, 20), nn.GELU(), nn.Linear(20, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.thought = shake(projector, generator)
        self.extra = {f"projector.{k}": v for k, v in projector.state_dict().items()}

    def prompt(self, question):
        return question + "<|start-latent|>"


class Slpo(Gpt2):
    """SLPO: a gate on the thought says which one is the last."""

    fixed, at_most = None, 6
    class_name = "LatentCOCONUTGPT2"
    config_extra = {"stop_threshold": 0.6}

    def __init__(self, generator):
        super().__init__(generator)
        self.gate = shake(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, 1)), generator
        )
        with torch.no_grad():
            self.gate[2].weight *= 4
        self.extra = {f"stop_gate.{k}": v for k, v in self.gate.state_dict().items()}

    def stops_after(self, thought):
        return torch.sigmoid(self.gate(thought)).item() > self.config_extra["stop_threshold"]


class Llama(Reference):
    """A Llama 3 with scaled rotary positions and tied embeddings."""

    specials = ["<|begin_of_text|>", "<|eot_id|>", "[PAD]"]
    added = []
    class_name = "LlamaForCausalLM"
    config_extra = {}

    def __init__(self, generator):
        self.tokenizer = train_tokenizer(self.specials, self.added)
        self.config = LlamaConfig(
            vocab_size=self.tokenizer.get_vocab_size(), hidden_size=WIDTH, intermediate_size=24,
            num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=500000.0,
            rope_scaling=dict(
                rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
            tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
        )
        self.model = shake(LlamaForCausalLM(self.config), generator)
        self.backbone = self.model.model

    def louder(self, token, factor=2.2):
        """Makes the model say a token more often."""
        with torch.no_grad():
            self.model.get_input_embeddings().weight[token] *= factor

    def sites(self):
        layers = self.backbone.layers
        return [site for x in layers for site in (x.self_attn.o_proj, x.mlp.down_proj)]

    def config_json(self):
        architectures = {"architectures": [self.class_name]}
        return {**self.config.to_dict(), **architectures, **self.config_extra}


class Colar(Llama):
    """CoLaR: the mean of a Gaussian head; the model ends its thoughts."""

    at_most = 5
    class_name = "ColarLlama"
    config_extra = {"latent_embedding_std": 0.25}

    def __init__(self, generator):
        super().__init__(generator)
        self.end = self.prompt_tokens("###")
        assert len(self.end) == 1, "more merges are needed"
        self.louder(self.end[0])
        self.fc = nn.Sequential(
            nn.Linear(WIDTH, 28), nn.GELU(), nn.Linear(28, 28), nn.LayerNorm(28)
        )
        self.mean = nn.Linear(28, WIDTH)
        shake(self.fc, generator)
        shake(self.mean, generator)
        self.extra = {f"lt_head.fc.{k}": v for k, v in self.fc.state_dict().items()}
        self.extra |= {f"lt_head.mean.{k}": v for k, v in self.mean.state_dict().items()}

    def prompt_tokens(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, question):
        return f"Question: {question} Let's think step by step:(Thinking speed: 2)###"

    def thought(self, hidden):
        return self.mean(self.fc(hidden)) * self.config_extra["latent_embedding_std"]

    def stops_before(self, hidden):
        return int(self.logits(hidden).argmax()) == self.end[0]


class Mixture(Llama):
    """Mixtures of the embeddings of the most probable tokens."""

    specials = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    at_most = 5
    temperature, top_p = 1.0, 1.0
    instruction = (
        "<|start_header_id|>user<|end_header_id|>\n\nPlease reason step by step, and put your "
        "final answer within \\boxed{}.\n"
    )

    def tokens(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, question):
        turn = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        return self.instruction + question + turn

    def thought(self, hidden):
        values, indices = self.logits(hidden).topk(10, dim=-1)
        weights = (values / self.temperature).softmax(-1)
        # The fewest tokens that hold the share.
        dropped = weights.cumsum(-1) - weights >= self.top_p
        weights = weights.masked_fill(dropped, 0.0)
        weights = weights / weights.sum(-1, keepdim=True)
        table = self.model.get_input_embeddings()
        return (weights.unsqueeze(-1) * table(indices)).sum(-2)

    def stops_before(self, hidden):
        return int(self.logits(hidden).argmax()) in self.stop_ids


class LatentSft(Mixture):
    """Latent-SFT and Latent-GRPO: <think>, mixtures, </think>."""

    def __init__(self, generator):
        super().__init__(generator)
        self.end = self.tokens("</think>")
        self.stop_ids = self.end[:1]
        self.louder(self.end[0])

    def prompt_ids(self, question):
        return super().prompt_ids(question) + self.tokens("<think>")


class SoftThinking(Mixture):
    """Soft Thinking on a plain Llama: a sharpened nucleus; the answer's end ends the thoughts."""

    temperature, top_p = 0.6, 0.95
    config_extra = {"latent_tts": {"family": "soft-thinking"}}

    def __init__(self, generator):
        super().__init__(generator)
        self.end = self.tokens("\n\nThe final answer is:")
        self.stop_ids = [1]
        self.louder(1, 3.0)

    def prompt(self, question):
        return "<|begin_of_text|>" + super().prompt(question)


class Adaptive(Llama):
    """Adaptive latent reasoning: a filter, and two rows of the LM head that decide."""

    at_most = 5
    added = ["<START>", "<END>", "<|CONTINUE|>", "<|STOP|>"]

    def __init__(self, generator):
        super().__init__(generator)
        self.filter = nn.ModuleDict({
            "input_layer": nn.Linear(WIDTH, WIDTH),
            "output_layer": nn.Linear(WIDTH, WIDTH),
            "norm": nn.LayerNorm(WIDTH),
        })
        shake(self.filter, generator)
        self.extra = {f"recurrent_filter.{k}": v for k, v in self.filter.state_dict().items()}
        self.end = [self.id("<END>")]
        self.config_extra = {
            "_inserted_LatentThinkingModelSettings": {
                "add_latent_to_end": False,
                "lora_mode": False,
                "recurrent_filter_mode": "MLP",
                "start_token_id": self.id("<START>"),
                "end_token_id": self.end[0],
                "continue_token_id": self.id("<|CONTINUE|>"),
                "stop_token_id": self.id("<|STOP|>"),
            }
        }

    def prompt(self, question):
        return f"<|begin_of_text|>Question: {question}<START>"

    def thought(self, hidden):
        inner = F.gelu(self.filter["input_layer"](hidden))
        return self.filter["norm"](self.filter["output_layer"](inner))

    def stops_before(self, hidden):
        logits = self.logits(hidden).flatten()
        return bool(logits[self.id("<|STOP|>")] > logits[self.id("<|CONTINUE|>")])

    def weights(self):
        """As its authors save it: the model below `_base_model`."""
        files = super().weights()
        tensors = files["model.safetensors"]
        is_filter = {k: k.startswith("recurrent_filter.") for k in tensors}
        named = {k if is_filter[k] else f"_base_model.{k}": v for k, v in tensors.items()}
        return {"model.safetensors": named}


class Lotus:
    """LOTUS: blocks of latent positions in loops. Mixed into a backbone."""

    blocks, block_width, loops = 2, 3, 2

    def positions(self):
        return self.blocks * self.block_width

    def latents(self, count):
        """The embedding of the latent token at every position."""
        return self.embed([self.id("<|latent|>")] * count)

    def config_json(self):
        usage = {"family": "lotus", "blocks": self.blocks, "block_width": self.block_width}
        return {**super().config_json(), "latent_tts": {**usage, "loops": self.loops}}


class LotusGpt2(Lotus, Gpt2):
    """LOTUS on GPT-2."""


class LotusLlama(Lotus, Llama):
    """LOTUS on Llama."""

    added = Gpt2.markers

    def __init__(self, generator):
        super().__init__(generator)
        self.end = [self.id("<|end-latent|>")]

    def prompt(self, question):
        return "<|begin_of_text|>" + question + "\n<|start-latent|>"

    def config_json(self):
        ids = {"latent_start_id": self.id("<|start-latent|>"), "latent_end_id": self.end[0]}
        return {**super().config_json(), **ids}


class Rot(Reference):
    """Render-of-Thought: the text tower of Qwen3-VL with a projection head."""

    fixed = 3
    eos_text = "<|im_end|>"

    def __init__(self, generator):
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

        self.tokenizer = train_tokenizer(
            ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<img_begin>", "<img>", "<img_end>"]
        )
        self.config = Qwen3VLTextConfig(
            vocab_size=self.tokenizer.get_vocab_size(), hidden_size=WIDTH, intermediate_size=24,
            num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            rms_norm_eps=1e-6, rope_theta=5000000.0, max_position_embeddings=256,
            rope_scaling=dict(
                rope_type="default", mrope_section=[2, 1, 1], mrope_interleaved=True
            ),
            tie_word_embeddings=True,
        )
        self.backbone = shake(Qwen3VLTextModel(self.config), generator)
        inner = 20

        class SwiGlu(nn.Module):
            def __init__(self):
                super().__init__()
                for name in ("w1", "w2", "w3"):
                    setattr(self, name, nn.Linear(inner, inner, bias=False))

            def forward(self, x):
                return self.w3(F.silu(self.w1(x)) * self.w2(x))

        head = nn.Sequential(
            nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, inner), SwiGlu(),
            nn.Linear(inner, WIDTH),
        )
        self.thought = shake(head, generator)
        self.end = [self.id("<img_end>")]

    def embed(self, ids):
        return self.backbone.embed_tokens(torch.tensor([ids]))

    def logits(self, hidden):
        return hidden @ self.backbone.embed_tokens.weight.T

    def prompt(self, question):
        return (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            f"{question}<|im_end|>\n<|im_start|>assistant\n<img_begin>"
        )

    def sites(self):
        layers = self.backbone.layers
        return [site for x in layers for site in (x.self_attn.o_proj, x.mlp.down_proj)]

    def config_json(self):
        return {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "tie_word_embeddings": True,
            "text_config": self.config.to_dict(),
        }

    def weights(self):
        state = self.backbone.state_dict()
        table = self.backbone.embed_tokens.weight
        return {
            "model.safetensors": {f"model.language_model.{k}": v for k, v in state.items()},
            "projection_head.safetensors": self.thought.state_dict(),
            "special_tokens.safetensors": {
                "img_begin_emb": table[self.id("<img_begin>")].clone(),
                "img_end_emb": table[self.end[0]].clone(),
            },
        }


class Dropout:
    """Applies recorded masks to the passes that make thoughts, at the sites of a run."""

    def __init__(self, reference, keep, sites):
        self.keep, self.row, self.prompt, self.passes = keep, 0, 0, 0
        modules = enumerate(reference.sites())
        self.hooks = [
            module.register_forward_hook(lambda _, __, out, site=site: self.mask(out, site))
            for site, module in modules
            if SITES[site % 2] in sites
        ]

    def mask(self, out, site):
        out = out.clone()
        for t in range(min(self.passes, len(self.keep))):
            position = self.prompt - 1 + t
            if position < out.shape[1]:
                kept = self.keep[t, site // 2, site % 2, self.row]
                out[:, position] *= kept / (1 - DROPOUT)
        return out

    def remove(self):
        for hook in self.hooks:
            hook.remove()


def think(reference, embeddings, dropout, noise):
    """Feeds thoughts until the family's rule ends them. Gives the inputs and the thoughts.

    The pass that decides to stop is stochastic too while its index is below the limit.
    """
    thoughts = []
    limit = reference.fixed or reference.at_most
    while len(thoughts) < limit:
        dropout.passes = len(thoughts) + 1
        hidden = reference.hidden(embeddings)[:, -1]
        if reference.at_most and reference.stops_before(hidden):
            break
        thought = reference.thought(hidden)
        if noise is not None:
            thought = thought + noise[len(thoughts), dropout.row]
        thoughts.append(thought[0])
        embeddings = torch.cat([embeddings, thought[:, None]], 1)
        if reference.at_most and reference.stops_after(thought):
            break
    else:
        dropout.passes = limit
    return embeddings, thoughts


def answer(reference, embeddings):
    """Greedy tokens after the end tokens, and the first logits."""
    embeddings = torch.cat([embeddings, reference.embed(reference.end)], 1)
    eos = reference.id(reference.eos_text)
    tokens, first = [], None
    for _ in range(ANSWER):
        logits = reference.logits(reference.hidden(embeddings)[:, -1])[0]
        first = logits if first is None else first
        tokens.append(int(logits.argmax()))
        if tokens[-1] == eos:
            break
        embeddings = torch.cat([embeddings, reference.embed(tokens[-1:])], 1)
    return tokens, first


def run(reference, ids, rows, keep, sites=(), noise=None):
    dropout = Dropout(reference, keep, sites)
    found = []
    for row in range(rows):
        dropout.row, dropout.prompt, dropout.passes = row, len(ids), 0
        embeddings, thoughts = think(reference, reference.embed(ids), dropout, noise)
        tokens, first = answer(reference, embeddings)
        text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
        found.append({"thoughts": thoughts, "tokens": tokens, "text": text, "first": first})
    dropout.remove()
    return found


def runs_of(reference, ids, keep, noise):
    return {
        "clean": run(reference, ids, 1, keep),
        "dropout": run(reference, ids, ROWS, keep, SITES),
        "dropout_mlp": run(reference, ids, ROWS, keep, SITES[1:]),
        "noise": run(reference, ids, ROWS, keep, (), noise),
    }


def loop(reference, ids, row, keep=None, sites=(), noise=None):
    """Passes 0 to R - 1 over the latent positions. Gives what the last pass reads, and what was
    added to the latent token's embedding before each pass."""
    count, start = reference.positions(), len(ids)
    plain = torch.cat([reference.embed(ids), reference.latents(count)], 1)
    embeddings, injected, state = plain, [], {}

    def mask(out, site):
        out = out.clone()
        kept = keep[state["loop"], site // 2, site % 2, row]
        out[:, start : start + count] *= kept / (1 - DROPOUT)
        return out

    hooks = [
        module.register_forward_hook(lambda _, __, out, site=site: mask(out, site))
        for site, module in enumerate(reference.sites())
        if SITES[site % 2] in sites
    ]
    for number in range(reference.loops):
        state["loop"] = number
        hidden = reference.hidden(embeddings)[:, start:]
        if noise is not None:
            hidden = hidden + noise[number, row]
        injected.append(hidden[0])
        embeddings = torch.cat([plain[:, :start], plain[:, start:] + hidden], 1)
    for hook in hooks:
        hook.remove()
    return embeddings, torch.stack(injected)


def write_looped(name, reference, out, generator):
    """The same for looped blocks of latent positions, with the losses and gradients of a training
    batch."""
    silence(reference)
    write_checkpoint(reference, out / "checkpoint")
    count, loops = reference.positions(), reference.loops
    meta = {
        "family": name, "blocks": reference.blocks, "block_width": reference.block_width,
        "loops": loops, "n": ROWS, "p": DROPOUT, "std": NOISE, "end_ids": reference.end,
        "eos_id": reference.id(reference.eos_text), "max_new_tokens": ANSWER, "questions": [],
    }
    tensors = {}
    for i, question in enumerate(QUESTIONS):
        ids = reference.prompt_ids(question)
        shape = (loops, LAYERS, 2, ROWS, count, WIDTH)
        keep = (torch.rand(shape, generator=generator) >= DROPOUT).float()
        noise = NOISE * torch.randn((loops, ROWS, count, WIDTH), generator=generator)
        tensors[f"{i}.keep"], tensors[f"{i}.noise"] = keep.to(torch.uint8), noise
        runs = {
            "clean": (1, {}),
            "dropout": (ROWS, {"keep": keep, "sites": SITES}),
            "dropout_mlp": (ROWS, {"keep": keep, "sites": SITES[1:]}),
            "noise": (ROWS, {"noise": noise}),
        }
        record = {}
        for mode, (rows, how) in runs.items():
            record[mode] = []
            for row in range(rows):
                embeddings, injected = loop(reference, ids, row, **how)
                tokens, first = answer(reference, embeddings)
                # What stands at a latent position is predicted one position earlier.
                hidden = reference.hidden(embeddings)[0, len(ids) - 1 : -1]
                text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
                reading = reference.logits(hidden).argmax(-1).tolist()
                record[mode].append({"answer_ids": tokens, "text": text, "reading": reading})
                tensors[f"{i}.{mode}.{row}.injected"] = injected
                tensors[f"{i}.{mode}.{row}.first_logits"] = first
        meta["questions"].append({"question": question, "prompt_ids": ids, "runs": record})
    with torch.enable_grad():
        meta["training"] = train_looped(reference, tensors)
    (out / "golden.json").write_text(json.dumps(meta) + "\n")
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, out / "golden.safetensors")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{name}: {loops} loops over {count} positions, {size / 1e3:.0f} kB")


def train_looped(reference, tensors, weight=0.05):
    """Cross entropy of the answers, and of each step's tokens at its block in the last pass."""

    def encode(text):
        return reference.tokenizer.encode(text, add_special_tokens=False).ids

    items, answers, steps, counts = [], 0.0, 0.0, [0, 0]
    for question, chain, gold in ((QUESTIONS[0], ["3*4", "12"], "12"), (QUESTIONS[1], ["7"], "7")):
        ids = reference.prompt_ids(question)
        step_ids = [encode(step)[: reference.block_width] for step in chain]
        targets = [*encode("### " + gold), reference.id(reference.eos_text)]
        embeddings, _ = loop(reference, ids, 0)
        fed = reference.embed(reference.end + targets[:-1])
        hidden = reference.hidden(torch.cat([embeddings, fed], 1))[0]
        logits = reference.logits(hidden[-len(targets) :])
        answers += F.cross_entropy(logits, torch.tensor(targets), reduction="sum")
        counts[0] += len(targets)
        for block, tokens in enumerate(step_ids):
            first = len(ids) - 1 + block * reference.block_width
            logits = reference.logits(hidden[first : first + len(tokens)])
            steps += F.cross_entropy(logits, torch.tensor(tokens), reduction="sum")
            counts[1] += len(tokens)
        items.append({"prompt_ids": ids, "step_ids": step_ids, "target_ids": targets})
    answers, steps = answers / counts[0], steps / counts[1]
    (answers + weight * steps).backward()
    for name, parameter in reference.model.named_parameters():
        if parameter.grad is not None:
            tensors[f"training.grad.{name}"] = parameter.grad.clone()
    loss = (answers + weight * steps).item()
    parts = {"answer": answers.item(), "steps": steps.item(), "weight": weight}
    return {"items": items, **parts, "loss": loss}


def write_checkpoint(reference, out):
    out.mkdir(parents=True, exist_ok=True)
    for name, tensors in reference.weights().items():
        tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
        save_file(tensors, out / name, metadata={"format": "pt"})
    config = json.dumps(reference.config_json(), default=str)
    (out / "config.json").write_text(config + "\n")
    (out / "tokenizer.json").write_text(reference.tokenizer.to_str() + "\n")
    side = {"eos_token": reference.eos_text}
    (out / "tokenizer_config.json").write_text(json.dumps(side) + "\n")


def silence(reference):
    """No trained model says its placeholder or its markers; make sure that these do not either."""
    with torch.no_grad():
        for text in ("<|latent|>", "<START>", "<END>"):
            if reference.id(text) is not None and text != "<END>":
                reference.model.get_input_embeddings().weight[reference.id(text)] *= 0.01


def write(name, reference, out, generator):
    if hasattr(reference, "model"):
        silence(reference)
    write_checkpoint(reference, out / "checkpoint")
    limit = reference.fixed or reference.at_most
    meta = {
        "family": name,
        "latents_exactly": reference.fixed,
        "latents_at_most": reference.at_most,
        "n": ROWS,
        "p": DROPOUT,
        "std": NOISE,
        "end_ids": reference.end,
        "eos_id": reference.id(reference.eos_text),
        "max_new_tokens": ANSWER,
        "questions": [],
    }
    tensors = {}
    for i, question in enumerate(QUESTIONS):
        ids = reference.prompt_ids(question)
        shape = (limit, LAYERS, 2, ROWS, WIDTH)
        keep = (torch.rand(shape, generator=generator) >= DROPOUT).float()
        noise = NOISE * torch.randn((limit, ROWS, WIDTH), generator=generator)
        tensors[f"{i}.keep"] = keep.to(torch.uint8)
        tensors[f"{i}.noise"] = noise
        tensors[f"{i}.prompt_hidden"] = reference.hidden(reference.embed(ids))[0]
        runs = runs_of(reference, ids, keep, noise)
        for mode, rows in runs.items():
            for r, row in enumerate(rows):
                if row["thoughts"]:
                    tensors[f"{i}.{mode}.{r}.latents"] = torch.stack(row["thoughts"])
                tensors[f"{i}.{mode}.{r}.first_logits"] = row["first"]
        record = {
            mode: [
                {
                    "lengths": len(row["thoughts"]),
                    "answer_ids": row["tokens"],
                    "text": row["text"],
                }
                for row in rows
            ]
            for mode, rows in runs.items()
        }
        meta["questions"].append({"question": question, "prompt_ids": ids, "runs": record})
    (out / "golden.json").write_text(json.dumps(meta) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / "golden.safetensors")
    lengths = sorted(
        {row["lengths"] for q in meta["questions"] for rows in q["runs"].values() for row in rows}
    )
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{name}: {lengths} thoughts, {size / 1e3:.0f} kB")


FAMILIES = {
    "coconut-gpt2": Gpt2,
    "codi-gpt2": Codi,
    "colar-llama": Colar,
    "latent-sft-llama": LatentSft,
    "rot-qwen3vl": Rot,
    "slpo-gpt2": Slpo,
    "adaptive-llama": Adaptive,
    "soft-thinking-llama": SoftThinking,
    "lotus-gpt2": LotusGpt2,
    "lotus-llama": LotusLlama,
}


def main():
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(FAMILIES)
    torch.set_num_threads(1)
    for name in names:
        generator = torch.Generator().manual_seed(7)
        torch.manual_seed(7)
        with torch.no_grad():
            reference = FAMILIES[name](generator)
            writes = write_looped if isinstance(reference, Lotus) else write
            writes(name, reference, out / name, generator)


if __name__ == "__main__":
    main()
