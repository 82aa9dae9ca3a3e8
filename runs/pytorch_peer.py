"""PyTorch on a CPU or an NVIDIA GPU, doing the work of `latent-tts bench --shape gpt2`, so that the two can be compared.

The work: Q questions of L prompt tokens; N trajectories per question, each of T thoughts (the hidden state after the
final norm is fed back as the next input) and A greedily decoded answer tokens. The shape is GPT-2 124M's, the weights are
random: speed does not depend on them. Written with bare torch operations in eager mode, without module overhead.

  same       Is the engine faster, or only its algorithm? The same algorithm: each prompt but its last token is prefilled
             once, clean, and shared by N forked rows; the last prompt token and thoughts 1..T-1 run with dropout on the
             outputs of attention and MLP, fresh for every row; the last thought, the end token and the answer run
             clean; the LM head runs only for the A tokens that are read.
  reference  What is gained over the published Python code's algorithm? Prompts are repeated N times before prefill and
             prefilled with dropout; the LM head runs at every step; the cache grows by torch.cat.
  latency    How long does one question take? `same` with one question, one row and no dropout.

Weights and activations are all of one type, `--dtype`: by default float32 on a CPU, bfloat16 on a GPU. Float32 products
are never rounded to TF32. On a GPU every tensor stays there, tokens too, and the host waits only where a stage ends.
`--cache copied` copies prefixes to every row, where sharing them takes more operations: faster on a GPU at 1 x N.

On a CPU `--linear plain` is F.linear, `addmm` the same with weights stored [in, out] (faster for a single row), `packed`
oneDNN with weights reordered at load, as frozen compiled models do: not a public API, but the fastest float32 product
PyTorch has here, so a claim to beat PyTorch should hold against this one as well.

Passes over single positions: the last prompt token (in `reference` part of prefill), T thoughts, the end token, A - 1
answer tokens. `prefill_s` ends where rows are forked, `thoughts_s` includes the last thought's pass, `answer_s` starts
with the end token. Stage times and `trajectories_per_s` are the best repeat's, after one warm-up, on a GPU two. FLOPs are
those of the mode's own algorithm: two per multiply-add of weight products and attention.

  python pytorch_peer.py --mode same --questions 4 --samples 64 --repeat 5 --json
  python pytorch_peer.py --device cuda --mode same --questions 64 --samples 64 --repeat 10 --json
  python pytorch_peer.py --check
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.nn.functional as F

LAYERS, HEADS, D, VOCAB, CONTEXT = 12, 12, 768, 50257, 1024
HEAD = D // HEADS
END = VOCAB - 1


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
    return lambda x: F.linear(x, weight, bias)


class Model:
    def __init__(self, kind):
        normal = lambda *shape: torch.randn(*shape) * 0.02
        norm = lambda: (torch.ones(D), torch.zeros(D))
        dense = lambda out, size: linear(kind, normal(out, size), normal(out))
        self.wte, self.wpe, self.norm = normal(VOCAB, D), normal(CONTEXT, D), norm()
        self.logits = linear(kind, self.wte)
        layer = lambda: (norm(), dense(3 * D, D), dense(D, D), norm(), dense(4 * D, D), dense(D, 4 * D))
        self.layers = [layer() for _ in range(LAYERS)]

    def embed(self, tokens, first=0):
        """Tokens [rows, n] at positions first, first + 1, ..."""
        return F.embedding(tokens, self.wte) + self.wpe[first : first + tokens.shape[1]]

    def forward(self, x, attend, p=0.0):
        """x [rows, n, D] -> hidden states after the final norm; attend(layer, q, k, v) takes [rows, n, HEADS, HEAD]."""
        rows, n, _ = x.shape
        for index, (norm1, qkv, proj, norm2, up, down) in enumerate(self.layers):
            q, k, v = qkv(F.layer_norm(x, (D,), *norm1)).view(rows, n, 3, HEADS, HEAD).unbind(2)
            y = proj(attend(index, q, k, v).reshape(rows, n, D))
            x = x + (F.dropout(y, p) if p else y)
            y = down(F.gelu(up(F.layer_norm(x, (D,), *norm2)), approximate="tanh"))
            x = x + (F.dropout(y, p) if p else y)
        return F.layer_norm(x, (D,), *self.norm)


class ForkedCache:
    """Keys and values of a prefix shared by the N rows of a question, and each row's own in buffers allocated once.

    Scores over the prefix are matrix products over N rows; one softmax joins them with those over a row's own positions.
    Against SDPA over prefixes copied to every row, whole runs took a fifth less time at 4 x 64, a twentieth more at 1 x 1;
    on an H200 in bfloat16 a third less at 64 x 64, half as much again at 1 x 32, where launching kernels takes the time.
    """

    def __init__(self, questions, samples, own):
        self.questions, self.samples = questions, samples
        self.keys, self.values = torch.empty(2, LAYERS, questions * samples, HEADS, own, HEAD)
        self.shared, self.length = [None] * LAYERS, 0

    def prefill(self, layer, q, k, v):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        self.shared[layer], self.length = (k, v), 0
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def step(self, layer, q, k, v):
        self.keys[layer, :, :, self.length], self.values[layer, :, :, self.length] = k[:, 0], v[:, 0]
        keys, values = (x[layer, :, :, : self.length + 1] for x in (self.keys, self.values))
        self.length += layer == LAYERS - 1
        by_question = lambda x: x.reshape(self.questions, self.samples, HEADS, -1).transpose(1, 2)
        by_row = lambda x: x.transpose(1, 2).reshape(len(q), HEADS, 1, -1)
        q = q.transpose(1, 2) * HEAD**-0.5
        shared_keys, shared_values = self.shared[layer]
        scores = by_question(q) @ shared_keys.transpose(2, 3), by_question(q @ keys.transpose(2, 3))
        weights = torch.cat(scores, -1).softmax(-1)
        shared, own = weights.split([s.shape[-1] for s in scores], -1)
        return by_row(shared @ shared_values) + by_row(own) @ values


class GrowingCache:
    """Keys and values of every row, grown by torch.cat; those of a prefilled prefix are copied to a question's N rows."""

    def __init__(self, samples):
        self.samples, self.kv = samples, [None] * LAYERS

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
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=q.shape[1] > 1).transpose(1, 2)


def trajectories(model, prompts, args, cache=None, read=torch.argmax):
    """Q x N trajectories by the algorithm of `same`, or without a cache by that of `reference`.

    `read(logits, -1)` picks the tokens. Returns them, [rows, A], and the four times that bound the three stages.
    """
    device, length, p = prompts.device, prompts.shape[1], args.dropout
    times = [now(device)]
    rows = prompts.repeat_interleave(args.samples, 0)
    if cache:
        attend = cache.step
        model.forward(model.embed(prompts[:, :-1]), cache.prefill)
        times.append(now(device))
        hidden = model.forward(model.embed(rows[:, -1:], length - 1), attend, p)
    else:
        attend = GrowingCache(args.samples).step
        hidden = model.forward(model.embed(rows), attend, p)[:, -1:]
        model.logits(hidden)
        times.append(now(device))
    for thought in range(args.thoughts):
        last = thought == args.thoughts - 1
        hidden = model.forward(hidden + model.wpe[length + thought], attend, 0.0 if last else p)
        if not cache:
            model.logits(hidden)
    times.append(now(device))
    tokens = [torch.full((len(rows), 1), END, device=device)]
    for step in range(args.answer):
        hidden = model.forward(model.embed(tokens[-1], length + args.thoughts + step), attend)
        tokens.append(read(model.logits(hidden), -1))
    return torch.cat(tokens[1:], 1), times + [now(device)]


def flops(args):
    """Two per multiply-add of the weight products, and of attention over the positions that each token sees."""
    reference = args.mode == "reference"
    forked, heads = (0, 1 + args.thoughts + args.answer) if reference else (args.prompt - 1, args.answer)
    tokens = lambda first, end: sum(LAYERS * 2 * (12 * D * D + 2 * D * (i + 1)) for i in range(first, end))
    row = tokens(forked, args.prompt + args.thoughts + args.answer) + heads * 2 * D * VOCAB
    return args.questions * (tokens(0, forked) + args.samples * row)


def check(model, args):
    """Without dropout every row of both algorithms must equal whole forwards without a cache, attention spelled out."""

    def full(_, q, k, v):
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / HEAD**0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(future, float("-inf")).softmax(-1), v)

    args.dropout, prompts = 0.0, torch.randint(END, (2, args.prompt))
    x, naive, tokens, end = model.embed(prompts), [], [torch.full((2, 1), END)], args.prompt + args.thoughts
    while len(naive) < args.answer:
        hidden = model.forward(x, full)[:, -1:]
        if x.shape[1] > end:
            naive.append(F.linear(hidden, model.wte))
            tokens.append(naive[-1].argmax(-1))
        thinking = x.shape[1] < end
        x = torch.cat([x, hidden + model.wpe[x.shape[1]] if thinking else model.embed(tokens[-1], x.shape[1])], 1)
    for samples in 1, 3:
        args.samples = samples
        forked, copied = ForkedCache(2, samples, 1 + args.thoughts + args.answer), GrowingCache(samples)
        for name, cache in ("forked", forked), ("copied", copied), ("reference", None):
            logits = []  # all read the same tokens: rounding may swap the two best
            read = lambda x, _: logits.append(x) or tokens[len(logits)].repeat_interleave(samples, 0)
            trajectories(model, prompts, args, cache, read)
            want = torch.cat(naive, 1).repeat_interleave(samples, 0)
            error = (torch.cat(logits, 1).float() - want.float()).abs().max().item()
            print(f"{name:10} {samples} rows per question: largest error of a logit {error:.1e}")
            assert error < (1e-4 if args.dtype == "float32" else 0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["same", "reference", "latency"], default="same")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on cuda bfloat16")
    parser.add_argument("--cache", choices=["forked", "copied"], default="forked")
    parser.add_argument("--linear", choices=["plain", "addmm", "packed"], default="plain")
    for name, default in dict(questions=4, samples=64, prompt=72, thoughts=6, answer=6, repeat=3).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--check", action="store_true", help="compare with naive whole forwards, and exit")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    if cuda and args.linear != "plain":
        parser.error(f"--linear {args.linear} is for --device cpu")
    args.dtype = args.dtype or ("bfloat16" if cuda else "float32")
    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.mode == "latency":
        args.questions, args.samples, args.dropout = 1, 1, 0.0
    with torch.inference_mode():
        with torch.device(args.device):  # slows every call a little: not around what is measured
            model = Model(args.linear)
            if args.check:
                return check(model, args)
            prompts, cache = torch.randint(END, (args.questions, args.prompt)), None
            if args.mode != "reference" and args.cache == "copied":
                cache = GrowingCache(args.samples)
            elif args.mode != "reference":
                cache = ForkedCache(args.questions, args.samples, 1 + args.thoughts + args.answer)
        runs = [trajectories(model, prompts, args, cache)[1] for _ in range(1 + cuda + args.repeat)][1 + cuda :]
    seconds = [t[-1] - t[0] for t in runs]
    best = runs[seconds.index(min(seconds))]
    result = {"trajectories_per_s": args.questions * args.samples / min(seconds)}
    result |= {name: b - a for name, a, b in zip(("prefill_s", "thoughts_s", "answer_s"), best, best[1:])}
    result |= {"flops": flops(args), "best_s": min(seconds), "median_s": statistics.median(seconds)}
    result |= {"torch": torch.__version__, "threads": args.threads, "dtype": args.dtype}
    result |= {"device": torch.cuda.get_device_name() if cuda else "cpu"}
    print(json.dumps(result) if args.json else "\n".join(f"{name:20}{value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
