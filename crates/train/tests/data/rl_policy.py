"""Reference implementation of log-probabilities and gradients of sampled trajectories: rl_policy.py [DIR]

Writes rl_policy/ next to this file: a GPT-2 of width 8 (config.json, model.safetensors), the batches (batches.json) and the expected
values for tests/training/rl_reference.rs (expected.safetensors). Everything is computed in float64 with NumPy, differentiated by autograd
(pip install numpy autograd), one position at a time, with its own implementation of Philox and without calling latent-tts.
"""

import json
import pathlib
import struct
import sys

import autograd.numpy as np
from autograd import grad

WIDTH, HEADS, LAYERS, VOCAB, CONTEXT = 8, 2, 2, 24, 16
SEED, END_LATENT = 7, [4]
ATTN_OUT, MLP_OUT, NOISE = 0, 1, 2  # sites of random numbers

PROMPTS = [[5, 9, 17, 3], [8, 2]]
# Prompt, number of the question, number of the trajectory, thoughts, answer.
TRAJECTORIES = [
    (0, 3, 0, 2, [6, 1, 11]),
    (0, 3, 1, 3, [6]),
    (1, 4, 0, 1, [20, 13]),
    (1, 4, 5, 2, [7, 1]),
]
POLICIES = {
    "dropout": {"sampler": "dropout", "dropout_p": 0.25},
    "dropout_trajectory": {"sampler": "dropout", "dropout_p": 0.25, "mask": "trajectory"},
    "noise": {"sampler": "noise", "noise_std": 0.5},
    "density": {"sampler": "noise", "noise_std": 0.5, "thought_gradient": "density"},
    "tokens": {"sampler": "tokens", "temperature": 0.7},
}


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def words(question, trajectory, position, layer, site):
    """One random word per element of a row."""
    of = lambda block: philox([site << 26 | layer << 16 | block, position, trajectory, question], [SEED, 0])
    return [word for block in range(WIDTH // 4) for word in of(block)]


def keep_scale(key, layer, site, p):
    """The factor of each element with inverted dropout."""
    p = float(np.float32(p))
    threshold = int(p * 2**32)
    return np.array([float(word >= threshold) / (1 - p) for word in words(*key, layer, site)])


def noise(key, std):
    """Box-Muller on pairs of words."""
    found = words(*key, 0, NOISE)
    values = []
    for a, b in zip(found[::2], found[1::2]):
        radius = np.sqrt(-2 * np.log((a + 0.5) / 2**32))
        values += [radius * np.cos(2 * np.pi * b / 2**32), radius * np.sin(2 * np.pi * b / 2**32)]
    return float(np.float32(std)) * np.array(values)


def layer_norm(x, w, name):
    mean = np.mean(x)
    return (x - mean) / np.sqrt(np.mean((x - mean) ** 2) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    return x @ w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Sequence:
    """The keys and values of one sequence."""

    def __init__(self, w):
        self.w, self.cache, self.length = w, [([], []) for _ in range(LAYERS)], 0

    def feed(self, x, drop=lambda layer, site: 1.0):
        """The hidden state after the last norm at the next position."""
        w, size = self.w, WIDTH // HEADS
        x = x + w["wpe.weight"][self.length]
        for layer in range(LAYERS):
            name = f"h.{layer}"
            q, k, v = np.split(linear(layer_norm(x, w, name + ".ln_1"), w, name + ".attn.c_attn"), 3)
            keys, values = self.cache[layer]
            keys.append(k)
            values.append(v)
            parts = []
            for h in range(HEADS):
                own = slice(h * size, (h + 1) * size)
                scores = np.array([np.dot(q[own], key[own]) for key in keys]) / np.sqrt(size)
                weights = np.exp(scores - np.max(scores))
                parts.append(sum(weight * value[own] for weight, value in zip(weights / np.sum(weights), values)))
            x = x + drop(layer, ATTN_OUT) * linear(np.concatenate(parts), w, name + ".attn.c_proj")
            inner = gelu(linear(layer_norm(x, w, name + ".ln_2"), w, name + ".mlp.c_fc"))
            x = x + drop(layer, MLP_OUT) * linear(inner, w, name + ".mlp.c_proj")
        self.length += 1
        return layer_norm(x, w, "ln_f")


def logprobs(w, policy, prompt, trajectory, latents):
    """The log-probability of each answer token and, with a density, of each thought."""
    _, question, number, thoughts, answer = trajectory
    temperature = policy.get("temperature", 1.0)
    density = policy.get("thought_gradient") == "density"
    sequence, embed = Sequence(w), lambda token: w["wte.weight"][token]

    def key():
        kept = policy.get("mask") == "trajectory"
        return (question, number, 0 if kept else sequence.length)

    def feed(x, drops=False):
        if not drops or policy["sampler"] != "dropout":
            return sequence.feed(x)
        own = key()
        return sequence.feed(x, lambda layer, site: keep_scale(own, layer, site, policy["dropout_p"]))

    for i, token in enumerate(prompt):
        hidden = feed(embed(token), drops=i + 1 == len(prompt))
    densities = []
    for t in range(thoughts):
        fed = hidden
        if density:
            fed, std = latents[t], float(np.float32(policy["noise_std"]))
            squares = np.sum((fed - hidden) ** 2)
            densities.append(-0.5 * squares / std**2 - WIDTH * np.log(std * np.sqrt(2 * np.pi)))
        elif policy["sampler"] == "noise":
            fed = hidden + noise((question, number, sequence.length), policy["noise_std"])
        hidden = feed(fed, drops=t + 1 < thoughts)
    for token in END_LATENT:
        hidden = feed(embed(token))
    found = []
    for i, token in enumerate(answer):
        logits = w["wte.weight"] @ hidden / temperature
        largest = np.max(logits)
        found.append(logits[token] - largest - np.log(np.sum(np.exp(logits - largest))))
        if i + 1 < len(answer):
            hidden = feed(embed(token))
    return found, densities


def weight(n, i):
    """The weight of action i of trajectory n: distinct values of both signs."""
    return ((n * 7 + i * 3) % 5) / 2 - 0.9


def loss(w, policy, latents):
    total = 0.0
    for n, trajectory in enumerate(TRAJECTORIES):
        for actions in logprobs(w, policy, PROMPTS[trajectory[0]], trajectory, latents[n]):
            total = total - sum(weight(n, i) * action for i, action in enumerate(actions))
    return total


def initial(rng):
    shapes = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        h = f"h.{layer}"
        for norm in ("ln_1", "ln_2"):
            shapes[f"{h}.{norm}.weight"] = shapes[f"{h}.{norm}.bias"] = (WIDTH,)
        maps = {"attn.c_attn": (8, 24), "attn.c_proj": (8, 8), "mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8)}
        for name, (inputs, outputs) in maps.items():
            shapes[f"{h}.{name}.weight"], shapes[f"{h}.{name}.bias"] = (inputs, outputs), (outputs,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (WIDTH,)
    weights = {name: 0.4 * rng.normal(size=shape) for name, shape in shapes.items()}
    for name in weights:
        if ".ln_" in name and name.endswith("weight") or name == "ln_f.weight":
            weights[name] += 1.0
    # As they are stored.
    return {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        tensor = np.ascontiguousarray(tensor, dtype="<f4")
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(3)
    weights = initial(rng)
    latents = [rng.normal(size=(t[3], WIDTH)).astype(np.float32).astype(np.float64) for t in TRAJECTORIES]
    expected = {}
    for name, policy in POLICIES.items():
        for n, trajectory in enumerate(TRAJECTORIES):
            found = logprobs(weights, policy, PROMPTS[trajectory[0]], trajectory, latents[n])
            for what, values in zip(("tokens", "thoughts"), found):
                if values:
                    expected[f"{name}.{what}.{n}"] = np.array(values)
        for parameter, gradient in grad(loss)(weights, policy, latents).items():
            expected[f"{name}.gradient.{parameter}"] = gradient
    write_safetensors(out / "model.safetensors", weights)
    write_safetensors(out / "expected.safetensors", expected)
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": WIDTH,
        "n_layer": LAYERS, "n_head": HEADS, "n_positions": CONTEXT, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    fields = ("prompt", "question", "number", "thoughts", "answer")
    trajectories = [
        {**dict(zip(fields, t)), "latents": [float(x) for x in latents[n].ravel()]} for n, t in enumerate(TRAJECTORIES)
    ]
    batches = {"seed": SEED, "end_latent": END_LATENT, "prompts": PROMPTS, "trajectories": trajectories, "policies": POLICIES}
    (out / "batches.json").write_text(json.dumps(batches) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "rl_policy"))
