"""Rules of runs on the same questions, paired: fresh.py NAME=RUN..., or fresh.py --between best_of NAME=RUN...

RUN is a run directory (samples.jsonl) of `latent-tts eval`, one or several seeds. For every run it prints greedy, majority, and with rewards
weighted, best of N and beam search, and the vote of the first and the last run together (half of each, so that N is equal). Each line also has
the differences to greedy of the first run and of the last run (the reference reasoner), paired by question: 2,000 bootstrap resamples over
questions with two pseudo-observations (one win, one loss), as in the program's own intervals.

--between RULE (greedy, majority, weighted, best_of, beam) prints the paired difference of every two runs under that rule instead.
"""

import collections
import itertools
import json
import math
import pathlib
import random
import sys

RESAMPLES = 2000


def reward(trajectory):
    """The outcome reward, else the mean process reward, else none; records of version 1 have other keys."""
    outcome = trajectory.get("outcome_reward", trajectory.get("verdict"))
    if outcome is not None:
        return outcome
    process = trajectory.get("process_rewards", trajectory.get("scores")) or []
    return sum(process) / len(process) if process else None


def majority(trajectories):
    """The answer with the most votes; ties go to the one that came first."""
    votes = collections.Counter(t["answer"] for t in trajectories if t["answer"] is not None)
    return max(votes, key=votes.get) if votes else None


def weighted(trajectories):
    voters = [(t["answer"], reward(t)) for t in trajectories if t["answer"] is not None]
    largest = max((r for _, r in voters), default=0)
    votes = collections.defaultdict(float)
    for answer, r in voters:
        votes[answer] += math.exp(r - largest)
    return max(votes, key=votes.get) if votes else None


def best_of(trajectories):
    voters = [t for t in trajectories if t["answer"] is not None]
    return max(voters, key=reward)["answer"] if voters else None


class Run:
    """The samples of a run by question and seed."""

    def __init__(self, folder):
        self.samples = {}
        with (pathlib.Path(folder) / "samples.jsonl").open() as lines:
            for line in lines:
                sample = json.loads(line)
                self.samples[sample["id"], sample["seed"]] = sample
        self.has_beam = all(s.get("beam") for s in self.samples.values())
        self.has_rewards = all(reward(t) is not None for s in self.samples.values() for t in s["trajectories"])

    def right(self, choose):
        """Whether the chosen answer is right, by question and seed."""
        def judge(sample):
            answer = choose(sample["trajectories"])
            return any(t["correct"] for t in sample["trajectories"] if t["answer"] == answer and answer is not None)
        return {key: judge(sample) for key, sample in self.samples.items()}

    def beam(self):
        return {key: sample["beam"]["correct"] for key, sample in self.samples.items()}

    def greedy(self):
        return {key: sample["greedy"]["correct"] for key, sample in self.samples.items()}


def together(ours, theirs):
    """Half of the trajectories of each of two runs, in turns."""
    joined = Run.__new__(Run)
    joined.samples = {}
    for key in ours.samples.keys() & theirs.samples.keys():
        halves = [run.samples[key]["trajectories"] for run in (ours, theirs)]
        count = min(map(len, halves)) // 2
        turns = [t for pair in zip(*(half[:count] for half in halves)) for t in pair]
        joined.samples[key] = {**ours.samples[key], "trajectories": turns}
    return joined


def by_question(right):
    questions = collections.defaultdict(list)
    for (question, _), value in right.items():
        questions[question].append(value)
    return {question: sum(values) / len(values) for question, values in questions.items()}


def paired(ours, theirs):
    """The mean difference in points with its interval, as text."""
    ours, theirs = by_question(ours), by_question(theirs)
    if ours.keys() != theirs.keys():
        sys.exit("the runs are on other questions")
    differences = [100 * (ours[q] - theirs[q]) for q in sorted(ours)]
    value, generator = sum(differences) / len(differences), random.Random(0)
    imagined = [*differences, 100, -100]
    means = sorted(sum(generator.choices(imagined, k=len(imagined))) / len(imagined) for _ in range(RESAMPLES))
    return f"{value:+.1f} ({means[int(0.025 * RESAMPLES)]:+.1f} to {means[int(0.975 * RESAMPLES)]:+.1f})"


def lines_of(runs):
    """(label, right by question and seed) of everything that is compared."""
    for name, run in runs.items():
        yield f"{name}, greedy", run.greedy()
        count = max(len(s["trajectories"]) for s in run.samples.values())
        if count > 1:
            yield f"{name}, majority@{count}", run.right(majority)
            if run.has_rewards:
                yield f"{name}, weighted@{count}", run.right(weighted)
                yield f"{name}, best of {count}", run.right(best_of)
            if run.has_beam:
                yield f"{name}, beam", run.beam()
    first, *_, last = runs
    both = together(runs[first], runs[last])
    if all(s["trajectories"] for s in both.samples.values()):
        yield f"{first} and {last}, majority of half of each", both.right(majority)


def between(rule, runs):
    rules = {"majority": majority, "weighted": weighted, "best_of": best_of}
    chosen = {name: run.right(rules[rule]) if rule in rules else getattr(run, rule)() for name, run in runs.items()}
    for ours, theirs in itertools.combinations(chosen, 2):
        print(f"{rule}: {ours} less {theirs}: {paired(chosen[ours], chosen[theirs])}")


def main(*arguments):
    if arguments[0] == "--between":
        return between(arguments[1], {name: Run(folder) for name, folder in (a.split("=", 1) for a in arguments[2:])})
    runs = {name: Run(folder) for name, folder in (argument.split("=", 1) for argument in arguments)}
    lines = list(lines_of(runs))
    reasoner, reference = (runs[name].greedy() for name in (list(runs)[0], list(runs)[-1]))
    count = len(by_question(reasoner))
    print(f"{count} questions; the reference alone is `{list(runs)[-1]}`, greedy")
    print("| what | accuracy | over greedy | over the reference alone |\n|---|---|---|---|")
    for label, right in lines:
        share = 100 * sum(by_question(right).values()) / count
        print(f"| {label} | {share:.1f} | {paired(right, reasoner)} | {paired(right, reference)} |")
    for name, run in runs.items():
        if run.has_rewards and run.has_beam:
            print(f"{name}: beam less best of N: {paired(run.beam(), run.right(best_of))}")
            print(f"{name}: weighted less best of N: {paired(run.right(weighted), run.right(best_of))}")


main(*sys.argv[1:])
