"""Measured numbers with their intervals, read from the raw files below runs/."""

import dataclasses
import re

from tables import RUNS, Results, points

SIGNED = re.compile(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)")


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


def milliseconds(value, source):
    return Number(value, source=source, digits=2 if value < 100 else 0)
