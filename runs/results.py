#!/usr/bin/env python3
"""The tables of README.md and docs/results.md, computed from the raw files below runs/.

    results.py NAME         prints a Markdown table
    results.py --csv NAME   prints its numbers, one a line, with their raw file

`.ci/figures --write` inserts the tables into the pages and writes docs/results/*.csv. The claims of
the paper are in claims.py.
"""

import csv
import json
import re
import sys

from claims import SETS, aggregation_claims, sampling_claims
from raw import Number, accuracy, compared, gain, milliseconds, steps
from tables import RUNS, SPLITS


def claims_table(claims):
    rows = [
        (claim if at == 0 else "", row.decided(), row.where, row.measured, row.value, row.other)
        for claim, found in claims.items()
        for at, row in enumerate(found)
    ]
    return ("claim of the paper", "verdict", "model, problems", "measured; compared with", "value", "compared with"), rows


def sampling():
    return claims_table(sampling_claims())


def aggregation():
    return claims_table(aggregation_claims())


def smollm2():
    """Every rule of SmolLM2-135M at N = 64."""

    def line(label, show):
        return (label, *(show(f"smollm2/{name}-dropout") for name in SETS))

    rows = [line("greedy", lambda run: accuracy(run, "greedy"))]
    for rule, label in (
        ("majority", "majority"),
        ("weighted", "**weighted by the reward model**"),
        ("normalized", "normalized"),
        ("best_of", "best of 64"),
        ("coverage", "coverage"),
    ):
        rows.append(line(label, lambda run: accuracy(run, rule, 64)))
    for rule, over in (("majority", "greedy"), ("weighted", "greedy"), ("weighted", "majority"), ("best_of", "greedy")):
        rows.append(line(f"{rule.replace('best_of', 'best of 64')} over {over}", lambda run: gain(run, rule, over)))
    return ("accuracy in %, N = 64", *SETS.values()), rows


def reference():
    """The embedded models: what the reward model gains without and with a stronger reference reasoner."""

    def line(label, of, column):
        return (label, *(compared(split, of, column) for split in SPLITS))

    own, shipped = "self-judged, weighted@64", "judged, weighted@64"
    rows = [
        ("greedy", *(accuracy(f"fresh/judged-{split}", "greedy") for split in SPLITS)),
        ("majority", *(accuracy(f"fresh/judged-{split}", "majority", 64) for split in SPLITS)),
        ("**weighted, own reference trace**", *(accuracy(f"fresh/self-judged-{split}", "weighted", 64) for split in SPLITS)),
        ("weighted, stronger reference reasoner", *(accuracy(f"fresh/judged-{split}", "weighted", 64) for split in SPLITS)),
        ("reference reasoner alone, greedy", *(accuracy(f"fresh/reference-{split}", "greedy") for split in SPLITS)),
        ("coverage", *(accuracy(f"fresh/judged-{split}", "coverage", 64) for split in SPLITS)),
        line("own reference trace, over greedy", own, 1),
        line("own reference trace, over the reference reasoner", own, 2),
        line("stronger reference reasoner, over greedy", shipped, 1),
        line("stronger reference reasoner, over the reference reasoner", shipped, 2),
    ]
    return ("accuracy in %, N = 64", *SPLITS), rows


def baselines():
    """Greedy decoding of three models of one shape: No-CoT, latent, CoT."""
    rows = []
    for label, names in (("embedded", {split: split for split in SPLITS}), ("SmolLM2", SETS)):
        for name, shown in names.items():
            prefix = f"baselines/{{}}-{name}" if label == "embedded" else f"smollm2/{name}-{{}}"
            latent = "latent" if label == "embedded" else "ablated"
            paths = [prefix.format(suffix) for suffix in ("no-cot", latent, "cot")]
            more = Number(steps(paths[2]).value / steps(paths[1]).value, source=f"runs/{paths[2]}.json")
            rows.append((f"{label}, {shown}", *(accuracy(path, "greedy") for path in paths), more))
    return ("greedy accuracy in %", "No-CoT", "latent", "CoT", "CoT's steps per latent step"), rows


def reruns():
    """What others measured with the published checkpoints, beside two models of ours."""
    rules = ("majority", "weighted", "best_of", "coverage")
    found = json.loads((RUNS / "reruns.json").read_text())["accuracy"]
    rows = [
        (f"{of['system']} (others)", *(Number(of[rule], source="runs/reruns.json") for rule in ("greedy", *rules)))
        for of in found
    ]
    for label, path in (
        ("SmolLM2, GSM8K (ours)", "smollm2/gsm_test-dropout"),
        ("embedded, test (ours)", "fresh/self-judged-test"),
    ):
        rows.append((label, accuracy(path, "greedy"), *(accuracy(path, rule, 64) for rule in rules)))
    return ("accuracy in %, N = 64", "greedy", "majority", "weighted", "best of 64", "coverage"), rows


def retrained():
    """The embedded reasoner beside one that a complete run of train_embedded.sh made."""
    rows = []
    for name, label in (("embedded", "shipped"), ("trained", "complete run")):
        paths = [f"train_embedded/{name}-{split}" for split in SPLITS]
        rows.append((f"{label}, greedy", *(accuracy(path, "greedy") for path in paths)))
        for rule, shown in (("majority", "majority"), ("weighted", "weighted"), ("coverage", "coverage")):
            rows.append((f"{label}, {shown}", *(accuracy(path, rule, 64) for path in paths)))
    return ("accuracy in %", *SPLITS), rows


def headline():
    """README's table: SmolLM2-135M at N = 64 beside its baselines."""
    rows = [
        ("no chain of thought, greedy", *(accuracy(f"smollm2/{name}-no-cot", "greedy") for name in SETS)),
        ("written chain of thought, greedy", *(accuracy(f"smollm2/{name}-cot", "greedy") for name in SETS)),
    ]
    labels = {
        "greedy": "latent, greedy",
        "majority": "latent, majority",
        "**weighted by the reward model**": "**latent, weighted by the reward model**",
        "best of 64": "latent, best of 64",
        "coverage": "latent, coverage",
    }
    rows += [(labels[label], *cells) for label, *cells in smollm2()[1] if label in labels]
    return ("accuracy in %, N = 64", *SETS.values()), rows


def peers():
    """Median time beside the fastest mode of PyTorch: rows of runs/gpu_peers.txt and runs/cpu_speed_zen5.txt."""
    modes = {
        "eager": "eager",
        "compile": "compiled",
        "graph": "CUDA graph",
        "compile-graph": "compiled, CUDA graph",
        "pytorch": "eager",
        "pytorch packed": "oneDNN, packed weights",
    }
    timed = {}
    for line in (RUNS / "gpu_peers.txt").read_text().splitlines():
        if found := re.match(r"(gpt2|smollm2) (1x32|64x64)\S* (\S+) +[\d.]+ +([\d.]+) +[\d.]+ +[\d.]+ \d+$", line):
            timed.setdefault(("H200, bf16", found[1], found[2]), {})[found[3]] = float(found[4])
    rounds = {}
    for line in (RUNS / "cpu_speed_zen5.txt").read_text().split("commit ee17f86")[0].splitlines():
        if found := re.match(r"(4x64|1x1) (ours|pytorch|pytorch packed): *(\{.*)", line):
            rounds.setdefault((found[1], found[2]), []).append(1000 * json.loads(found[3])["median_s"])
    for (point, mode), seconds in rounds.items():
        timed.setdefault(("2 Zen 5 cores, f32", "gpt2", point), {})[mode] = sorted(seconds)[len(seconds) // 2]
    shapes, rows = {"gpt2": "GPT-2 124M", "smollm2": "SmolLM2 135M"}, []
    for (machine, shape, point), times in timed.items():
        source = "runs/gpu_peers.txt" if machine.startswith("H200") else "runs/cpu_speed_zen5.txt"
        questions, samples = point.split("x")
        mode = min((mode for mode in times if mode != "ours"), key=times.get)
        rows.append(
            (
                f"{machine}, {shapes[shape]}",
                questions,
                samples,
                milliseconds(times["ours"], source),
                milliseconds(times[mode], source),
                modes[mode],
                Number(times[mode] / times["ours"], source=source, digits=2),
            )
        )
    return ("machine, model shape", "questions", "N", "latent-tts, ms", "PyTorch, ms", "its fastest mode", "ratio"), rows


TABLES = {f.__name__: f for f in (sampling, aggregation, smollm2, reference, baselines, reruns, retrained, headline, peers)}


def markdown(header, rows):
    print(f"| {' | '.join(header)} |")
    print("|" + "---|" * len(header))
    for row in rows:
        print(f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |")


def as_csv(header, rows):
    """One line for each number: the texts of its row, its column, the value with its interval, and the raw file."""
    texts = [name for name, cell in zip(header, rows[0]) if isinstance(cell, str)]
    write = csv.writer(sys.stdout, lineterminator="\n").writerow
    write([*(texts if len(texts) > 1 else ["row"]), "column", "value", "low", "high", "source"])
    above = [""] * len(texts)
    for row in rows:
        labels = [cell.replace("**", "") for cell in row if isinstance(cell, str)]
        above = [label or before for label, before in zip(labels, above)]
        for name, cell in zip(header, row):
            if isinstance(cell, Number):
                ends = ["" if end is None else round(end, 4) for end in (cell.low, cell.high)]
                write([*above, name, round(cell.value, 4), *ends, cell.source])


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--csv"]
    if len(names) != 1 or names[0] not in TABLES:
        sys.exit(f"usage: results.py [--csv] {'|'.join(TABLES)}")
    (as_csv if "--csv" in sys.argv else markdown)(*TABLES[names[0]]())
