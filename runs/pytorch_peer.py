"""PyTorch on a CPU or an NVIDIA GPU, doing the work of `latent-tts bench --shape ...`, so that the two can be compared.

The work: Q questions of L prompt tokens; N trajectories per question, each of T thoughts (the hidden state after the
final norm is fed back as the next input) and A greedily decoded answer tokens. The shape is GPT-2 124M's, SmolLM2 135M's,
Llama 3.2 1B's or that of Qwen3-VL 2B's text tower, the weights are random: speed does not depend on them. Written with
bare torch operations, without module overhead; queries, keys and values are one product, the MLP's gates are another.

  same       Is the engine faster, or only its algorithm? The same algorithm: each prompt but its last token is prefilled
             once, clean, and shared by N forked rows; the last prompt token and thoughts 1..T-1 run with dropout on the
             outputs of attention and MLP (Llama and Qwen: of the MLP), fresh for every row; the last thought, the end
             token and the answer run clean; the LM head runs only for the A tokens that are read.
  reference  What is gained over the published Python code's algorithm? Prompts are repeated N times before prefill and
             prefilled with dropout; the LM head runs at every step; the cache grows by torch.cat.
  latency    How long does one question take? `same` with one question, one row and no dropout.

Weights and activations are all of one type, `--dtype`: by default float32 on a CPU, bfloat16 on a GPU. Float32 products
are never rounded to TF32. On a GPU every tensor stays there, tokens too, and the host waits only where a stage ends.
`--cache copied` copies prefixes to every row, where sharing them takes more operations: faster on a GPU at 1 x N.

`--run` names how the operations are run, one line each: `eager`, one by one; `compile`, the parts of a layer around
attention and the forked attention compiled by torch.compile in its default mode; `graph`, a whole run captured once as a
CUDA graph, with static buffers, and replayed; `compile-graph`, both. With `--rounds N` all of them take turns N times in
one process, which compiles once; with `--ours BINARY` the engine takes its turn too, at the same sizes. One that fails,
for instance where there is no C compiler for Triton, gives a line with its error, and the others go on.

On a CPU `--linear plain` is F.linear, `addmm` the same with weights stored [in, out] (faster for a single row), `packed`
oneDNN with weights reordered at load, as frozen compiled models do: not a public API, but the fastest float32 product
PyTorch has here, so a claim to beat PyTorch should hold against this one as well.

Passes over single positions: the last prompt token (in `reference` part of prefill), T thoughts, the end token, A - 1
answer tokens. `prefill_s` ends where rows are forked, `thoughts_s` includes the last thought's pass, `answer_s` starts
with the end token. Stage times and `trajectories_per_s` are the best repeat's, after one warm-up, on a GPU two. FLOPs are
those of the mode's own algorithm: two per multiply-add of weight products and attention.

  python pytorch_peer.py --mode same --questions 4 --samples 64 --repeat 5 --json
  python pytorch_peer.py --device cuda --mode same --questions 64 --samples 64 --repeat 10 --json
  python pytorch_peer.py --device cuda --shape llama-1b --points 64x64 1x32 1x32:copied --json
  python pytorch_peer.py --device cuda --points 64x64 --run eager compile-graph --rounds 5 --ours target/release/latent-tts --json
  python pytorch_peer.py --check
"""

import argparse
import copy
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Shape:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocab: int
    theta: float = 0.0  # of rotary positions; 0: learned ones, layer norms, GELU and biases, as GPT-2 has them
    qk_norm: bool = False

    @property
    def rotary(self):
        return self.theta > 0

    @property
    def qkv(self):
        return (self.heads + 2 * self.kv_heads) * self.head

    def products(self):
        """Multiply-adds of one position's weight products."""
        mlp = (3 if self.rotary else 2) * self.width * self.ffn
        return self.layers * (self.width * (self.qkv + self.heads * self.head) + mlp)


SHAPES = {
    "gpt2": Shape(12, 768, 12, 12, 64, 3072, 50257),
    "smollm2": Shape(30, 576, 9, 3, 64, 1536, 49152, theta=1e5),
    "llama-1b": Shape(16, 2048, 32, 8, 64, 8192, 128256, theta=5e5),
    "qwen3-2b": Shape(28, 2048, 16, 8, 128, 6144, 151936, theta=5e6, qk_norm=True),
    "tiny-gpt2": Shape(2, 64, 4, 4, 16, 256, 97),  # for --check
    "tiny-llama": Shape(2, 64, 4, 2, 16, 96, 97, theta=1e4),
    "tiny-qwen3": Shape(2, 64, 4, 2, 32, 96, 97, theta=1e4, qk_norm=True),
}
CONTEXT = 1024
RUNS = ["eager", "compile", "graph", "compile-graph"]


def now(device):
    """The time at which the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def linear(kind, weight, bias=None):
    """x -> x W^T + b, W given as [out, in]; see --linear."""
    if kind == "packed":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    if kind == "addmm":
        weight = weight.t().contiguous().t()
    return Linear(weight, bias)


class Linear:
    """Weights in attributes, not in a closure: a compiled layer then takes those of every layer as inputs."""

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def __call__(self, x):
        return F.linear(x, self.weight, self.bias)


class Model:
    def __init__(self, shape, kind):
        self.shape, biased = shape, not shape.rotary
        normal = lambda *size: torch.randn(*size) * 0.02
        norm = lambda size: (torch.ones(size), torch.zeros(size)) if biased else (torch.ones(size),)
        dense = lambda out, size: linear(kind, normal(out, size), normal(out) if biased else None)
        self.wte, self.norm = normal(shape.vocab, shape.width), norm(shape.width)
        self.logits = linear(kind, self.wte)
        if shape.rotary:
            angles = torch.outer(torch.arange(CONTEXT).float(), shape.theta ** -(torch.arange(0, shape.head, 2).float() / shape.head))
            self.cos, self.sin = (f(torch.cat([angles, angles], -1)).to(self.wte.dtype)[:, None] for f in (torch.cos, torch.sin))
        else:
            self.wpe = normal(CONTEXT, shape.width)
        layer = lambda: (
            norm(shape.width), dense(shape.qkv, shape.width), dense(shape.width, shape.heads * shape.head),
            norm(shape.width), dense((1 if biased else 2) * shape.ffn, shape.width), dense(shape.width, shape.ffn),
            (norm(shape.head), norm(shape.head)) if shape.qk_norm else None,
        )
        self.layers = [layer() for _ in range(shape.layers)]

    def embed(self, tokens):
        return F.embedding(tokens, self.wte)

    def normed(self, x, by):
        return F.rms_norm(x, x.shape[-1:], *by, 1e-5) if self.shape.rotary else F.layer_norm(x, x.shape[-1:], *by)

    def heads(self, x, norms, rope):
        """One product [rows, n, qkv] -> q, k, v [rows, n, heads, head], turned by the cosines and sines of their positions."""
        shape = self.shape
        x = x.view(*x.shape[:2], -1, shape.head)
        q, k, v = x.split([shape.heads, shape.kv_heads, shape.kv_heads], 2)
        if norms:
            q, k = self.normed(q, norms[0]), self.normed(k, norms[1])
        if shape.rotary:
            cos, sin = rope
            turn = lambda x: x * cos + torch.cat([-x[..., shape.head // 2 :], x[..., : shape.head // 2]], -1) * sin
            q, k = turn(q), turn(k)
        return q, k, v

    def forward(self, x, attend, first, p=0.0):
        """x [rows, n, width] at positions first, first + 1, ... -> hidden states after the final norm.

        attend(layer, q, k, v) takes [rows, n, heads, head] and gives the same of q's heads.
        """
        n, rope = x.shape[1], None
        if self.shape.rotary:
            rope = self.cos[first : first + n], self.sin[first : first + n]
        else:
            x = x + self.wpe[first : first + n]
        for index, (norm1, qkv, *rest, qk_norms) in enumerate(self.layers):
            q, k, v = self.before_attention(x, norm1, qkv, qk_norms, rope)
            x = self.after_attention(x, attend(index, q, k, v), rest, p)
        return self.normed(x, self.norm)

    def before_attention(self, x, norm, qkv, qk_norms, rope):
        return self.heads(qkv(self.normed(x, norm)), qk_norms, rope)

    def after_attention(self, x, y, layer, p):
        (proj, norm, up, down), rotary = layer, self.shape.rotary
        y = proj(y.flatten(2))
        x = x + (F.dropout(y, p) if p and not rotary else y)
        y = up(self.normed(x, norm))
        if rotary:
            gate, y = y.chunk(2, -1)
            y = F.silu(gate) * y
        else:
            y = F.gelu(y, approximate="tanh")
        y = down(y)
        return x + (F.dropout(y, p) if p else y)

    def compiled(self):
        """The same weights, with the parts of a layer compiled: one graph for all layers and each number of rows."""
        for name in [name for name in ("recompile_limit", "cache_size_limit") if hasattr(torch._dynamo.config, name)]:
            setattr(torch._dynamo.config, name, 64)  # graphs for a function
        model = copy.copy(self)
        model.before_attention = torch.compile(self.before_attention, dynamic=False)
        model.after_attention = torch.compile(self.after_attention, dynamic=False)
        return model


def sdpa(q, k, v, causal):
    """[rows, heads, n, head] -> [rows, n, heads, head]"""
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped).transpose(1, 2)


class ForkedCache:
    """Keys and values of a prefix shared by the N rows of a question, and each row's own in buffers allocated once.

    Scores over the prefix are matrix products over N rows; one softmax joins them with those over a row's own positions.
    Against SDPA over prefixes copied to every row, whole runs took a fifth less time at 4 x 64, a twentieth more at 1 x 1;
    on an H200 in bfloat16 a third less at 64 x 64, half as much again at 1 x 32, where launching kernels takes the time.
    """

    def __init__(self, shape, questions, samples, own, compiled=False):
        if compiled:  # for any number of a row's own positions
            self.attention = torch.compile(self.attention)
        self.shape, self.questions, self.samples = shape, questions, samples
        self.keys, self.values = torch.empty(2, shape.layers, questions * samples, shape.kv_heads, own, shape.head)
        self.shared, self.length = [None] * shape.layers, 0

    def prefill(self, layer, q, k, v):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        self.shared[layer], self.length = (k, v), 0
        return sdpa(q, k, v, True)

    def step(self, layer, q, k, v):
        self.keys[layer, :, :, self.length], self.values[layer, :, :, self.length] = k[:, 0], v[:, 0]
        keys, values = (x[layer, :, :, : self.length + 1] for x in (self.keys, self.values))
        self.length += layer == self.shape.layers - 1
        return self.attention(q, keys, values, *self.shared[layer])

    def attention(self, q, keys, values, shared_keys, shared_values):
        # Heads that share a key head are rows of its products.
        heads, group, head = self.shape.kv_heads, self.shape.heads // self.shape.kv_heads, self.shape.head
        by_row = lambda x: x.reshape(self.questions * self.samples, heads, group, -1)
        by_question = lambda x: x.reshape(self.questions, self.samples, heads, group, -1).transpose(1, 2).flatten(2, 3)
        rows_of = lambda x: by_row(x.view(self.questions, heads, self.samples, group, -1).transpose(1, 2))
        q = by_row(q * head**-0.5)
        scores = by_question(q) @ shared_keys.transpose(2, 3), by_question(q @ keys.transpose(2, 3))
        weights = torch.cat(scores, -1).softmax(-1)
        shared, own = weights.split([s.shape[-1] for s in scores], -1)
        return (rows_of(shared @ shared_values) + rows_of(own) @ values).reshape(len(q), 1, -1, head)


class GrowingCache:
    """Keys and values of every row, grown by torch.cat; those of a prefilled prefix are copied to a question's N rows."""

    def __init__(self, shape, samples):
        self.samples, self.kv = samples, [None] * shape.layers

    def prefill(self, layer, q, k, v):
        self.kv[layer] = None
        y = self.step(layer, q, k, v)
        self.kv[layer] = [x.repeat_interleave(self.samples, 0) for x in self.kv[layer]]
        return y

    def step(self, layer, q, k, v):
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if self.kv[layer]:
            k, v = torch.cat([self.kv[layer][0], k], 2), torch.cat([self.kv[layer][1], v], 2)
        self.kv[layer] = k, v
        return sdpa(q.transpose(1, 2), k, v, q.shape[1] > 1)


def trajectories(model, prompts, args, cache=None, read=torch.argmax, now=now):
    """Q x N trajectories by the algorithm of `same`, or without a cache by that of `reference`.

    `read(logits, -1)` picks the tokens. Returns them, [rows, A], and the four times, by `now`, that bound the three stages.
    """
    device, length, p = prompts.device, prompts.shape[1], args.dropout
    times = [now(device)]
    rows = prompts.repeat_interleave(args.samples, 0)
    if cache:
        attend = cache.step
        model.forward(model.embed(prompts[:, :-1]), cache.prefill, 0)
        times.append(now(device))
        hidden = model.forward(model.embed(rows[:, -1:]), attend, length - 1, p)
    else:
        attend = GrowingCache(model.shape, args.samples).step
        hidden = model.forward(model.embed(rows), attend, 0, p)[:, -1:]
        model.logits(hidden)
        times.append(now(device))
    for thought in range(args.thoughts):
        last = thought == args.thoughts - 1
        hidden = model.forward(hidden, attend, length + thought, 0.0 if last else p)
        if not cache:
            model.logits(hidden)
    times.append(now(device))
    tokens = [torch.full((len(rows), 1), model.shape.vocab - 1, device=device)]
    for step in range(args.answer):
        hidden = model.forward(model.embed(tokens[-1]), attend, length + args.thoughts + step)
        tokens.append(read(model.logits(hidden), -1))
    return torch.cat(tokens[1:], 1), times + [now(device)]


def flops(shape, args):
    """Two per multiply-add of the weight products, and of attention over the positions that each token sees."""
    reference = args.mode == "reference"
    forked, heads = (0, 1 + args.thoughts + args.answer) if reference else (args.prompt - 1, args.answer)
    seen = 2 * shape.layers * shape.heads * shape.head
    tokens = lambda first, end: sum(2 * (shape.products() + seen * (i + 1)) for i in range(first, end))
    row = tokens(forked, args.prompt + args.thoughts + args.answer) + heads * 2 * shape.width * shape.vocab
    return args.questions * (tokens(0, forked) + args.samples * row)


def check(model, args):
    """Without dropout every row of both algorithms must equal whole forwards without a cache, attention spelled out."""

    shape = model.shape

    def full(_, q, k, v):
        k, v = (x.repeat_interleave(shape.heads // shape.kv_heads, 2) for x in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / shape.head**0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(future, float("-inf")).softmax(-1), v)

    args.dropout, last = 0.0, shape.vocab - 1
    prompts = torch.randint(last, (2, args.prompt))
    x, naive, tokens, end = model.embed(prompts), [], [torch.full((2, 1), last)], args.prompt + args.thoughts
    while len(naive) < args.answer:
        hidden = model.forward(x, full, 0)[:, -1:]
        if x.shape[1] > end:
            naive.append(F.linear(hidden, model.wte))
            tokens.append(naive[-1].argmax(-1))
        x = torch.cat([x, hidden if x.shape[1] < end else model.embed(tokens[-1])], 1)
    compiled, own = model.compiled(), 1 + args.thoughts + args.answer
    for samples in 1, 3:
        args.samples = samples
        forked = [ForkedCache(shape, 2, samples, own, compiled) for compiled in (False, True)]
        copied = GrowingCache(shape, samples)
        ways = [("forked", model, forked[0]), ("copied", model, copied), ("reference", model, None)]
        for name, of, cache in ways + [("forked, compiled", compiled, forked[1]), ("copied, compiled", compiled, copied)]:
            logits = []  # all read the same tokens: rounding may swap the two best
            read = lambda x, _: logits.append(x) or tokens[len(logits)].repeat_interleave(samples, 0)
            trajectories(of, prompts, args, cache, read)
            want = torch.cat(naive, 1).repeat_interleave(samples, 0)
            error = (torch.cat(logits, 1).float() - want.float()).abs().max().item()
            print(f"{name:16} {samples} rows per question: largest error of a logit {error:.1e}")
            assert error < (1e-4 if args.dtype == "float32" else 0.1)


def captured(model, prompts, args, cache):
    """A run as one CUDA graph: nothing is launched by the host. Gives its start and its end."""
    device, graph, side = prompts.device, torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries and the allocator are warm before the capture, as PyTorch asks for
        for _ in range(3):
            trajectories(model, prompts, args, cache)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        trajectories(model, prompts, args, cache, now=lambda _: 0.0)  # no synchronisation while capturing

    def run():
        start = now(device)
        graph.replay()
        return [start, now(device)]

    return run


def measure(model, args, way):
    """One point: so many questions with so many samples each."""
    device, cache = model.wte.device, None
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    if way.startswith("compile"):
        model = model.compiled()
    with torch.device(device):  # slows every call a little: not around what is measured
        prompts = torch.randint(model.shape.vocab - 1, (args.questions, args.prompt))
        if args.mode != "reference" and args.cache == "copied":
            cache = GrowingCache(model.shape, args.samples)
        elif args.mode != "reference":
            own = 1 + args.thoughts + args.answer
            cache = ForkedCache(model.shape, args.questions, args.samples, own, way.startswith("compile"))
    cuda, graph = device.type == "cuda", way.endswith("graph")
    run = captured(model, prompts, args, cache) if graph else lambda: trajectories(model, prompts, args, cache)[1]
    for _ in range(1 + cuda):
        run()
    warm_up_s = time.perf_counter() - began
    runs = [run() for _ in range(args.repeat)]
    seconds = [t[-1] - t[0] for t in runs]
    best = runs[seconds.index(min(seconds))]
    result = {"trajectories_per_s": args.questions * args.samples / min(seconds)}
    stages = ("prefill_s", "thoughts_s", "answer_s")
    result |= {"graph": True} if graph else {name: b - a for name, a, b in zip(stages, best, best[1:])}
    result |= {"flops": flops(model.shape, args), "best_s": min(seconds), "median_s": statistics.median(seconds)}
    result |= {"torch": torch.__version__, "threads": args.threads, "dtype": args.dtype, "warm_up_s": warm_up_s}
    result |= {"peak_mib": torch.cuda.max_memory_allocated() / 2**20 if cuda else None}
    return result | {"device": torch.cuda.get_device_name() if cuda else "cpu"}


def ours(args):
    """The engine's line for the same work."""
    sizes = [f"--{name}={getattr(args, name)}" for name in ("questions", "samples", "prompt", "thoughts", "answer", "repeat")]
    command = [args.ours, "bench", "--device", args.device, "--shape", args.shape, *sizes, f"--dropout-p={args.dropout}", "--quiet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
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


def lines(model, args, turn):
    """The lines of a point, each a way to run it."""
    place = {"round": turn + 1, "shape": args.shape} if args.rounds > 1 else {}
    if args.ours:
        yield place | {"run": "ours"} | guarded(ours, args)
    for way in args.run:
        yield place | ({"run": way} if len(args.run) > 1 or place else {}) | guarded(measure, model, args, way)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["same", "reference", "latency"], default="same")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on cuda bfloat16")
    parser.add_argument("--cache", choices=["forked", "copied"], default="forked")
    parser.add_argument("--linear", choices=["plain", "addmm", "packed"], default="plain")
    for name, default in dict(questions=4, samples=64, prompt=72, thoughts=6, answer=6, repeat=3).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--points", nargs="+", metavar="QxN[:CACHE]", help="several questions x samples, one line each")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--run", nargs="+", choices=RUNS, default=["eager"], help="how operations are run, one line each")
    parser.add_argument("--graph", action="store_const", const=["graph"], dest="run", help="the same as --run graph")
    parser.add_argument("--rounds", type=int, default=1, help="measure all in turns, so many times")
    parser.add_argument("--ours", metavar="BINARY", help="a latent-tts, to be measured in every round too")
    parser.add_argument("--check", action="store_true", help="compare with naive whole forwards, and exit")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    if cuda and args.linear != "plain":
        parser.error(f"--linear {args.linear} is for --device cpu")
    if any(run.endswith("graph") for run in args.run) and (not cuda or args.mode == "reference"):
        parser.error("CUDA graphs are for --device cuda and --mode same")
    args.dtype = args.dtype or ("bfloat16" if cuda else "float32")
    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.mode == "latency":
        args.questions, args.samples, args.dropout = 1, 1, 0.0
    with torch.inference_mode():
        with torch.device(args.device):
            model = Model(SHAPES[args.shape], args.linear)
            if args.check:
                return check(model, args)
        points = args.points or [f"{args.questions}x{args.samples}:{args.cache}"]
        for point, turn in [(point, turn) for turn in range(args.rounds) for point in points]:
            size, _, cache = point.partition(":")
            args.questions, args.samples = map(int, size.split("x"))
            args.cache = cache or "forked"
            for result in lines(model, args, turn):
                if args.points:
                    result = {"point": point} | result
                print(json.dumps(result) if args.json else "\n".join(f"{name:20}{value}" for name, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
