"""PyTorch on a CPU or an NVIDIA GPU, doing the work of `latent-tts bench --train ...`, so that the two can be compared.

A step is forward, backward, clipping by the norm of all gradients, AdamW (fused on a GPU), and the loss brought to the host. The
shape is that of GPT-2 124M, SmolLM2 135M or Llama 3.2 1B, the weights are those that training begins with. Plain modules, PyTorch's
own attention.

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

Each in one or more ways to run it (--run):

  eager            Operation by operation.
  compile          torch.compile, default mode: the block, which all layers share, is compiled once for each length, and so is the
                   head with its loss; --whole compiles the loss of a batch as one graph instead, which takes minutes.
  reduce-overhead  The same with mode="reduce-overhead": CUDA graphs of what is compiled.
  graph            The whole step, optimizer included, captured once as a CUDA graph and replayed.
  compile-graph    The same of the compiled step.

Compilation and capture are outside of what is timed. A way that fails, for instance where there is no C compiler for Triton, gives
a line with its error in place of times, and the others go on. With --rounds N all ways take turns N times in one process, which
compiles once; with --ours BINARY the engine takes its turn too, at the same sizes.

FLOPs are counted as the engine counts them: those of the way there, three times. `peak_mib` is the most memory that tensors took
(max_memory_allocated; a CUDA graph's are in it).

  python pytorch_train_peer.py --device cuda --repeat 10
  python pytorch_train_peer.py --device cuda --shape smollm2 --run master:eager master:compile --rounds 5 --ours target/release/latent-tts
  python pytorch_train_peer.py --check
"""

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F
from torch import nn

import pytorch_methods_peer as llama

# GPT-2: layers, heads, width, vocabulary. The others are Llamas, in the other peer's file.
GPT2_SHAPES = {"gpt2": (12, 12, 768, 50257), "tiny-gpt2": (2, 4, 32, 97)}
LLAMA_SHAPES = {"smollm2": "smollm2", "llama-1b": "llama-1b", "tiny-llama": "tiny"}
SHAPES = [*GPT2_SHAPES, *LLAMA_SHAPES]
RUNS = ["eager", "compile", "reduce-overhead", "graph", "compile-graph"]
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


class Gpt2(nn.Module):
    def __init__(self, shape, p):
        super().__init__()
        layers, heads, self.width, self.vocab = GPT2_SHAPES[shape]
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

    def token_loss(self, hidden, targets):
        return F.cross_entropy(F.linear(hidden, self.wte.weight).flatten(0, 1).float(), targets.flatten())


class Llama(llama.Decoder):
    """The other peer's decoder with the interface of this file's."""

    def __init__(self, shape):
        super().__init__(LLAMA_SHAPES[shape], llama.SHAPES[LLAMA_SHAPES[shape]][-1], CONTEXT)
        self.score = dense(self.width, 1)

    def forward(self, x, past=None):
        return super().forward(x, past)[:2]

    def token_loss(self, hidden, targets):
        return self.cross_entropy(hidden, targets)


def decoder(shape, p):
    return Gpt2(shape, p) if shape in GPT2_SHAPES else Llama(shape)


def reasoner_loss(model, batch):
    prompt, tail, thoughts = batch["prompt"], batch["tail"], batch["thoughts"]
    hidden, kv = model(model.wte(prompt))
    hidden = hidden[:, -1:]
    for _ in range(thoughts - 1):
        hidden, kv = model(hidden, kv)
    fed = model.wte(tail[:, :-1])
    hidden, _ = model(torch.cat([hidden.to(fed.dtype), fed], 1), kv)
    return model.token_loss(hidden[:, 1:], tail[:, 1:])


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


def compiled(model, loss, mode, whole):
    """The loss of a batch with its parts compiled: the model's blocks and its token loss are replaced in place.

    The compiled block is one function for all layers, whose weights are its inputs, with a graph for each length."""
    limits = [name for name in ("recompile_limit", "cache_size_limit") if hasattr(torch._dynamo.config, name)]
    for name in limits:  # of graphs for a function: more than the lengths that a thought sees
        setattr(torch._dynamo.config, name, 64)
    options = {"mode": mode, "dynamic": False}
    if whole:
        return torch.compile(loss, **options)
    for block in model.blocks:
        block.compile(**options)
    model.token_loss = torch.compile(model.token_loss, **options)
    return loss


class Trainer:
    """A model in a precision, its optimizer, and what a step is."""

    def __init__(self, args, work, precision, run="eager"):
        self.device, self.loss, self.precision, self.run = args.device, LOSSES[work], precision, run
        torch.manual_seed(0)
        with torch.device(args.device):
            self.model = decoder(args.shape, args.dropout)
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
        cuda = self.device == "cuda"
        settings = {"fused": cuda or None, "capturable": cuda and run.endswith("graph")}
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, **settings)
        if run != "eager" and run != "graph":
            mode = "reduce-overhead" if run == "reduce-overhead" else "default"
            self.loss = compiled(self.model, self.loss, mode, args.whole)
        self.graph = None

    def step(self, batch):
        """A step, and its loss on the host."""
        if self.graph is not None:
            self.graph.replay()
            return self.captured_loss.item()
        if self.run == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        return self.queue(batch).item()

    def capture(self, batch):
        """Captures a step on this batch; further steps replay it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries and the allocator are warm before the capture, as PyTorch asks for
            for _ in range(3):
                self.queue(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.captured_loss = self.queue(batch)
        self.graph = graph

    def queue(self, batch):
        """Queues a step; its loss stays on the device."""
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
        return loss.detach()


def sizes(shape):
    """Width and vocabulary."""
    if shape in GPT2_SHAPES:
        return GPT2_SHAPES[shape][2:]
    _, width, _, _, _, vocab = llama.SHAPES[LLAMA_SHAPES[shape]]
    return width, vocab


def made_up(args):
    width, vocab = sizes(args.shape)
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
    width, vocab = sizes(args.shape)
    if args.shape in GPT2_SHAPES:
        layers, products = GPT2_SHAPES[args.shape][0], 12 * width**2
    else:
        layers, _, heads, kv_heads, inner, _ = llama.SHAPES[LLAMA_SHAPES[args.shape]]
        products = 2 * width * (width + width * kv_heads // heads) + 3 * width * inner
    of = lambda first, end: sum(layers * 2 * (products + 2 * width * (i + 1)) for i in range(first, end))
    if work == "reasoner":
        length = args.prompt + args.thoughts + args.target
        return args.batch * length, 3 * args.batch * (of(0, length) + args.target * 2 * width * vocab)
    prompts = args.batch if work == "reward" else args.batch // args.samples
    positions = prompts * args.prompt + args.batch * args.thoughts
    return positions, 3 * (prompts * of(0, args.prompt) + args.batch * of(args.prompt, args.prompt + args.thoughts))


def prepared(args, work, precision, run, batch):
    """A trainer after its first steps, compilation and capture, the loss of the first step, and the seconds that this took."""
    began = time.perf_counter()
    trainer = Trainer(args, work, precision, run)
    first = [trainer.step(batch) for _ in range(WARM_UP)][0]
    if run.endswith("graph"):
        trainer.capture(batch)
        trainer.step(batch)
    return trainer, first, time.perf_counter() - began


def measure(args, work, way, kept):
    """One line: a work in one way. A trainer with CUDA graphs of what is compiled is kept, as its graphs would stay anyway."""
    precision, run = way
    cuda, batch, others = args.device == "cuda", made_up(args), 0
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        others = torch.cuda.memory_allocated()  # of the trainers that are kept
    trainer, first, warm_up_s, peak = kept.get(way) or (*prepared(args, work, precision, run, batch), None)
    seconds = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        trainer.step(batch)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    (positions, flops), best = counted(args, work), min(seconds)
    peak = peak or (cuda and (torch.cuda.max_memory_allocated() - others) / 2**20) or None
    if run == "reduce-overhead":
        kept[way] = trainer, first, warm_up_s, peak
    result = {"ms_per_step": 1e3 * best, "median_ms": 1e3 * statistics.median(seconds), "warm_up_s": warm_up_s}
    result |= {"peak_mib": peak}
    result |= {"sequences_per_s": args.batch / best, "positions_per_s": positions / best, "flops": flops, "loss": first}
    return result | {"torch": torch.__version__, "device": torch.cuda.get_device_name() if cuda else "cpu"}


def ours(args, work):
    """The engine's line for the same work."""
    sizes = [f"--{name}={getattr(args, name)}" for name in ("batch", "samples", "prompt", "thoughts", "target", "repeat")]
    command = [args.ours, "bench", "--device", args.device, "--train", work.removesuffix("-shared"), "--shape", args.shape]
    done = subprocess.run([*command, *sizes, "--quiet", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    line = json.loads(done.stdout)
    return line | {"peak_mib": line["gpu_peak_memory"] and line["gpu_peak_memory"] / 2**20}


def guarded(measured, *given):
    """A measurement, or the error of what does not work here."""
    try:
        return measured(*given)
    except Exception as error:  # whatever a compiler or a capture raises
        reason = (str(error).strip().splitlines() or [""])[-1]
        return {"error": f"{type(error).__name__}: {reason}"[:300]}


def rounds(args, work):
    """All ways to do a work, in turns."""
    kept = {}  # trainers, by way
    for turn in range(args.rounds):
        place = {"round": turn + 1, "shape": args.shape, "work": work}
        if args.ours:
            line = place | {"precision": "ours", "run": "ours"} | guarded(ours, args, work)
            print(json.dumps(line), flush=True)
        for way in args.ways:
            line = place | dict(zip(("precision", "run"), way)) | guarded(measure, args, work, way, kept)
            print(json.dumps(line), flush=True)
    kept.clear()
    if any(run != "eager" for _, run in args.ways):
        torch._dynamo.reset()


def check(args):
    """Losses and gradients must be those of whole sequences without a cache; compiled steps those of eager ones."""
    args.batch, args.samples, args.prompt, args.thoughts, args.target = 6, 3, 5, 3, 4
    for args.shape in [args.shape] if args.shape.startswith("tiny") else ["tiny-gpt2", "tiny-llama"]:
        check_losses(args)
        for work in args.work:
            check_compiled(args, work)


def check_compiled(args, work):
    """Three losses of a training and the gradients of the first, in every way that a CPU can run, are those of eager steps."""
    def trained(run, whole):
        torch._dynamo.reset()
        args.whole = whole
        trainer, batch = Trainer(args, work, "single", run), made_up(args)
        trainer.loss(trainer.model, batch).backward()
        gradients = [p.grad.clone() for p in trainer.learned if p.grad is not None]
        trainer.optimizer.zero_grad(set_to_none=True)
        return [trainer.step(batch) for _ in range(3)], gradients

    losses, gradients = trained("eager", False)
    for run, whole in ("compile", False), ("reduce-overhead", False), ("compile", True):
        own_losses, own = trained(run, whole)
        # That of a score's bias is zero but for rounding: all trajectories have it.
        error = max((x - y).abs().max().item() / max(y.abs().max().item(), 1e-2) for x, y in zip(own, gradients, strict=True))
        name = f"{args.shape} {work} {run}{' --whole' * whole}"
        print(f"{name:45} loss {own_losses[-1]:.6f} and {losses[-1]:.6f}; largest error of a gradient {error:.1e}", flush=True)
        assert max(abs(a - b) for a, b in zip(losses, own_losses)) < 1e-4 and error < 1e-4, name


def check_losses(args):
    torch.manual_seed(0)
    model, batch = decoder(args.shape, 0.0), made_up(args)

    def whole(model, batch):
        x = model.wte(batch["prompt"])
        for _ in range(args.thoughts):
            x = torch.cat([x, model(x)[0][:, -1:]], 1)
        x = torch.cat([x, model.wte(batch["tail"][:, :-1])], 1)
        return model.token_loss(model(x)[0][:, -args.target :], batch["tail"][:, 1:])

    def gradients(loss):
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for name, one, other in ("reasoner", reasoner_loss, whole), ("reward-shared", shared_reward_loss, reward_loss):
        (a, da), (b, db) = gradients(one), gradients(other)
        error = max((x - y).abs().max().item() / max(y.abs().max().item(), 1e-3) for x, y in zip(da, db, strict=True))
        print(f"{args.shape:10} {name:15} loss {a:.6f} and {b:.6f}; largest error of a gradient, in parts of its tensor's largest: {error:.1e}")
        assert abs(a - b) < 1e-5 and error < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--precision", nargs="+", choices=["autocast", "master", "single"])
    parser.add_argument("--run", nargs="+", metavar="[PRECISION:]RUN", default=["eager"], help=f"the ways to run a step: {', '.join(RUNS)}")
    parser.add_argument("--whole", action="store_true", help="compile the loss of a batch as one graph")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name, default in dict(batch=256, samples=8, prompt=72, thoughts=6, target=16, repeat=3, rounds=1).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--ours", metavar="BINARY", help="a latent-tts, to be measured in every round too")
    parser.add_argument("--check", action="store_true", help="compare with whole sequences without a cache and compiled with eager steps, at tiny shapes (or the one of --shape), and exit")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(args.threads)
    if args.check:
        return check(args)
    if args.dropout and args.shape in LLAMA_SHAPES:
        parser.error("--dropout is GPT-2's; a Llama has none")
    precisions = args.precision or (["autocast", "master"] if cuda else ["single"])
    named = lambda run: [tuple(run.split(":", 1))] if ":" in run else [(precision, run) for precision in precisions]
    args.ways = [way for run in args.run for way in named(run)]
    for precision, run in args.ways:
        if run not in RUNS or precision not in ("autocast", "master", "single"):
            parser.error(f"--run {precision}:{run}: no such way; there are {', '.join(RUNS)}")
        if run.endswith("graph") and not cuda:
            parser.error("CUDA graphs are for --device cuda")
    for work in args.work:
        rounds(args, work)


if __name__ == "__main__":
    main()
