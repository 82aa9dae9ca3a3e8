"""The embedded reasoner before and after reinforcement learning: rl_embedded.py BEFORE AFTER...

BEFORE and AFTER are run directories (samples.jsonl) of `latent-tts eval --greedy` on the same questions, AFTER one per seed of the training.
Prints greedy, mean, majority and coverage of each in %, the differences to BEFORE and those of the mean over the seeds, paired by question:
2,000 bootstrap resamples over questions, with one won and one lost question imagined among them, as the program's own intervals have it.
"""

import collections
import json
import pathlib
import random
import sys

RESAMPLES = 2000


def majority(trajectories):
    """Whether the answer with the most votes is right; ties go to the one that came first."""
    votes = collections.Counter(t["answer"] for t in trajectories if t["answer"] is not None)
    if not votes:
        return 0.0
    chosen = max(votes, key=votes.get)
    return float(any(t["correct"] for t in trajectories if t["answer"] == chosen))


def scores(folder):
    """By metric: the score of every question."""
    found = collections.defaultdict(dict)
    with (pathlib.Path(folder) / "samples.jsonl").open() as lines:
        for line in lines:
            sample = json.loads(line)
            own = sample["trajectories"]
            right = [t["correct"] for t in own]
            found["greedy"][sample["id"]] = float(sample["greedy"]["correct"])
            found["mean of samples"][sample["id"]] = sum(right) / len(right)
            found[f"majority@{len(own)}"][sample["id"]] = majority(own)
            found[f"coverage@{len(own)}"][sample["id"]] = float(any(right))
    return found


def interval(differences):
    """The mean and its 95% interval."""
    rng = random.Random(0)
    imagined = [*differences, 1.0, -1.0]
    count = len(imagined)
    means = sorted(sum(rng.choices(imagined, k=count)) / count for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return sum(differences) / len(differences), low, high


def percent(values):
    return f"{100 * sum(values) / len(values):5.1f}"


def difference(before, after):
    mean, low, high = interval([after[q] - before[q] for q in before])
    return f"{100 * mean:+5.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def main(before, *after):
    before = scores(before)
    runs = [(pathlib.Path(folder).name, scores(folder)) for folder in after]
    seeds = {metric: {q: sum(run[metric][q] for _, run in runs) / len(runs) for q in before[metric]} for metric in before}
    for metric, own in before.items():
        print(f"{metric}: before {percent(own.values())}")
        for name, run in [*runs, ("mean of seeds", seeds)]:
            print(f"  {name:<14} {percent(run[metric].values())}  difference {difference(own, run[metric])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
