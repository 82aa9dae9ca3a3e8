"""PyTorch on an NVIDIA GPU, doing the work of `latent-tts bench --train METHOD --shape smollm2 [--lora RANK]`.

A step is forward, backward, clipping by the norm of all gradients, AdamW (fused on a GPU), and the loss brought to the host.
The shape is SmolLM2-135M's (Llama), the weights are random. Eager mode, plain modules, PyTorch's own
attention and RMS norm; float32 weights under torch.autocast(bfloat16), as most train. Sequences have equal lengths, so
nothing is padded. Thoughts are fed with their gradient through the cache of keys and values; the last one goes with the
tail, in one pass, as in the engine.

  cot      prompt, steps and answer in one pass; cross entropy of steps and answer.
  coconut  prompt; thoughts, each the hidden state before it; a token that ends them and the answer, whose cross entropy
           is the loss.
  codi     coconut with a projector that makes the thoughts, and a teacher: the pass of cot, with its loss, by the same
           weights. At one position of the answer all hidden states are drawn to the teacher's. The published code passes
           the teacher twice, once without gradients for those states; here, as in the engine, once.
  simcot   codi, and a second decoder of the same shape, all of it trained, that reads each step's tokens after the thought
           that stands for it. The thought after the last is made and not read, as there are fewer steps than thoughts.
  colar    prompt, a separator, steps compressed two tokens to a vector, separator and answer in one pass; cross entropy
           from the prompt's last position on; a head gives a Gaussian over each vector's successor.

With --lora RANK adapters on the seven linear maps of each block, and what stands beside the model, are trained; the rest is
frozen: y = W x + alpha / rank B A x, as peft computes it. --frozen bfloat16 keeps the frozen weights in that type, as
CODI's code does: no casts of them, and the residual stream is bfloat16, which is float32 in the engine.

The vocabulary is the bench's, without the tokens that training adds: --added-tokens 3 gives logits an odd side, as resized
embeddings have it, and products with one are slower on a GPU.

A line of JSON for each method and tuning: the best and the median of --repeat steps, and the largest memory that tensors
took (max_memory_allocated).

  python pytorch_methods_peer.py --device cuda --lora 128 --repeat 10
  python pytorch_methods_peer.py --check
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

# layers, width, heads, heads of keys and values, inner width, vocabulary
SHAPES = {
    "smollm2": (30, 576, 9, 3, 1536, 49152),
    "llama-1b": (16, 2048, 32, 8, 8192, 128256),
    "tiny": (2, 32, 4, 2, 48, 97),
}
THETA, EPS = 100_000.0, 1e-5
GAMMA = 20.0  # the weight of CODI's distillation
LATENT_HEAD = 2048  # the inner width of CoLaR's
ALPHA = 32.0
WARM_UP = 2


def dense(size, out, bias=False):
    layer = nn.Linear(size, out, bias=bias)
    nn.init.normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class LoraLinear(nn.Module):
    """A frozen linear map and its adapter."""

    def __init__(self, size, out, rank, p):
        super().__init__()
        self.base = dense(size, out).requires_grad_(False)
        self.lora_A, self.lora_B = dense(size, rank), nn.Linear(rank, out, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(p) if p > 0 else nn.Identity()
        self.scale = ALPHA / rank

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(self.dropout(x))) * self.scale


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, EPS)


def rotated(x, cos, sin):
    """x [rows, heads, n, head]; cos and sin [n, head]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Block(nn.Module):
    def __init__(self, shape, linear):
        super().__init__()
        _, width, self.heads, self.kv_heads, inner, _ = SHAPES[shape]
        kv = self.kv_heads * (width // self.heads)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q_proj, self.o_proj = linear(width, width), linear(width, width)
        self.k_proj, self.v_proj = linear(width, kv), linear(width, kv)
        self.gate_proj, self.up_proj, self.down_proj = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x, past, rope, mask):
        """x [rows, n, width]; past: keys and values before, [rows, kv heads, length, head] each, or None."""
        rows, n, width = x.shape
        y = self.norm1(x)
        heads = lambda part, count: part.view(rows, n, count, -1).transpose(1, 2)
        q, k, v = heads(self.q_proj(y), self.heads), heads(self.k_proj(y), self.kv_heads), heads(self.v_proj(y), self.kv_heads)
        cos, sin = (part.to(q.dtype) for part in rope)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        kv = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        y = self.attention(q, *kv, mask, past is None)
        x = x + self.o_proj(y.transpose(1, 2).reshape(rows, n, width))
        y = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y)), kv

    def attention(self, q, k, v, mask, is_first):
        if mask is None:  # as in transformers: kernels that take a mask want all heads
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_first, enable_gqa=True)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))


class Decoder(nn.Module):
    """A Llama whose language-model head is its embedding table. `linear(size, out)` makes the maps of its blocks."""

    def __init__(self, shape, vocab, positions, linear=dense):
        super().__init__()
        layers, self.width, heads, *_ = SHAPES[shape]
        self.wte = nn.Embedding(vocab, self.width)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(shape, linear) for _ in range(layers))
        self.norm = RmsNorm(self.width)
        head = self.width // heads
        angles = torch.outer(torch.arange(positions), THETA ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, past=None, states_at=None):
        """x [rows, n, width] -> hidden states after the final norm, the keys and values of all positions so far, and of
        position `states_at` the inputs of all blocks and the last hidden state."""
        x = x.to(self.wte.weight.dtype)
        n, before = x.shape[1], past[0][0].shape[2] if past else 0
        rope = self.cos[before : before + n], self.sin[before : before + n]
        mask = None  # a single position sees all, a first pass is causal
        if past and n > 1:
            mask = torch.full((n, before + n), float("-inf"), device=x.device).triu(before + 1)
        kv, states = [], []
        for block, own in zip(self.blocks, past or [None] * len(self.blocks)):
            if states_at is not None:
                states.append(x[:, states_at])
            x, made = block(x, own, rope, mask)
            kv.append(made)
        hidden = self.norm(x)
        return hidden, kv, [*states, hidden[:, states_at]] if states else None

    def cross_entropy(self, hidden, targets):
        return F.cross_entropy(F.linear(hidden, self.wte.weight).flatten(0, 1).float(), targets.flatten())


class Projector(nn.Sequential):
    """CODI's: hidden state to thought."""

    def __init__(self, width):
        super().__init__(dense(width, width, True), nn.GELU(), dense(width, width, True), nn.LayerNorm(width))


class LatentHead(nn.Module):
    """CoLaR's: hidden state to the mean and the logarithm of the deviation of the next vector."""

    def __init__(self, width, inner):
        super().__init__()
        self.fc = nn.Sequential(dense(width, inner, True), nn.GELU(), dense(inner, inner, True), nn.LayerNorm(inner))
        self.mean, self.log_std = dense(inner, width, True), dense(inner, width, True)

    def forward(self, hidden):
        x = self.fc(hidden)
        return self.mean(x), self.log_std(x)


class Method(nn.Module):
    """A decoder, what a method has beside it, and the loss of a batch."""

    def __init__(self, args, tuning):
        super().__init__()
        vocab, positions = vocabulary(args), args.prompt + args.thoughts + args.cot + args.answer + 8
        linear = dense
        if tuning == "lora":
            linear = lambda size, out: LoraLinear(size, out, args.lora, args.lora_dropout)
        self.decoder = Decoder(args.shape, vocab, positions, linear)
        self.thoughts_made = []  # of the last batch, for --check
        if tuning == "lora":
            for name, parameter in self.decoder.named_parameters():
                if "lora_" not in name:
                    parameter.requires_grad_(False)
                    parameter.data = parameter.data.to(getattr(torch, args.frozen))
        self.build(args)

    def build(self, args):
        """What stands beside the decoder."""

    def thought(self, hidden):
        return hidden

    def embed(self, tokens):
        return self.decoder.wte(tokens)

    def explicit(self, batch, states_at=None):
        """One pass over prompt, steps and answer; the loss of steps and answer, and hidden states."""
        tokens = torch.cat([batch["prompt"], batch["cot"], batch["answer"]], 1)
        hidden, _, states = self.decoder(self.embed(tokens[:, :-1]), states_at=states_at)
        targets = tokens[:, batch["prompt"].shape[1] :]
        return self.decoder.cross_entropy(hidden[:, -targets.shape[1] :], targets), states

    def latent(self, batch, states_at=None):
        """Prompt, thoughts, answer; the loss of the answer, hidden states, and the hidden state at the last thought.
        `states_at` counts the answer's tokens."""
        hidden, kv, _ = self.decoder(self.embed(batch["prompt"]))
        thoughts = [self.thought(hidden[:, -1:])]
        for _ in range(batch["thoughts"] - 1):
            hidden, kv, _ = self.decoder(thoughts[-1], kv)
            thoughts.append(self.thought(hidden))
        fed = self.embed(torch.cat([batch["end"], batch["answer"][:, :-1]], 1))
        at = None if states_at is None else 2 + states_at
        hidden, _, states = self.decoder(torch.cat([thoughts[-1].to(fed.dtype), fed], 1), kv, at)
        self.thoughts_made = thoughts
        return self.decoder.cross_entropy(hidden[:, 1:], batch["answer"]), states, hidden[:, :1]


class Cot(Method):
    def forward(self, batch):
        return self.explicit(batch)[0]


class Coconut(Method):
    def forward(self, batch):
        return self.latent(batch)[0]


class Codi(Method):
    def build(self, args):
        self.projector = Projector(self.decoder.width)

    def thought(self, hidden):
        return self.projector(hidden)

    def losses(self, batch):
        """The sum of CODI's losses, and the hidden state at the last thought."""
        at = batch["compared_at"]
        teacher_loss, teacher = self.explicit(batch, batch["prompt"].shape[1] + batch["cot"].shape[1] + at)
        student_loss, student, last = self.latent(batch, at)
        student, teacher = (torch.stack([x.float() for x in states]) for states in (student, teacher))  # layers + 1, rows, width
        teacher = teacher.detach()
        distance = F.smooth_l1_loss(student, teacher, reduction="none").mean((1, 2)) / teacher.std((1, 2))
        return student_loss + teacher_loss + GAMMA * distance.mean(), last

    def forward(self, batch):
        return self.losses(batch)[0]


class SimCot(Codi):
    def build(self, args):
        super().build(args)
        self.step_decoder = Decoder(args.shape, vocabulary(args), args.step + 1)

    def forward(self, batch):
        loss, last = self.losses(batch)
        self.thought(last)  # not fed, and no step is left for it
        steps = batch["steps"]  # rows, steps, tokens with eos
        tokens = self.embed(steps[:, :, :-1])
        thoughts = torch.stack(self.thoughts_made[: steps.shape[1]], 1).to(tokens.dtype)  # rows, steps, 1, width
        hidden, _, _ = self.step_decoder(torch.cat([thoughts, tokens], 2).flatten(0, 1))
        return loss + self.step_decoder.cross_entropy(hidden, steps.flatten(0, 1))


class Colar(Method):
    def build(self, args):
        self.latent_head = LatentHead(self.decoder.width, LATENT_HEAD if args.shape != "tiny" else 64)
        self.embedding_std = self.decoder.wte.weight.std().item()

    def forward(self, batch):
        cot, separator, answer = batch["cot"], batch["end"], batch["answer"]
        speed = batch["speed"]
        groups = self.embed(cot.unflatten(1, (-1, speed))).sum(2) / (speed**0.5 + 1e-5)
        first = self.embed(separator) / (1 + 1e-5)
        completion = torch.cat([separator, answer], 1)
        x = torch.cat([self.embed(batch["prompt"]), first, groups, self.embed(completion[:, :-1])], 1)
        hidden, _, _ = self.decoder(x)
        targets = torch.cat([separator, cot[:, ::speed], completion], 1)
        start, count = batch["prompt"].shape[1], 1 + groups.shape[1]
        loss = self.decoder.cross_entropy(hidden[:, start - 1 :], targets)
        mean, log_std = self.latent_head(hidden[:, start : start + count])
        sample = mean.float() + log_std.float().exp() * torch.randn(mean.shape, device=mean.device)
        successor = x[:, start + 1 : start + count + 1].detach().float() / self.embedding_std
        return loss + F.mse_loss(sample, successor)


METHODS = {"cot": Cot, "coconut": Coconut, "codi": Codi, "simcot": SimCot, "colar": Colar}


def vocabulary(args):
    return SHAPES[args.shape][-1] + args.added_tokens


def made_up(args):
    tokens = lambda *size: torch.randint(vocabulary(args), (args.batch, *size), device=args.device)
    batch = {"prompt": tokens(args.prompt), "cot": tokens(args.cot), "answer": tokens(args.answer), "end": tokens(1)}
    batch |= {"steps": tokens(args.steps, args.step + 1), "thoughts": args.thoughts, "speed": args.speed}
    return batch | {"compared_at": min(3, args.answer - 2)}


class Trainer:
    """A model, its optimizer, and what a step is."""

    def __init__(self, args, method, tuning):
        self.device = args.device
        torch.manual_seed(0)
        with torch.device(args.device):
            self.model = METHODS[method](args, tuning)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in self.trained if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in self.trained if p.dim() <= 1], "weight_decay": 0.0},
        ]
        fused = self.device == "cuda" or None
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-4, betas=(0.9, 0.999), eps=1e-8, fused=fused)

    def step(self, batch):
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.thoughts_made = []
        return loss.item()


def measure(args, method, tuning):
    cuda = args.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(args, method, tuning)
    batch = made_up(args)
    losses = [trainer.step(batch) for _ in range(WARM_UP)]
    seconds = []
    for _ in range(args.repeat):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        losses.append(trainer.step(batch))
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    best, median = min(seconds), statistics.median(seconds)
    result = {"work": method, "tuning": tuning, "precision": "autocast", "vocab": vocabulary(args)}
    if tuning == "lora":
        result |= {"rank": args.lora, "lora_dropout": args.lora_dropout, "frozen": args.frozen}
    result |= {"steps_per_s": 1 / best, "median_steps_per_s": 1 / median, "ms_per_step": 1e3 * best, "median_ms": 1e3 * median}
    result |= {"sequences_per_s": args.batch / best, "batch": args.batch, "first_loss": losses[0], "last_loss": losses[-1]}
    result |= {"trained_parameters": sum(p.numel() for p in trainer.trained)}
    result |= {"peak_mib": torch.cuda.max_memory_allocated() / 2**20 if cuda else None}
    return result | {"torch": torch.__version__, "device": torch.cuda.get_device_name() if cuda else "cpu"}


def whole_latent(self, batch, states_at=None):
    """`Method.latent` without a cache: every pass is over the whole sequence."""
    x = self.embed(batch["prompt"])
    self.thoughts_made = []
    for _ in range(batch["thoughts"]):
        self.thoughts_made.append(self.thought(self.decoder(x)[0][:, -1:]))
        x = torch.cat([x, self.thoughts_made[-1]], 1)
    x = torch.cat([x, self.embed(torch.cat([batch["end"], batch["answer"][:, :-1]], 1))], 1)
    last = batch["prompt"].shape[1] + batch["thoughts"] - 1
    hidden, _, states = self.decoder(x, states_at=None if states_at is None else last + 2 + states_at)
    return self.decoder.cross_entropy(hidden[:, last + 1 :], batch["answer"]), states, hidden[:, last : last + 1]


def gradients(model, batch):
    """The loss, every parameter's gradient, and those of the thoughts."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)  # the noise of CoLaR's loss
    loss = model(batch)
    for thought in model.thoughts_made:
        thought.retain_grad()
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters()}, [t.grad for t in model.thoughts_made]


def is_trained(name, tuning):
    return tuning == "full" or "lora_" in name or not name.startswith("decoder.")


def check_method(args, method, tuning):
    """Finite losses; gradients for what is trained and nothing else; those of whole sequences without a cache."""
    torch.manual_seed(0)
    model, batch = METHODS[method](args, tuning), made_up(args)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)  # zeros would give none to the other half
    loss, own, of_thoughts = gradients(model, batch)
    assert torch.isfinite(torch.tensor(loss)), (method, tuning)
    for name, gradient in own.items():
        trained = is_trained(name, tuning)
        assert (gradient is not None) == trained, f"{method}, {tuning}: {name} is {'not ' * trained}trained"
        assert not trained or gradient.abs().max() > 0, f"{method}, {tuning}: the gradient of {name} is zero"
    assert len(of_thoughts) == (args.thoughts if isinstance(model, (Coconut, Codi)) else 0)
    assert all(gradient.abs().amax((1, 2)).min() > 0 for gradient in of_thoughts)
    error = None
    if of_thoughts:
        model.latent = whole_latent.__get__(model)
        whole_loss, whole, _ = gradients(model, batch)
        pairs = [(x, whole[name]) for name, x in own.items() if x is not None]
        error = max((x - y).abs().max().item() / max(y.abs().max().item(), 1e-3) for x, y in pairs)
        assert abs(loss - whole_loss) < 1e-4 * abs(loss) and error < 1e-4, (loss, whole_loss, error)
    rounded = [Trainer(args, method, tuning).step(batch) for args.frozen in ("float32", "bfloat16")]
    assert all(abs(x - y) < 0.2 for x, y in zip(rounded, rounded[1:])), rounded
    args.frozen = "float32"
    return loss, sum(g is not None for g in own.values()), len(own), error


def check(args):
    sizes = dict(shape="tiny", batch=6, prompt=5, thoughts=4, cot=6, answer=5, steps=3, step=4, lora=4, lora_dropout=0.0)
    vars(args).update(sizes, frozen="float32", device="cpu")
    for method in METHODS:
        for tuning in ("full", "lora"):
            loss, trained, of, error = check_method(args, method, tuning)
            line = f"{method:8} {tuning:5} loss {loss:8.4f}; {trained:3} of {of:3} tensors are trained"
            if error is not None:
                line += f"; against whole sequences gradients differ by {error:.1e} of their tensor's largest"
            print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    sizes = dict(batch=256, prompt=72, thoughts=6, cot=32, answer=16, steps=3, step=10, speed=2, repeat=3)
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank")
    parser.add_argument("--lora-dropout", type=float, default=0.0)
    parser.add_argument("--frozen", choices=["float32", "bfloat16"], default="float32", help="the type of frozen weights")
    parser.add_argument("--added-tokens", type=int, default=0, help="tokens beyond the shape's vocabulary")
    parser.add_argument("--check", action="store_true", help="check losses and gradients at a tiny shape, and exit")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    if args.check:
        return check(args)
    for method in args.work:
        print(json.dumps(measure(args, method, "lora" if args.lora else "full")), flush=True)


if __name__ == "__main__":
    main()
