#!/usr/bin/env python3
"""The tables of docs/smollm2.md from runs/smollm2 (what runs/smollm2_tables.sh wrote): smollm2_tables.py PART

baselines   greedy: chain of thought, latent, no chain of thought
sampling    coverage and votes by N, dropout and noise
rules       every rule at N = 64, with gains over greedy and over the majority
heads       reward models on GSM8K test
sweep       strengths on gsm_valid
masks       fresh masks, one mask a trajectory and sampled tokens on gsm_valid
choice      both reward models that read answers on gsm_valid
auc         how well rewards tell right from wrong trajectories of a question, on GSM8K test
ablation    the latent reasoner with its thoughts replaced
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "smollm2"
SETS = {"gsm_test": "GSM8K test", "gsm_hard": "GSM-Hard", "multiarith": "MultiArith"}
RULES = ["majority", "likely", "weighted", "normalized", "combined", "best_of", "beam"]


def read(name):
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def metric(run, name, k):
    return next((m for m in run["metrics"] if m["name"] == name and m["k"] == k), None)


def interval(m, sign=False):
    form = "+.1f" if sign else ".1f"
    return f"{100 * m['value']:{form}} ({100 * m['low']:{form}} to {100 * m['high']:{form}})"


def row(*cells):
    print("| " + " | ".join(cells) + " |")


def head(*cells):
    row(*cells)
    row(*("---" for _ in cells))


def baselines():
    head("greedy", *SETS.values(), "gsm_valid")
    for label, suffix in {"chain of thought": "cot", "latent": "ablated", "no chain of thought": "no-cot"}.items():
        runs = [read(f"{name}-{suffix}") for name in [*SETS, "valid"]]
        row(label, *(interval(metric(run, "greedy", 1)) for run in runs))
    shares = [[metric(read(f"{name}-{suffix}"), "greedy", 1)["value"] for suffix in ("ablated", "cot")] for name in [*SETS, "valid"]]
    row("latent over chain of thought", *(f"{100 * latent / cot:.0f}%" for latent, cot in shares))


def sampling():
    ks = [1, 2, 4, 8, 16, 32, 64]
    head("", *(f"N = {k}" for k in ks))
    for name, label in SETS.items():
        for sampler in ("dropout", "noise"):
            run = read(f"{name}-{sampler}")
            for rule in ("coverage", "majority", "weighted") if run else ():
                if metric(run, rule, 64):
                    row(f"{label}, {sampler}: {rule}", *(f"{100 * metric(run, rule, k)['value']:.1f}" for k in ks))


def rules():
    head("N = 64, dropout", "accuracy", "over greedy", "over the majority")
    for name, label in SETS.items():
        run = read(f"{name}-dropout")
        if not run:
            continue
        row(f"{label}: greedy", interval(metric(run, "greedy", 1)), "", "")
        for rule in RULES:
            if not (m := metric(run, rule, 64)):
                continue
            gains = {g["over"]: g for g in run["gains"] if g["name"] == rule}
            row(f"{label}: {rule}", interval(m), *(interval(gains[over], True) if over in gains else "" for over in ("greedy", "majority")))


def heads():
    head("reward model, N = 64", "weighted", "over the majority", "best of 64", "over the majority")
    labels = {"dropout": "reads answers, pairwise (three seeds)", "contrastive": "published head, contrastive", "bce": "published head, BCE",
              "final": "published head, final answers as labels", "untrained": "published head, untrained"}
    for name, label in labels.items():
        run = read(f"gsm_test-{name}")
        gains = {g["name"]: g for g in run["gains"] if g["over"] == "majority"}
        cells = [cell for rule in ("weighted", "best_of") for cell in (interval(metric(run, rule, 64)), interval(gains[rule], True))]
        row(label, *cells)


def sweep():
    head("strength", "coverage@1", "coverage@64", "majority@64", "diversity")
    for name, letter in {"dropout": "p", "noise": "sigma"}.items():
        for point in read(f"sweep-{name}")["points"]:
            value = lambda what, k: f"{100 * point[what][k]['value']:.1f}"
            row(f"{name}, {letter} = {point['strength']}", value("coverage", "1"), value("coverage", "64"), value("majority", "64"),
                f"{point['diversity']['value']:.3f}")


def masks():
    head("gsm_valid, N = 64", "coverage@1", "coverage@64", "majority@64", "diversity")
    labels = {"answers-p0.3": "dropout, p = 0.3, fresh masks", "mask": "dropout, p = 0.3, one mask a trajectory", "tokens": "sampled tokens of the answer"}
    for name, label in labels.items():
        run = read(f"valid-{name}")
        accuracies = (interval(metric(run, rule, k)) for rule, k in (("coverage", 1), ("coverage", 64), ("majority", 64)))
        row(label, *accuracies, f"{metric(run, 'diversity', 64)['value']:.3f}")


def choice():
    head("gsm_valid, N = 64", "p", "majority", "weighted", "best of 64")
    for judge, label in {"answers": "reads answers", "reference": "and the reasoner's clean thoughts"}.items():
        for p in ("0.2", "0.3"):
            run = read(f"valid-{judge}-p{p}")
            row(label, p, *(f"{100 * metric(run, rule, 64)['value']:.1f}" for rule in ("majority", "weighted", "best_of")))


def auc():
    run = read("gsm_test-dropout")
    head("after", "AUC")
    for k in (1, 5, 10, 20, 30, 50):
        row(f"{k} thought{'s' if k > 1 else ''}", f"{metric(run, 'auc', k)['value']:.2f}")
    row("the answer", f"{metric(run, 'auc_verdict', 64)['value']:.2f}")


def ablation():
    head("thoughts", *SETS.values(), "gsm_valid")
    runs = [read(f"{name}-ablated-ablation") for name in [*SETS, "valid"]]
    row("its own", *(interval(run["clean"]) for run in runs))
    for at, first in enumerate(runs[0]["ablations"]):
        row(first["kind"], *(interval(run["ablations"][at]["accuracy"]) for run in runs))


PARTS = [baselines, sampling, rules, heads, sweep, masks, choice, auc, ablation]
chosen = [part for part in PARTS if part.__name__ in sys.argv[1:]]
if not chosen:
    sys.exit(__doc__)
for part in chosen:
    part()
