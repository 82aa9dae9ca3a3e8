"""Geometry of sampled thoughts around the unperturbed one: geometry.py RUN...

RUN is a run directory of `latent-tts eval --latents`. Of the last thought of every question, as it is fed, with d_i = h_i - h_clean over N trajectories:

drift       |mean of d|^2 / mean of |d|^2: 1 if all have the same direction, 1/N in expectation if directions are uniform
dimensions  (sum of eigenvalues)^2 / sum of squares of the covariance of h: the effective number of directions

The paper sees a directional drift under dropout and an even dispersion under noise: drift should then be larger and dimensions fewer
under dropout. Printed are means over questions with 95% bootstrap intervals (2,000 resamples).
"""

import array
import json
import pathlib
import random
import struct
import sys


def tensors(path):
    """(name, rows of floats) of every float32 tensor, flattened to the last dimension."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for name, of in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            first, last = (8 + length + at for at in of["data_offsets"])
            yield name, of["shape"], array.array("f", data[first:last])


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def describe(thoughts, clean):
    """Drift and dimensions of the last thoughts of one question."""
    count = len(thoughts)
    away = [[x - c for x, c in zip(thought, clean)] for thought in thoughts]
    mean = [sum(column) / count for column in zip(*away)]
    squares = sum(dot(d, d) for d in away) / count
    centred = [[x - m for x, m in zip(d, mean)] for d in away]
    gram = [[dot(a, b) for b in centred[: i + 1]] for i, a in enumerate(centred)]
    trace = sum(row[-1] for row in gram)
    frobenius = sum(row[-1] ** 2 + 2 * sum(x * x for x in row[:-1]) for row in gram)
    return (dot(mean, mean) / squares, trace**2 / frobenius) if squares > 0 and frobenius > 0 else None


def interval(values):
    generator, count = random.Random(0), len(values)
    means = sorted(sum(generator.choices(values, k=count)) / count for _ in range(2000))
    return f"{sum(values) / count:.3f} ({means[50]:.3f} to {means[1949]:.3f})"


def main(*runs):
    for folder in map(pathlib.Path, runs):
        found = {name: (shape, values) for name, shape, values in tensors(folder / "latents.safetensors")}
        described = []
        for name, (shape, values) in found.items():
            if len(shape) != 3 or f"{name}.greedy" not in found:
                continue
            trajectories, steps, width = shape
            rows = [values[(k * steps + steps - 1) * width : (k * steps + steps) * width] for k in range(trajectories)]
            described.append(describe(rows, found[f"{name}.greedy"][1][-width:]))
        described = [pair for pair in described if pair]
        if not described:
            sys.exit(f"{folder}: no question has sampled thoughts of one length and a greedy run")
        drift, dimensions = zip(*described)
        print(f"{folder.name}: {len(described)} questions, drift {interval(drift)}, dimensions {interval(dimensions)}")


main(*sys.argv[1:])
