"""The tables of the documents that are made of results.json files below runs/: tables.py NAME.

`.ci/figures` compares what this prints with what the documents show.
"""

import json
import pathlib
import sys

RUNS = pathlib.Path(__file__).parent
SPLITS = ("test", "hard", "ood")
# Names of metrics in files of earlier versions of the program.
RENAMED = {"maj": "majority"}


class Results:
    """A results.json: metrics by name and k, gains by name and baseline."""

    def __init__(self, name):
        content = json.loads((RUNS / "embedded_tables" / f"{name}.json").read_text())
        self.metrics = {(RENAMED.get(m["name"], m["name"]), m["k"]): m for m in content["metrics"]}
        gains = content.get("gains", [])
        self.gains = {tuple(RENAMED.get(g[key], g[key]) for key in ("name", "over")): g for g in gains}
        self.cost = content["cost"]

    def share(self, name, k):
        return f"{100 * self.metrics[name, k]['value']:.1f}"

    def with_interval(self, name, k):
        m = self.metrics[name, k]
        return f"{100 * m['value']:.1f} ({100 * m['low']:.1f}-{100 * m['high']:.1f})"

    def gain(self, name, over):
        g = self.gains[name, over]
        return f"{100 * g['value']:+.1f} ({100 * g['low']:+.1f} to {100 * g['high']:+.1f})"


def row(*cells):
    print(f"| {' | '.join(cells)} |")


def head(*cells):
    row(*cells)
    print("|" + "---|" * len(cells))


def by_split(prefix, show):
    return [show(Results(f"{prefix}-{split}")) for split in SPLITS]


def rewards():
    """Every rule of the embedded reward model, with gains."""
    head("accuracy in %, 64 with its interval", *SPLITS)
    row("greedy", *by_split("main", lambda r: r.with_interval("greedy", 1)))
    for rule, label in (("majority", "majority"), ("weighted", "weighted"), ("normalized", "normalized"),
                        ("best_of", "best of k"), ("pessimistic", "pessimistic"), ("coverage", "coverage")):
        def curve(r):
            return " / ".join([*(r.share(rule, k) for k in (1, 4, 16)), r.with_interval(rule, 64)])
        row(f"{label}, k = 1 / 4 / 16 / 64", *by_split("main", curve))

    def beams(split):
        smaller = [Results(f"beam{k}-{split}").share("beam", k) for k in (4, 16)]
        return " / ".join([*smaller, Results(f"main-{split}").with_interval("beam", 64)])
    row("beam, k = 4 / 16 / 64", *map(beams, SPLITS))
    for rule, label in (("majority", "majority@64"), ("weighted", "weighted@64"), ("best_of", "best of 64"),
                        ("beam", "beam 8 x 8")):
        for over in ("greedy", "majority")[: 1 if rule == "majority" else 2]:
            baseline = "greedy" if over == "greedy" else "majority@64"
            row(f"{label} over {baseline}", *by_split("main", lambda r: r.gain(rule, over)))

    def ranking(r):
        return " ".join([*(f"{r.metrics['auc', t]['value']:.2f}" for t in range(1, 7)),
                         f"**{r.metrics['auc_verdict', 64]['value']:.2f}**"])
    row("AUC of correct against wrong: process rewards of thoughts 1 to 6, **outcome reward**",
        *by_split("main", ranking))


def card():
    """The table of the model card."""
    head("accuracy in %", *SPLITS)
    for rule, k, label in (("greedy", 1, "greedy"), ("majority", 64, "majority@64"), ("weighted", 64, "weighted@64"),
                           ("normalized", 64, "normalized@64"), ("best_of", 64, "best of 64"),
                           ("beam", 64, "beam, 8 x 8"), ("coverage", 64, "coverage@64")):
        row(label, *by_split("main", lambda r: r.with_interval(rule, k)))
    row("coverage@64, noise of sigma 0.5", *by_split("noise", lambda r: r.with_interval("coverage", 64)))


def noise():
    """The reward model's rules under Gaussian noise."""
    head("sigma = 0.5, accuracy in %", *SPLITS)
    row("weighted@64", *by_split("noise", lambda r: r.with_interval("weighted", 64)))
    row("weighted@64 over greedy", *by_split("noise", lambda r: r.gain("weighted", "greedy")))
    row("coverage@64", *by_split("noise", lambda r: r.with_interval("coverage", 64)))


def coverage():
    """Coverage against N by split and sampler."""
    head("split", "sampler", "N = 1", "N = 4", "N = 16", "N = 64")
    for split in SPLITS:
        for prefix, sampler in (("main", "dropout"), ("noise", "noise")):
            results = Results(f"{prefix}-{split}")
            row(split, sampler, *(results.with_interval("coverage", k) for k in (1, 4, 16, 64)))


def doublings():
    """Points of coverage that each doubling of N gains."""
    head("split", "sampler", "1 to 2", "2 to 4", "4 to 8", "8 to 16", "16 to 32", "32 to 64")
    for split in SPLITS:
        for prefix, sampler in (("main", "dropout"), ("noise", "noise")):
            m = Results(f"{prefix}-{split}").metrics
            gains = [100 * (m["coverage", 2 * k]["value"] - m["coverage", k]["value"]) for k in (1, 2, 4, 8, 16, 32)]
            row(split, sampler, *(f"{gain:.1f}" for gain in gains))


def thoughts():
    """Accuracy with replaced thoughts, of runs/ablation.json."""
    content = json.loads((RUNS / "ablation.json").read_text())

    def interval(of, sign=""):
        return f"{100 * of['value']:{sign}.1f} ({100 * of['low']:{sign}.1f} to {100 * of['high']:{sign}.1f})"
    head("thoughts", "accuracy", "difference", "changed")
    row("clean", interval(content["clean"]), "", "")
    for kind in content["ablations"]:
        row(kind["kind"], interval(kind["accuracy"]), interval(kind["difference"], "+"), f"{100 * kind['changed']:.1f}")


TABLES = {f.__name__: f for f in (rewards, card, noise, coverage, doublings, thoughts)}

if len(sys.argv) != 2 or sys.argv[1] not in TABLES:
    sys.exit(f"usage: tables.py {'|'.join(TABLES)}")
TABLES[sys.argv[1]]()
