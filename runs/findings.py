"""Findings about sampling: findings.py SWEEP RESULTS.json...
findings.py --pair SWEEP RUN RUN: two runs of a sweep against each other. findings.py --steps RUN...: diversity by thought.

SWEEP is a sweep of runs/fresh.sh or runs/gallery.sh (one seed); RESULTS are results.json files. Coverage@k of a question with c right answers
among n is 1 - C(n-c, k) / C(n, k), as the program has it. Differences are paired over questions: 4,000 bootstrap resamples, 95%.
"""

import json
import math
import pathlib
import random
import sys

RESAMPLES = 4000


def coverages(run, k):
    """Coverage@k of every question of a run."""
    lines = (json.loads(line)["trajectories"] for line in (run / "samples.jsonl").open())
    counts = [(len(line), sum(t["correct"] for t in line)) for line in lines]
    return [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts]


def paired(ours, theirs):
    """The mean difference in points with its interval, as text."""
    differences = [100 * (a - b) for a, b in zip(ours, theirs, strict=True)]
    count, generator = len(differences), random.Random(0)
    means = sorted(sum(generator.choices(differences, k=count)) / count for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return f"{sum(differences) / count:+.1f} ({low:+.1f} to {high:+.1f})"


def saturation(path):
    """Coverage and its gain by doubling N, from a results.json."""
    metrics = [m for m in json.loads(path.read_text())["metrics"] if m["name"] == "coverage"]
    values = [100 * m["value"] for m in metrics]
    gains = [f"{after - before:.1f}" for before, after in zip(values, values[1:])]
    ends = " -> ".join(f"{100 * m['value']:.1f} ({100 * m['low']:.1f}-{100 * m['high']:.1f})" for m in (metrics[0], metrics[-1]))
    print(f"{path.stem}: N={metrics[0]['k']} to {metrics[-1]['k']}: {ends}; by doubling {', '.join(gains)}")


def doublings(run):
    """The gain of every doubling of N, with intervals, from a run's samples."""
    for k in (1, 2, 4, 8, 16, 32):
        print(f"{run.name}: coverage@{2 * k} less coverage@{k}: {paired(coverages(run, 2 * k), coverages(run, k))}")


def against_best(folder, points):
    """Every strength of a sampler against its best one."""
    largest = str(max(map(int, points[0]["coverage"])))
    best = max(points, key=lambda p: p["coverage"][largest]["value"])
    for point in points:
        k = int(largest)
        difference = paired(coverages(folder / point["run"], k), coverages(folder / best["run"], k))
        print(f"{point['run']}: diversity {point['diversity']['value']:.3f}, coverage@{k} less that of {best['run']}: {difference}")


def dropout_less_noise(folder, dropout, noise):
    with (folder / dropout / "samples.jsonl").open() as lines:
        most = len(json.loads(next(lines))["trajectories"])
    for k in (k for k in (1, 4, 16, 64) if k <= most):
        print(f"{dropout} less {noise}, coverage@{k}: {paired(coverages(folder / dropout, k), coverages(folder / noise, k))}")


def by_step(run, field):
    """The mean diversity of every thought, with intervals: before noise, or of the thoughts as they are fed."""
    lines = [json.loads(line).get(field) for line in (run / "samples.jsonl").open()]
    if all(lines):
        steps = [paired(step, [0] * len(lines)) for step in zip(*lines)]
        print(f"{run.name}: {field} in hundredths, by thought: {', '.join(steps)}")


def easy_and_hard(folder, dropout, noise):
    """Coverage of two runs where the greedy trajectory is right, and where it is wrong."""
    lines = [json.loads(line) for line in (folder / dropout / "samples.jsonl").open()]
    most = len(lines[0]["trajectories"])
    for right, kind in ((True, "easy"), (False, "hard")):
        chosen = [i for i, line in enumerate(lines) if line["greedy"] and line["greedy"]["correct"] == right]
        for k in (4, most):
            ours, theirs = (coverages(folder / run, k) for run in (dropout, noise))
            if chosen:
                difference = paired([ours[i] for i in chosen], [theirs[i] for i in chosen])
                print(f"{dropout} less {noise}, coverage@{k} of {len(chosen)} {kind} questions: {difference}")


def main(sweep, *results):
    for path in results:
        saturation(pathlib.Path(path))
    folder = pathlib.Path(sweep)
    points = json.loads((folder / "sweep.json").read_text())["points"]
    for run in ("dropout-0.1", "noise-0.5"):
        doublings(folder / run)
    for kind in ("dropout", "noise"):
        against_best(folder, [p for p in points if p["run"].startswith(kind)])
    for pair in (("dropout-0.1", "noise-0.5"), ("dropout-0.2", "noise-1"), ("dropout-0.4", "noise-1")):
        dropout_less_noise(folder, *pair)
        easy_and_hard(folder, *pair)
    for point in points:
        for field in ("diversity", "fed_diversity"):
            by_step(folder / point["run"], field)


def pair(sweep, ours, theirs):
    dropout_less_noise(pathlib.Path(sweep), ours, theirs)
    easy_and_hard(pathlib.Path(sweep), ours, theirs)


def steps(*runs):
    for run in map(pathlib.Path, runs):
        for field in ("diversity", "fed_diversity"):
            by_step(run, field)


if sys.argv[1] == "--pair":
    pair(*sys.argv[2:])
elif sys.argv[1] == "--steps":
    steps(*sys.argv[2:])
else:
    main(*sys.argv[1:])
