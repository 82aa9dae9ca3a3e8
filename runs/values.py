#!/usr/bin/env python3
"""The numbers in the prose of README.md and docs/results.md: JSON of KEY -> text, from the raw files below runs/.

    values.py            all of them
    values.py PATTERN    those whose key contains it

Keys: SET/RULE@K is an accuracy in %, SET/RULE@K/ci the same with its interval, SET/RULE-OVER a paired
difference in points. `.ci/figures --write` inserts them: <!--=gsm8k/weighted@64-->32.5<!--/-->
"""

import datetime
import json
import re
import sys

import raw
import results
from tables import RUNS, SPLITS, Results, points

PATHS = {
    **{
        label: f"smollm2/{name}-dropout"
        for name, label in (("gsm_test", "gsm8k"), ("gsm_hard", "gsm-hard"), ("multiarith", "multiarith"))
    },
    "gsm8k-noise": "smollm2/gsm_test-noise",
    "gsm8k-cot": "smollm2/gsm_test-cot",
    "gsm8k-latent": "smollm2/gsm_test-ablated",
    "gsm8k-bce": "smollm2/gsm_test-bce",
    "multiarith-cot": "smollm2/multiarith-cot",
    "valid-cot": "smollm2/valid-cot",
    "valid-latent": "smollm2/valid-ablated",
    "valid-mask": "smollm2/valid-mask",
    "valid-fresh-masks": "smollm2/valid-answers-p0.3",
    "valid-tokens": "smollm2/valid-tokens",
    # Embedded models: the reward model with the reasoner's own reference trace, and the shipped one.
    **{split: f"fresh/self-judged-{split}" for split in SPLITS},
    **{f"shipped-{split}": f"fresh/judged-{split}" for split in SPLITS},
    **{f"latent-{split}": f"baselines/latent-{split}" for split in SPLITS},
    **{f"cot-{split}": f"baselines/cot-{split}" for split in SPLITS},
}


def accuracies():
    for name, path in PATHS.items():
        run = Results(path)
        for (rule, k), of in run.metrics.items():
            scale, digits = (100, 1) if not rule.startswith(("auc", "diversity")) else (1, 2)
            yield f"{name}/{rule}@{k}", f"{scale * of['value']:.{digits}f}"
            if "low" in of:
                yield (
                    f"{name}/{rule}@{k}/ci",
                    f"{scale * of['value']:.{digits}f} ({scale * of['low']:.{digits}f} to {scale * of['high']:.{digits}f})",
                )
        for rule, over in run.gains:
            yield f"{name}/{rule}-{over}", str(raw.gain(path, rule, over))


def sweeps():
    for name, path in (
        ("gsm_valid", "smollm2/sweep-dropout"),
        ("gsm_valid", "smollm2/sweep-noise"),
        *((split, f"fresh/sweep-{split}") for split in SPLITS),
    ):
        for run, point in points(path).items():
            yield f"{name}/{run}/coverage@64", f"{100 * point['coverage']['64']['value']:.1f}"
            yield f"{name}/{run}/majority@64", f"{100 * point['majority']['64']['value']:.1f}"
            yield f"{name}/{run}/diversity", f"{point['diversity']['value']:.2f}"


def compared():
    """Differences to greedy and to the reference reasoner, on 2,000 problems of each split."""
    for split in SPLITS:
        for name, label in (("own", "self-judged"), ("shipped", "judged")):
            for column, over in ((1, "greedy"), (2, "reference")):
                yield f"{split}/{name}-weighted-{over}", str(raw.compared(split, f"{label}, weighted@64", column))
        yield f"{split}/reference", raw.accuracy(f"fresh/reference-{split}", "greedy").alone()


def thoughts():
    """Accuracy with replaced thoughts."""
    for name, path in (("embedded", "ablation"), ("gsm8k", "smollm2/gsm_test-ablated-ablation")):
        content = json.loads((RUNS / f"{path}.json").read_text())
        for kind in content["ablations"]:
            yield f"{name}/{kind['kind']}", f"{100 * kind['accuracy']['value']:.1f}"


def reruns():
    """What others measured with the published checkpoints."""
    for name, of in zip(("coconut", "codi", "codi-order"), json.loads((RUNS / "reruns.json").read_text())["accuracy"]):
        for rule in ("greedy", "majority", "weighted", "best_of", "coverage"):
            yield f"reruns/{name}/{rule}", f"{of[rule]:.1f}"


def times():
    real = re.search(r"^real\s+0m([\d.]+)s", (RUNS / "main_zen5.txt").read_text(), re.M)
    yield "time/eval", f"{float(real[1]):.0f} s"
    begun = [
        (datetime.datetime.strptime(line[:8], "%H:%M:%S"), line)
        for line in (RUNS / "gate.txt").read_text().splitlines()
        if re.match(r"\d\d:\d\d:\d\d ", line)
    ]
    tests = next(at for at, (_, line) in enumerate(begun) if " tests" in line)
    yield "time/tests", f"{(begun[tests + 1][0] - begun[tests][0]).seconds / 60:.0f} minutes"
    clock = [
        re.findall(r"N = (\d+): ([\d.]+) s", line) + [line.split(", ")[1]]
        for line in (RUNS / "smollm2_wall_clock.txt").read_text().splitlines()
        if line.startswith("round 1")
    ]
    for (samples, seconds), model in clock:
        yield f"time/{model}@{samples}", f"{float(seconds):.1f} s"
    seconds = Results("smollm2/gsm_test-dropout").cost["seconds"]
    sampled = sum(seconds[part] for part in ("prefill", "thoughts", "answers", "scores"))
    yield "time/gsm8k", f"{sampled:.0f} s"
    yield "time/gsm8k-scores", f"{100 * seconds['scores'] / sampled:.0f}%"
    wall = [float(found) for found in re.findall(r"([\d.]+) s wall", (RUNS / "smollm2_solve.txt").read_text())]
    yield "time/solve", f"{min(wall):.1f} to {max(wall):.1f} s"


def speed():
    for machine, questions, samples, ours, theirs, mode, ratio in results.peers()[1]:
        key = f"speed/{'h200' if 'H200' in machine else 'cpu'}-{'gpt2' if 'GPT' in machine else 'smollm2'}-{questions}x{samples}"
        yield key, f"{ours.alone()} ms"
        yield f"{key}/ratio", f"{ratio.alone()}x"
        yield f"{key}/rate", f"{1000 * int(questions) * int(samples) / ours.value:,.0f}"


def main():
    found = dict(pair for part in (accuracies, sweeps, compared, thoughts, reruns, times, speed) for pair in part())
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    print(json.dumps({key: text for key, text in found.items() if pattern in key}, indent=1))


main()
