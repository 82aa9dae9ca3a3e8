#!/usr/bin/env python3
"""The figures of SmolLM2-135M in docs/images from runs/smollm2: smollm2_pictures.py [FOLDER]   (needs matplotlib)

smollm2-accuracy.png     coverage and votes on the three test sets by N, with 95% intervals
smollm2-diversity.png    coverage against the diversity of thoughts, strength by strength, on gsm_valid
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).resolve().parent
PICTURES = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "docs" / "images"
SETS = {"gsm_test": "GSM8K test", "gsm_hard": "GSM-Hard", "multiarith": "MultiArith"}
# (rule, sampler): label, colour, dashes
LINES = {
    ("coverage", "dropout"): ("coverage, dropout", "#3366cc", "-"),
    ("coverage", "noise"): ("coverage, noise", "#3366cc", ":"),
    ("weighted", "dropout"): ("weighted by the reward model, dropout", "#cc5500", "-"),
    ("majority", "dropout"): ("majority, dropout", "#228844", "-"),
    ("majority", "noise"): ("majority, noise", "#228844", ":"),
}


def read(name):
    return json.loads((HERE / "smollm2" / f"{name}.json").read_text())


def band(axes, points, label, color, style):
    ks = [p["k"] for p in points]
    axes.plot(ks, [100 * p["value"] for p in points], style, color=color, label=label, marker=".")
    axes.fill_between(ks, [100 * p["low"] for p in points], [100 * p["high"] for p in points], color=color, alpha=0.12, lw=0)


def accuracy():
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    for axes, (name, title) in zip(panels, SETS.items()):
        for (rule, sampler), line in LINES.items():
            band(axes, [m for m in read(f"{name}-{sampler}")["metrics"] if m["name"] == rule], *line)
        for suffix, label, color in (("cot", "chain of thought, greedy", "#000000"), ("ablated", "latent, greedy", "#999999")):
            value = next(m["value"] for m in read(f"{name}-{suffix}")["metrics"] if m["name"] == "greedy")
            axes.axhline(100 * value, color=color, lw=0.8, ls="--", label=label)
        axes.set(title=title, xlabel="trajectories", xscale="log")
        axes.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
        axes.minorticks_off()
    panels[0].set_ylabel("% of the problems")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=4, fontsize=8, frameon=False)
    save(figure, "smollm2-accuracy")


def diversity():
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for sampler, color, above in (("dropout", "#3366cc", 5), ("noise", "#cc5500", -11)):
        points = read(f"sweep-{sampler}")["points"]
        x, covered = [p["diversity"]["value"] for p in points], [p["coverage"]["64"] for p in points]
        errors = [[100 * (c["value"] - c["low"]) for c in covered], [100 * (c["high"] - c["value"]) for c in covered]]
        axes.errorbar(x, [100 * c["value"] for c in covered], errors, color=color, marker="o", ms=4, capsize=2, lw=1, label=f"{sampler}: coverage@64")
        axes.plot(x, [100 * p["majority"]["64"]["value"] for p in points], ":", color=color, marker=".", lw=1, label=f"{sampler}: majority@64")
        for at, c, p in zip(x, covered, points):
            axes.annotate(f"{p['strength']:g}", (at, 100 * c["value"]), (4, above), textcoords="offset points", fontsize=7, color=color)
    axes.set(xlabel="diversity of thoughts (mean cosine dissimilarity)", ylabel="% of gsm_valid's 500 problems", ylim=(0, None))
    axes.legend(fontsize=8, frameon=False, loc="lower left")
    save(figure, "smollm2-diversity")


def save(figure, name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None}, pil_kwargs={"optimize": True})


accuracy()
diversity()
