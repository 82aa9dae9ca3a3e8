"""PyTorch on a CPU or an NVIDIA GPU, doing the work of `latent-tts bench --train ...`, so that the two can be compared.

A step is forward, backward, clipping by the norm of all gradients, AdamW (fused on a GPU), and the loss brought to the host. The
shape is GPT-2 124M's, the weights are those that training begins with. Eager mode, plain modules, PyTorch's own attention.

  reasoner       A latent reasoner as COCONUT trains it: the prompt; T thoughts, each the hidden state before it, fed with
                 its gradient through the cache of keys and values; one token that ends them and the target's tokens,
                 whose cross entropy is the loss. The last thought goes with the tail, in one pass, as in the engine.
  reward         A reward model that compares trajectories: every sequence is a prompt and T given vectors in one pass, a
                 score is read at each vector, trajectories of a problem compete at each step. Nothing is shared.
  reward-shared  The same, but a prompt is passed once and its keys and values are repeated for its trajectories, as
                 the engine does it: what a careful user of PyTorch could write.

  autocast       float32 weights under torch.autocast(bfloat16), as most train.
  master         bfloat16 weights that compute, and float32 copies that AdamW changes: fewer casts. Residual stream and
                 gradients are bfloat16 then, which are float32 in the engine.
  single         float32 throughout; products are never rounded to TF32. The only one on a CPU.

FLOPs are counted as the engine counts them: those of the way there, three times.

  python pytorch_train_peer.py --device cuda --repeat 10
  python pytorch_train_peer.py --check
"""

import argparse
import json
import math
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {"gpt2": (12, 12, 768, 50257), "tiny": (2, 4, 32, 97)}  # layers, heads, width, vocabulary
CONTEXT = 1024
WARM_UP = 2


def dense(size, out, std=0.02):
    layer = nn.Linear(size, out)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


class Block(nn.Module):
    def __init__(self, width, heads, layers, p):
        super().__init__()
        self.heads, self.p, small = heads, p, 0.02 / math.sqrt(2 * layers)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = dense(width, 3 * width), dense(width, width, small)
        self.up, self.down = dense(width, 4 * width), dense(4 * width, width, small)

    def forward(self, x, past, mask):
        """x [rows, n, width]; past: keys and values before, [rows, heads, length, head] each, or None."""
        rows, n, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mask = mask if mask is None else mask.to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=past is None)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(rows, n, width)), self.p)
        y = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.p), (k, v)


class Decoder(nn.Module):
    def __init__(self, shape, p):
        super().__init__()
        layers, heads, self.width, self.vocab = SHAPES[shape]
        self.wte, self.wpe = nn.Embedding(self.vocab, self.width), nn.Embedding(CONTEXT, self.width)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(self.width, heads, layers, p) for _ in range(layers))
        self.norm = nn.LayerNorm(self.width)
        self.score = dense(self.width, 1)

    def forward(self, x, past=None):
        """x [rows, n, width] -> hidden states after the final norm, and the keys and values of all positions so far."""
        n, before = x.shape[1], past[0][0].shape[2] if past else 0
        x = x + self.wpe.weight[before : before + n]
        mask = None  # a single position sees all, a first pass is causal
        if past and n > 1:
            mask = torch.full((n, before + n), float("-inf"), device=x.device).triu(before + 1)
        kv = []
        for block, own in zip(self.blocks, past or [None] * len(self.blocks)):
            x, made = block(x, own, mask)
            kv.append(made)
        return self.norm(x), kv

    def logits(self, hidden):
        return F.linear(hidden, self.wte.weight)


def reasoner_loss(model, batch):
    prompt, tail, thoughts = batch["prompt"], batch["tail"], batch["thoughts"]
    hidden, kv = model(model.wte(prompt))
    hidden = hidden[:, -1:]
    for _ in range(thoughts - 1):
        hidden, kv = model(hidden, kv)
    fed = model.wte(tail[:, :-1])
    hidden, _ = model(torch.cat([hidden.to(fed.dtype), fed], 1), kv)
    return cross_entropy(model, hidden[:, 1:], tail[:, 1:])


def cross_entropy(model, hidden, targets):
    return F.cross_entropy(model.logits(hidden).flatten(0, 1).float(), targets.flatten())


def contrastive(model, hidden, batch):
    """Trajectories of a problem compete at each step for its labels; the mean over problems."""
    scores = model.score(hidden).float().view(batch["labels"].shape)  # problems, trajectories, thoughts
    return -(batch["labels"] * scores.log_softmax(1)).sum((1, 2)).mean()


def reward_loss(model, batch):
    vectors = batch["vectors"]
    prompts = batch["problem"].repeat_interleave(batch["labels"].shape[1], 0)
    x = torch.cat([model.wte(prompts), vectors.to(model.wte.weight.dtype)], 1)
    return contrastive(model, model(x)[0][:, prompts.shape[1] :], batch)


def shared_reward_loss(model, batch):
    _, kv = model(model.wte(batch["problem"]))
    kv = [[x.repeat_interleave(batch["labels"].shape[1], 0) for x in layer] for layer in kv]
    return contrastive(model, model(batch["vectors"].to(model.wte.weight.dtype), kv)[0], batch)


LOSSES = {"reasoner": reasoner_loss, "reward": reward_loss, "reward-shared": shared_reward_loss}


class Trainer:
    """A model in a precision, its optimizer, and what a step is."""

    def __init__(self, args, work, precision):
        self.device, self.loss, self.precision = args.device, LOSSES[work], precision
        torch.manual_seed(0)
        with torch.device(args.device):
            self.model = Decoder(args.shape, args.dropout)
        if work == "reasoner":
            self.model.score.requires_grad_(False)
        self.learned = self.masters = [p for p in self.model.parameters() if p.requires_grad]
        if precision == "master":
            self.masters = [nn.Parameter(p.detach().clone()) for p in self.learned]
            self.model.to(torch.bfloat16)
        groups = [
            {"params": [p for p in self.masters if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in self.masters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, fused=self.device == "cuda" or None)

    def step(self, batch):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "autocast"):
            loss = self.loss(self.model, batch)
        loss.backward()
        if self.precision == "master":
            for master, parameter in zip(self.masters, self.learned):
                master.grad = parameter.grad.float()
                parameter.grad = None
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.precision == "master":
            with torch.no_grad():
                torch._foreach_copy_(self.learned, self.masters)
        return loss.item()


def made_up(args):
    _, _, width, vocab = SHAPES[args.shape]
    problems = args.batch // args.samples
    tokens = lambda rows, n: torch.randint(vocab, (rows, n))
    batch = {
        "prompt": tokens(args.batch, args.prompt),
        "tail": tokens(args.batch, 1 + args.target),
        "problem": tokens(problems, args.prompt),
        "vectors": torch.randn(args.batch, args.thoughts, width),
        "labels": torch.randint(5, (problems, args.samples, args.thoughts)) / 4,
    }
    return {name: x.to(args.device) for name, x in batch.items()} | {"thoughts": args.thoughts}


def counted(args, work):
    """Positions of a step, and its FLOPs."""
    layers, _, width, vocab = SHAPES[args.shape]
    of = lambda first, end: sum(layers * 2 * (12 * width**2 + 2 * width * (i + 1)) for i in range(first, end))
    if work == "reasoner":
        length = args.prompt + args.thoughts + args.target
        return args.batch * length, 3 * args.batch * (of(0, length) + args.target * 2 * width * vocab)
    prompts = args.batch if work == "reward" else args.batch // args.samples
    positions = prompts * args.prompt + args.batch * args.thoughts
    return positions, 3 * (prompts * of(0, args.prompt) + args.batch * of(args.prompt, args.prompt + args.thoughts))


def measure(args, work, precision):
    trainer, batch = Trainer(args, work, precision), made_up(args)
    first = [trainer.step(batch) for _ in range(WARM_UP)][0]
    seconds = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        trainer.step(batch)
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    (positions, flops), best = counted(args, work), min(seconds)
    result = {"work": work, "precision": precision, "ms_per_step": 1e3 * best, "median_ms": 1e3 * statistics.median(seconds)}
    result |= {"sequences_per_s": args.batch / best, "positions_per_s": positions / best, "flops": flops, "loss": first}
    return result | {"torch": torch.__version__, "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu"}


def check(args):
    """Losses and gradients must be those of whole sequences without a cache."""
    args.shape, args.batch, args.samples, args.prompt, args.thoughts, args.target = "tiny", 6, 3, 5, 3, 4
    torch.manual_seed(0)
    model, batch = Decoder("tiny", 0.0), made_up(args)

    def whole(model, batch):
        x = model.wte(batch["prompt"])
        for _ in range(args.thoughts):
            x = torch.cat([x, model(x)[0][:, -1:]], 1)
        x = torch.cat([x, model.wte(batch["tail"][:, :-1])], 1)
        return cross_entropy(model, model(x)[0][:, -args.target :], batch["tail"][:, 1:])

    def gradients(loss):
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for name, one, other in ("reasoner", reasoner_loss, whole), ("reward-shared", shared_reward_loss, reward_loss):
        (a, da), (b, db) = gradients(one), gradients(other)
        error = max((x - y).abs().max().item() / max(y.abs().max().item(), 1e-3) for x, y in zip(da, db, strict=True))
        print(f"{name:15} loss {a:.6f} and {b:.6f}; largest error of a gradient, in parts of its tensor's largest: {error:.1e}")
        assert abs(a - b) < 1e-5 and error < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--precision", nargs="+", choices=["autocast", "master", "single"])
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name, default in dict(batch=256, samples=8, prompt=72, thoughts=6, target=16, repeat=3).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--check", action="store_true", help="compare with whole sequences without a cache, and exit")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(args.threads)
    if args.check:
        return check(args)
    for work in args.work:
        for precision in args.precision or (["autocast", "master"] if cuda else ["single"]):
            print(json.dumps(measure(args, work, precision)), flush=True)


if __name__ == "__main__":
    main()
