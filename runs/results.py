#!/usr/bin/env python3
"""The tables of README.md and docs/results.md, computed from the raw files below runs/.

    results.py NAME         prints a Markdown table
    results.py --csv NAME   prints its numbers, one a line, with their raw file

`.ci/figures --write` inserts the tables into the pages and writes docs/results/*.csv.
"""
import csv
import dataclasses
import json
import pathlib
import re
import sys

from tables import RUNS, SPLITS, Results, points

SIGNED = re.compile(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)")
# Test sets of SmolLM2-135M; splits of the built-in corpus for the embedded models.
SETS = {"gsm_test": "GSM8K", "gsm_hard": "GSM-Hard", "multiarith": "MultiArith"}


@dataclasses.dataclass
class Number:
    """A measured number in the unit of its table, its 95% interval if it has one, and its raw file."""

    value: float
    low: float | None = None
    high: float | None = None
    source: str = ""
    signed: bool = False
    digits: int = 1

    def alone(self):
        return f"{self.value:{'+' if self.signed else ''}.{self.digits}f}"

    def interval(self):
        form = f"{'+' if self.signed else ''}.{self.digits}f"
        return f"{self.low:{form}} to {self.high:{form}}"

    def __str__(self):
        return self.alone() if self.low is None else f"{self.alone()} ({self.interval()})"


def percent(of, source, signed=False):
    return Number(100 * of["value"], 100 * of["low"], 100 * of["high"], f"runs/{source}.json", signed)


def accuracy(path, rule, k=1):
    """Accuracy in % of a rule at k in a results.json; of its coverage with the rule `coverage`."""
    return percent(Results(path).metrics[rule, k], path)


def gain(path, rule, over):
    """The paired difference of two rules in a results.json, in points."""
    return percent(Results(path).gains[rule, over], path, signed=True)


def swept(path, run, k=64, rule="coverage"):
    return percent(points(path)[run][rule][str(k)], path)


def diversity(path, run):
    return Number(points(path)[run]["diversity"]["value"], source=f"runs/{path}.json", digits=3)


def difference(path, label, at=0):
    """The number of a line `LABEL: +1.0 (-2.0 to +3.0)` of a text file, or the one at a place of it."""
    lines = (RUNS / path).read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{label}: "))
    value, low, high = SIGNED.findall(line)[at]
    return Number(float(value), float(low), float(high), f"runs/{path}", signed=True)


def geometry(path, run, what):
    line = next(line for line in (RUNS / path).read_text().splitlines() if line.startswith(f"{run}: ") and what in line)
    value, low, high = re.search(rf"{what} ([\d.]+) \(([\d.]+) to ([\d.]+)\)", line).groups()
    return Number(float(value), float(low), float(high), f"runs/{path}", digits=3 if what == "drift" else 1)


def compared(split, label, column):
    """A cell of the table in runs/fresh/SPLIT.txt: column 0 accuracy, 1 over greedy, 2 over the reference reasoner."""
    path = f"fresh/{split}.txt"
    line = next(line for line in (RUNS / path).read_text().splitlines() if line.startswith(f"| {label} |"))
    cell = line.strip("| ").split(" | ")[1:][column]
    if column == 0:
        return Number(float(cell), source=f"runs/{path}")
    value, low, high = SIGNED.match(cell).groups()
    return Number(float(value), float(low), float(high), f"runs/{path}", signed=True)


def steps(path):
    return Number(Results(path).cost["steps"], source=f"runs/{path}.json", digits=0)


def doubling(path, k):
    m = Results(path).metrics
    return Number(100 * (m["coverage", 2 * k]["value"] - m["coverage", k]["value"]), source=f"runs/{path}.json", signed=True)


# Verdicts. A paired difference agrees with a claim if its interval lies on the claimed side of 0, and
# is the opposite if it lies on the other side. Two numbers agree if their intervals do not overlap.

def verdict(claimed, value, other=None):
    """`claimed` is +1 if value is claimed to be above the other number (or 0), -1 if below."""
    low, high = (value.low, value.high) if other is None else (value.low - other.high, value.high - other.low)
    if low > 0 or high < 0:
        return "agrees" if (low > 0) == (claimed > 0) else "opposite"
    return "not shown"


@dataclasses.dataclass
class Row:
    where: str
    measured: str
    value: Number
    other: Number | None = None
    claimed: int = 1
    # Given where `verdict` cannot decide: equality, numbers without intervals, differences paired elsewhere.
    verdict: str = ""

    def decided(self):
        return self.verdict or verdict(self.claimed, self.value, self.other)


def at_diversity(noise, dropout):
    return f"coverage at 64, noise at diversity {diversity(*noise)}; dropout at {diversity(*dropout)}"


def sampling_claims():
    sweep, findings = "fresh/sweep-test", "fresh/findings.txt"
    smollm2_dropout, smollm2_noise = "smollm2/gsm_test-dropout", "smollm2/gsm_test-noise"
    smollm2_strongest = ("smollm2/sweep-noise", "noise-0.15"), ("smollm2/sweep-dropout", "dropout-0.4")
    hundredths = "diversity in hundredths, by thought"
    return {
        "Coverage grows with N": [
            Row("embedded, test", "coverage at N = 64; at N = 1", swept(sweep, "dropout-0.1"), swept(sweep, "dropout-0.1", 1)),
            Row("SmolLM2, GSM8K", "coverage at N = 64; at N = 1", accuracy(smollm2_dropout, "coverage", 64), accuracy(smollm2_dropout, "coverage", 1))],
        "Its gains diminish with N": [
            Row("embedded, test", "coverage gained from N = 32 to 64; from 1 to 2", difference(findings, "dropout-0.1: coverage@64 less coverage@32"),
                difference(findings, "dropout-0.1: coverage@2 less coverage@1"), claimed=-1),
            Row("SmolLM2, GSM8K", "coverage gained from N = 32 to 64; from 1 to 2", doubling(smollm2_dropout, 32), doubling(smollm2_dropout, 1), verdict="opposite"),
            Row("SmolLM2, MultiArith", "coverage gained from N = 32 to 64; from 1 to 2", doubling("smollm2/multiarith-dropout", 32), doubling("smollm2/multiarith-dropout", 1),
                verdict="agrees")],
        "Dropout covers more than noise": [
            Row("embedded, test", "coverage at 64, p = 0.2 minus sigma = 1", difference(findings, "dropout-0.2 less noise-1, coverage@64")),
            Row("embedded, test", "coverage at 4, p = 0.2 minus sigma = 1", difference(findings, "dropout-0.2 less noise-1, coverage@4")),
            Row("SmolLM2, GSM8K", "coverage at 64, dropout; noise", accuracy(smollm2_dropout, "coverage", 64), accuracy(smollm2_noise, "coverage", 64)),
            Row("SmolLM2, GSM8K", "coverage at 1, dropout; noise", accuracy(smollm2_dropout, "coverage", 1), accuracy(smollm2_noise, "coverage", 1))],
        "Coverage is largest at a moderate diversity": [
            Row("embedded, test", "coverage at 64, p = 0.6 minus best p", difference(findings, "dropout-0.6: diversity 0.466, coverage@64 less that of dropout-0.2"), claimed=-1),
            Row("embedded, test", "coverage at 64, sigma = 2 minus best sigma", difference(findings, "noise-2: diversity 0.195, coverage@64 less that of noise-1"), claimed=-1),
            Row("SmolLM2, gsm_valid", "coverage at 64, sigma = 0.1; 0.15", swept("smollm2/sweep-noise", "noise-0.1"), swept("smollm2/sweep-noise", "noise-0.15")),
            Row("SmolLM2, gsm_valid", "coverage at 64, p = 0.3; 0.4", swept("smollm2/sweep-dropout", "dropout-0.3"), swept("smollm2/sweep-dropout", "dropout-0.4"))],
        "At high diversity noise keeps its coverage, dropout does not": [
            Row("embedded, test", at_diversity((sweep, "noise-2"), (sweep, "dropout-0.3")), swept(sweep, "noise-2"), swept(sweep, "dropout-0.3")),
            Row("SmolLM2, gsm_valid", at_diversity(*smollm2_strongest), *(swept(*strength) for strength in smollm2_strongest))],
        "Dropout's diversity is the same at all thoughts": [
            Row("embedded, test", "diversity in hundredths, last thought; first", difference(findings, f"dropout-0.1: {hundredths}", 5),
                difference(findings, f"dropout-0.1: {hundredths}", 0), verdict="opposite"),
            Row("SmolLM2, gsm_valid", "diversity in hundredths, twelfth thought; first", difference("smollm2/geometry.txt", f"geometry-p-0.3: {hundredths}", 11),
                difference("smollm2/geometry.txt", f"geometry-p-0.3: {hundredths}", 0), verdict="opposite")],
        "Dropout drifts in one direction, noise spreads evenly": [
            Row("embedded, test", "drift, p = 0.4; sigma = 1", geometry("fresh/geometry.txt", "geometry-p-0.4", "drift"), geometry("fresh/geometry.txt", "geometry-sigma-1", "drift")),
            Row("SmolLM2, gsm_valid", "dimensions, p = 0.3; sigma = 0.1", geometry("smollm2/geometry.txt", "geometry-p-0.3", "dimensions"),
                geometry("smollm2/geometry.txt", "geometry-sigma-0.1", "dimensions"), claimed=-1)],
        "Dropout loses easy questions": [
            Row("embedded, test", "coverage at 4, p = 0.4 minus sigma = 1", difference(findings, "dropout-0.4 less noise-1, coverage@4 of 757 easy questions"), claimed=-1),
            Row("embedded, test", "coverage at 4, p = 0.2 minus sigma = 1", difference(findings, "dropout-0.2 less noise-1, coverage@4 of 757 easy questions"), claimed=-1)],
        "Dropout reaches more hard questions": [
            Row("embedded, test", "coverage at 64, p = 0.2 minus sigma = 1", difference(findings, "dropout-0.2 less noise-1, coverage@64 of 243 hard questions"))],
        "Best p is 0.1 to 0.3, best sigma 0.5 to 0.7 (GPT-2)": [
            Row("embedded, hard", "coverage at 64, p = 0.3; 0.4", swept("fresh/sweep-hard", "dropout-0.3"), swept("fresh/sweep-hard", "dropout-0.4"), verdict="agrees"),
            Row("embedded, hard", "coverage at 64, sigma = 0.7; 1", swept("fresh/sweep-hard", "noise-0.7"), swept("fresh/sweep-hard", "noise-1"), verdict="opposite")],
        "Best p is a few hundredths (Llama)": [
            Row("SmolLM2, gsm_valid", "coverage at 64, p = 0.05; 0.4", swept("smollm2/sweep-dropout", "dropout-0.05"), swept("smollm2/sweep-dropout", "dropout-0.4"))],
        "One strength serves all benchmarks": [
            Row("embedded, ood", "coverage at 64, p chosen on valid; best p", swept("fresh/sweep-ood", "dropout-0.3"), swept("fresh/sweep-ood", "dropout-0.4"), verdict="agrees")],
        "Latent-SFT and Render-of-Thought gain as well": [
            Row("like Latent-SFT, test", "coverage at N = 16; at N = 1", accuracy("families/latent-sft-dropout-test", "coverage", 16), accuracy("families/latent-sft-dropout-test", "coverage", 1)),
            Row("like Latent-SFT, test", "majority of 16 over greedy", gain("families/latent-sft-dropout-test", "majority", "greedy")),
            Row("like RoT, test", "coverage at N = 16; at N = 1", accuracy("families/rot-dropout-test", "coverage", 16), accuracy("families/rot-dropout-test", "coverage", 1)),
            Row("like RoT, test", "majority of 16 over greedy", gain("families/rot-dropout-test", "majority", "greedy"))],
    }


def aggregation_claims():
    own, shipped, smollm2, heads = "fresh/self-judged", "fresh/judged", "smollm2/gsm_test-dropout", "smollm2/gsm_test-contrastive"
    ablation = "embedded_ablation"
    return {
        "Accuracy grows with N": [
            Row("embedded, test", "majority over greedy", gain(f"{own}-test", "majority", "greedy")),
            Row("embedded, test", "weighted over greedy", compared("test", "self-judged, weighted@64", 1)),
            *(Row(f"SmolLM2, {label}", "weighted over greedy", gain(f"smollm2/{name}-dropout", "weighted", "greedy")) for name, label in SETS.items())],
        "Best of N is above the majority": [
            Row("embedded, test", "best of 64 over majority", gain(f"{own}-test", "best_of", "majority")),
            *(Row(f"SmolLM2, {label}", "best of 64 over majority", gain(f"smollm2/{name}-dropout", "best_of", "majority")) for name, label in SETS.items())],
        "Beam search is above the majority": [
            Row("embedded, test", "beam over majority", gain(f"{own}-test", "beam", "majority")),
            Row("SmolLM2, GSM8K", "beam over majority", gain(smollm2, "beam", "majority"))],
        "Beam search equals best of N": [
            Row("embedded, test", "beam minus best of 64", difference("fresh/test.txt", "self-judged: beam less best of N"), verdict="opposite"),
            Row("SmolLM2, GSM8K", "beam; best of 64", accuracy(smollm2, "beam", 64), accuracy(smollm2, "best_of", 64), verdict="not shown")],
        "Best of N is the most effective rule": [
            Row("embedded, test", "weighted minus best of 64", difference("fresh/test.txt", "self-judged: weighted less best of N"), claimed=-1),
            Row("SmolLM2, GSM8K", "weighted; best of 64", accuracy(smollm2, "weighted", 64), accuracy(smollm2, "best_of", 64), claimed=-1)],
        "Gains are largest on MultiArith": [
            Row("SmolLM2", "weighted over greedy, MultiArith; GSM8K", gain("smollm2/multiarith-dropout", "weighted", "greedy"), gain(smollm2, "weighted", "greedy")),
            Row("embedded", "weighted over greedy, ood; test", compared("ood", "self-judged, weighted@64", 1), compared("test", "self-judged, weighted@64", 1))],
        "LatentRM's best of N is above the majority": [
            Row("embedded, test", "best of 64 over majority", gain(f"{ablation}/contrastive-test", "best_of", "majority")),
            Row("SmolLM2, GSM8K", "best of 64 over majority", gain(heads, "best_of", "majority"))],
        "Contrastive loss is better than BCE": [
            Row("embedded, test", "best of 64, contrastive minus BCE", difference(f"{ablation}/test.txt", "best_of: contrastive less bce")),
            Row("SmolLM2, GSM8K", "best of 64, contrastive; BCE", accuracy(heads, "best_of", 64), accuracy("smollm2/gsm_test-bce", "best_of", 64))],
        "Rollout labels are better than final answers": [
            Row("embedded, test", "best of 64, rollouts minus final answers", difference(f"{ablation}/test.txt", "best_of: contrastive less final")),
            Row("SmolLM2, GSM8K", "best of 64, rollouts; final answers", accuracy(heads, "best_of", 64), accuracy("smollm2/gsm_test-final", "best_of", 64))],
        "128 rollouts per thought help": [
            Row("embedded, test", "best of 64, 128 minus 4 rollouts", difference("rollouts/test.txt", "best_of: m128 less m4"))],
        "An untrained reward head is below the majority": [
            Row("embedded, test", "best of 64 over majority", gain(f"{ablation}/untrained-test", "best_of", "majority"), claimed=-1),
            Row("SmolLM2, GSM8K", "best of 64 over majority", gain("smollm2/gsm_test-untrained", "best_of", "majority"), claimed=-1)],
        "Best of N with 4 to 6 thoughts is above greedy": [
            Row("embedded, test", "best of 16 over greedy", gain("fresh/lengths-test", "best_of_mean", "greedy"))],
        "COCONUT with scaling is above CoT": [
            Row("embedded, test", "latent coverage at 4; CoT greedy", accuracy("baselines/latent-test", "coverage", 4), accuracy("baselines/cot-test", "greedy")),
            Row("SmolLM2, GSM8K", "latent coverage at 4; CoT greedy", accuracy(smollm2, "coverage", 4), accuracy("smollm2/gsm_test-cot", "greedy")),
            Row("SmolLM2, GSM8K", "latent weighted at 64; CoT greedy", accuracy(smollm2, "weighted", 64), accuracy("smollm2/gsm_test-cot", "greedy"))],
        "CoT takes five times the decoding steps": [
            Row("embedded, test", "steps for 16 sequences, CoT; latent", steps("baselines/cot-test"), steps("baselines/latent-test"), verdict="agrees"),
            Row("SmolLM2, GSM8K", "steps for 2 sequences, CoT; latent", steps("smollm2/gsm_test-cot"), steps("smollm2/gsm_test-ablated"), verdict="opposite")],
    }


def claims_table(claims):
    rows = [(claim if at == 0 else "", row.decided(), row.where, row.measured, row.value, row.other)
            for claim, found in claims.items() for at, row in enumerate(found)]
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
    for rule, label in (("majority", "majority"), ("weighted", "**weighted by the reward model**"), ("normalized", "normalized"),
                        ("best_of", "best of 64"), ("coverage", "coverage")):
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
    rows = [(f"{of['system']} (others)", *(Number(of[rule], source="runs/reruns.json") for rule in ("greedy", *rules))) for of in found]
    for label, path in (("SmolLM2, GSM8K (ours)", "smollm2/gsm_test-dropout"), ("embedded, test (ours)", "fresh/self-judged-test")):
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
    rows = [("no chain of thought, greedy", *(accuracy(f"smollm2/{name}-no-cot", "greedy") for name in SETS)),
            ("written chain of thought, greedy", *(accuracy(f"smollm2/{name}-cot", "greedy") for name in SETS))]
    labels = {"greedy": "latent, greedy", "majority": "latent, majority", "**weighted by the reward model**": "**latent, weighted by the reward model**",
              "best of 64": "latent, best of 64", "coverage": "latent, coverage"}
    rows += [(labels[label], *cells) for label, *cells in smollm2()[1] if label in labels]
    return ("accuracy in %, N = 64", *SETS.values()), rows


def peers():
    """Median time beside the fastest mode of PyTorch: rows of runs/gpu_peers.txt and runs/cpu_speed_zen5.txt."""
    modes = {"eager": "eager", "compile": "compiled", "graph": "CUDA graph", "compile-graph": "compiled, CUDA graph",
             "pytorch": "eager", "pytorch packed": "oneDNN, packed weights"}
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
        rows.append((f"{machine}, {shapes[shape]}", questions, samples, milliseconds(times["ours"], source), milliseconds(times[mode], source), modes[mode],
                     Number(times[mode] / times["ours"], source=source, digits=2)))
    return ("machine, model shape", "questions", "N", "latent-tts, ms", "PyTorch, ms", "its fastest mode", "ratio"), rows


def milliseconds(value, source):
    return Number(value, source=source, digits=2 if value < 100 else 0)


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
