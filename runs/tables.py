"""Detailed tables computed from the raw files below runs/: tables.py NAME [ARGUMENT...]

The tables of README.md and docs/results.md are printed by results.py.
"""

import json
import pathlib
import sys

RUNS = pathlib.Path(__file__).parent
SPLITS = ("test", "hard", "ood")
# Names of metrics in files of earlier versions of the program.
RENAMED = {"maj": "majority"}
HEADS = {"contrastive": "contrastive, rollouts (the paper's)", "bce": "BCE, rollouts", "final": "contrastive, final answers as labels",
         "untrained": "untrained head"}
# The test sets of SmolLM2 that have been run with its reward model.
TESTS = (("gsm_test", "GSM8K"), ("gsm_hard", "GSM-Hard"), ("multiarith", "MultiArith"))


class Results:
    """A results.json: metrics by name and k, gains by name and baseline."""

    def __init__(self, path):
        content = json.loads((RUNS / f"{path}.json").read_text())
        self.metrics = {(RENAMED.get(m["name"], m["name"]), m["k"]): m for m in content["metrics"]}
        gains = content.get("gains", [])
        self.gains = {tuple(RENAMED.get(g[key], g[key]) for key in ("name", "over")): g for g in gains}
        self.cost = content["cost"]

    def share(self, name, k):
        return f"{100 * self.metrics[name, k]['value']:.1f}"

    def with_interval(self, name, k):
        return share(self.metrics[name, k])

    def gain(self, name, over):
        return difference(self.gains[name, over])


def share(of):
    return f"{100 * of['value']:.1f} ({100 * of['low']:.1f}-{100 * of['high']:.1f})"


def difference(of):
    return f"{100 * of['value']:+.1f} ({100 * of['low']:+.1f} to {100 * of['high']:+.1f})"


def row(*cells):
    print(f"| {' | '.join(cells)} |")


def head(*cells):
    row(*cells)
    print("|" + "---|" * len(cells))


def by_split(prefix, show):
    return [show(Results(f"{prefix}-{split}")) for split in SPLITS]


def compared(split):
    """Lines of runs/fresh/SPLIT.txt by their label: accuracy, over greedy, over the reference alone."""
    lines = (RUNS / "fresh" / f"{split}.txt").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return {label: values for label, *values in cells[2:]}


def rules(name):
    """Every rule with one reward model on problems 2000 to 4000 of each split, with gains."""
    prefix = f"fresh/{name}"
    head("accuracy in %, 64 with its interval", *SPLITS)
    row("greedy", *by_split(prefix, lambda r: r.with_interval("greedy", 1)))
    for rule, label in (("majority", "majority"), ("weighted", "weighted"), ("normalized", "normalized"),
                        ("best_of", "best of k"), ("pessimistic", "pessimistic"), ("coverage", "coverage")):
        def curve(r):
            return " / ".join([*(r.share(rule, k) for k in (1, 4, 16)), r.with_interval(rule, 64)])
        row(f"{label}, k = 1 / 4 / 16 / 64", *by_split(prefix, curve))
    row("beam, 8 x 8", *by_split(prefix, lambda r: r.with_interval("beam", 64)))
    for rule, label in (("weighted", "weighted@64"), ("best_of", "best of 64"), ("beam", "beam 8 x 8")):
        row(f"{label} over majority@64", *by_split(prefix, lambda r: r.gain(rule, "majority")))

    def ranking(r):
        return " ".join([*(f"{r.metrics['auc', t]['value']:.2f}" for t in range(1, 7)),
                         f"**{r.metrics['auc_verdict', 64]['value']:.2f}**"])
    row("AUC of correct against wrong: process rewards of thoughts 1 to 6, **outcome reward**",
        *by_split(prefix, ranking))


# What is compared on the fresh problems, as the documents call it.
COMPARED = (("judged, greedy", "the reasoner, greedy"), ("judged, majority@64", "the reasoner, majority@64"),
            ("self-judged, weighted@64", "**reward model with the reasoner's own reference trace**, weighted@64"),
            ("self-judged, best of 64", "the same, best of 64"), ("self-judged, beam", "the same, beam 8 x 8"),
            ("judged, weighted@64", "embedded reward model (stronger reference reasoner), weighted@64"),
            ("judged, best of 64", "the same, best of 64"), ("judged, beam", "the same, beam 8 x 8"),
            ("reference, greedy", "the reference reasoner, greedy"), ("reference, majority@64", "the reference reasoner, majority@64"),
            ("reference-judged, weighted@64", "the reference reasoner with its own reward model, weighted@64"),
            ("reference-judged, best of 64", "the same, best of 64"),
            ("judged and reference, majority of half of each", "majority of both reasoners, 32 trajectories each"))


def reward_models():
    """Reward models and their controls on problems 2000 to 4000 of each split."""
    head("what", "split", "accuracy", "over greedy", "over the reference reasoner")
    splits = {split: compared(split) for split in SPLITS}
    for label, name in COMPARED:
        for split in SPLITS:
            row(name, split, *splits[split][label])


def moved():
    """Gains over greedy of the embedded reward model on the problems that designs were compared on, and on fresh ones."""
    head("over greedy", "problems", *SPLITS)
    for rule, label in (("majority", "majority@64"), ("weighted", "weighted@64"), ("best_of", "best of 64"), ("beam", "beam 8 x 8")):
        row(label, "first 1,000", *by_split("embedded_tables/main", lambda r: r.gain(rule, "greedy")))
        row("", "2000 to 4000", *by_split("fresh/judged", lambda r: r.gain(rule, "greedy")))


def points(path):
    """The points of a sweep by run."""
    return {point["run"]: point for point in json.loads((RUNS / f"{path}.json").read_text())["points"]}


def coverage():
    """Coverage against N by split and sampler, on fresh problems."""
    head("split", "sampler", "N = 1", "N = 4", "N = 16", "N = 64")
    for split in SPLITS:
        for run in ("dropout-0.1", "noise-0.5", "dropout-0.3", "noise-1"):
            name = run.replace("dropout-", "dropout, p = ").replace("noise-", "noise, σ = ")
            row(split, name, *(share(points(f"fresh/sweep-{split}")[run]["coverage"][k]) for k in ("1", "4", "16", "64")))


def strengths():
    """Coverage@64 of every strength, on valid and on fresh problems, and the diversity on test."""
    sweeps = {split: points(f"fresh/sweep-{split}") for split in ("valid", *SPLITS)}
    head("strength", "diversity on test", *sweeps)
    for run, point in sweeps["test"].items():
        marks = {split: " *" if of[run]["as_good_as_best"] else "" for split, of in sweeps.items()}
        row(run.replace("-", " "), f"{point['diversity']['value']:.3f}",
            *(f"{100 * of[run]['coverage']['64']['value']:.1f}{marks[split]}" for split, of in sweeps.items()))


def doublings():
    """Points of coverage that each doubling of N gains, on fresh problems and on the test sets of SmolLM2."""
    head("model", "problems", "1 to 2", "2 to 4", "4 to 8", "8 to 16", "16 to 32", "32 to 64")
    runs = [("embedded", split, f"fresh/judged-{split}") for split in SPLITS]
    for model, name, path in [*runs, *(("SmolLM2", name, f"smollm2/{test}-dropout") for test, name in TESTS)]:
        m = Results(path).metrics
        gains = [100 * (m["coverage", 2 * k]["value"] - m["coverage", k]["value"]) for k in (1, 2, 4, 8, 16, 32)]
        row(model, name, *(f"{gain:.1f}" for gain in gains))


def ablation():
    """The published head and its variants on the embedded reasoner."""
    head("split", "reward model", "AUC at thought 6", "majority@8 / 64", "weighted@64", "best of 4 / 8 / 16 / 64", "best of 64 over majority",
         "best of 64 over greedy", "normalized@64 over greedy")
    for split in SPLITS:
        for name in ("contrastive", "bce", "final", "untrained"):
            r = Results(f"embedded_ablation/{name}-{split}")
            row(split, HEADS[name], f"{r.metrics['auc', 6]['value']:.2f}", f"{r.share('majority', 8)} / {r.share('majority', 64)}", r.share("weighted", 64),
                " / ".join(r.share("best_of", k) for k in (4, 8, 16, 64)), r.gain("best_of", "majority"), r.gain("best_of", "greedy"),
                r.gain("normalized", "greedy"))


def beams():
    """Beam search beside best of N at every square N, on fresh problems of test."""
    head("N", "majority", "best of N", "beam", "beam over majority")
    for n in (4, 9, 16, 25, 36, 49, 64):
        r = Results(f"fresh/beam{n}-test")
        row(str(n), *(r.with_interval(rule, n) for rule in ("majority", "best_of", "beam")), r.gain("beam", "majority"))


def searches():
    """Searches that rewards guide, beside the vote over as many samples."""
    head("64 trajectories or paths", "problems", "accuracy", "over majority", "GFLOP per question")
    labels = {"weighted": "weighted vote", "beam": "beam search, 8 x 8", "particles": "particle filter", "dvts": "tree search, 8 x 8"}
    for split in ("test", "hard"):
        for rule, label in labels.items():
            r = Results(f"searches/{split}-{'beam' if rule == 'weighted' else rule}")
            cost = r.cost if rule == "weighted" else r.cost["beam"]
            row(label, split, r.with_interval(rule, 64), r.gain(rule, "majority"), f"{cost['flops'] / 1e9:.1f}")


def lengths():
    """Four to six thoughts, drawn."""
    head("4 to 6 thoughts, accuracy in %", *SPLITS)
    prefix = "fresh/lengths"
    row("greedy, 6 thoughts", *by_split(prefix, lambda r: r.with_interval("greedy", 1)))
    for rule, label in (("best_of_mean", "mean process reward, the paper's"), ("best_of", "outcome reward")):
        row(f"best of 4 / 8 / 16, {label}", *by_split(prefix, lambda r: " / ".join(r.share(rule, k) for k in (4, 8, 16))))
        row("best of 16 over greedy", *by_split(prefix, lambda r: r.gain(rule, "greedy")))


def smollm2():
    """SmolLM2 on its test sets: baselines, rules and gains."""
    found = [(name, test) for test, name in TESTS]
    head("SmolLM2, accuracy in %", *(name for name, _ in found))

    def line(label, show, suffix):
        row(label, *(show(Results(f"smollm2/{test}-{suffix}")) for _, test in found))
    line("no chain of thought, greedy", lambda r: r.with_interval("greedy", 1), "no-cot")
    line("chain of thought, greedy", lambda r: r.with_interval("greedy", 1), "cot")
    line("latent, greedy", lambda r: r.with_interval("greedy", 1), "dropout")
    for rule in ("majority", "weighted", "normalized", "best_of", "coverage"):
        for k in (1, 4, 8, 16, 64):
            line(f"{rule}@{k}", lambda r: r.with_interval(rule, k), "dropout")
    for rule in ("majority", "coverage"):
        for k in (1, 4, 16, 64):
            line(f"{rule}@{k}, noise", lambda r: r.with_interval(rule, k), "noise")
    for rule in ("majority", "weighted", "normalized", "best_of"):
        for over in ("greedy", "majority")[: 1 if rule == "majority" else 2]:
            line(f"{rule}@64 over {over}", lambda r: r.gain(rule, over), "dropout")
    test = Results("smollm2/gsm_test-dropout")
    row("GSM8K: beam, and over greedy, and over majority", test.with_interval("beam", 64), test.gain("beam", "greedy"), test.gain("beam", "majority"))
    head("one greedy and one sampled trajectory: decoding steps, GFLOP, seconds of the run", *(name for name, _ in found))

    def cost(r):
        return f"{r.cost['steps']:.1f}, {r.cost['flops'] / 1e9:.1f}, {r.cost['seconds']['total']:.1f}"
    for suffix in ("no-cot", "cot", "ablated"):
        line(suffix.replace("ablated", "latent"), cost, suffix)
    for suffix in ("no-cot", "cot", "ablated"):
        valid = Results(f"smollm2/valid-{suffix}")
        row("valid", suffix.replace("ablated", "latent"), valid.with_interval("greedy", 1), cost(valid))
    seconds = test.cost["seconds"]
    sampled = sum(seconds[part] for part in ("prefill", "thoughts", "answers", "scores"))
    row("GSM8K, seconds at N = 64: all but beam search, scores, their share", f"{sampled:.1f}", f"{seconds['scores']:.1f}",
        f"{100 * seconds['scores'] / sampled:.0f}%")


def smollm2_heads():
    """The published head and its variants on SmolLM2, GSM8K test, one seed."""
    head("reward model", "majority@8 / 64", "best of 8", "best of 64", "best of 64 over majority", "weighted@64", "weighted@64 over majority")
    for name in ("contrastive", "bce", "final", "untrained"):
        r = Results(f"smollm2/gsm_test-{name}")
        row(HEADS[name], " / ".join(r.share("majority", k) for k in (8, 64)), r.with_interval("best_of", 8), r.with_interval("best_of", 64),
            r.gain("best_of", "majority"), r.with_interval("weighted", 64), r.gain("weighted", "majority"))


def smollm2_sweep():
    """Strengths on gsm_valid, one seed."""
    head("strength", "diversity", "coverage@1", "coverage@4", "coverage@16", "coverage@64", "majority@64")
    for kind in ("dropout", "noise"):
        for run, point in points(f"smollm2/sweep-{kind}").items():
            row(run.replace("-", " "), f"{point['diversity']['value']:.3f}", *(share(point["coverage"][k]) for k in ("1", "4", "16", "64")),
                share(point["majority"]["64"]))


def smollm2_sampling():
    """Coverage and votes of SmolLM2 by N, with dropout and with noise."""
    ks = (1, 2, 4, 8, 16, 32, 64)
    head("problems, sampler: rule", *(f"N = {k}" for k in ks))
    for test, label in TESTS:
        for sampler in ("dropout", "noise"):
            run = Results(f"smollm2/{test}-{sampler}")
            for rule in ("coverage", "majority", "weighted"):
                if (rule, 64) in run.metrics:
                    row(f"{label}, {sampler}: {rule}", *(run.share(rule, k) for k in ks))


def smollm2_masks():
    """Fresh masks, one mask for each trajectory, and sampled answer tokens, on gsm_valid."""
    head("gsm_valid, N = 64", "coverage@1", "coverage@64", "majority@64", "diversity")
    for name, label in (("answers-p0.3", "dropout, p = 0.3, fresh masks"), ("mask", "dropout, p = 0.3, one mask for each trajectory"), ("tokens", "sampled answer tokens")):
        run = Results(f"smollm2/valid-{name}")
        row(label, *(run.with_interval(*metric) for metric in (("coverage", 1), ("coverage", 64), ("majority", 64))), f"{run.metrics['diversity', 64]['value']:.3f}")


def smollm2_choice():
    """The two reward models that read answers, on gsm_valid."""
    head("gsm_valid, N = 64", "p", "majority", "weighted", "best of 64")
    for name, label in (("answers", "reads answers"), ("reference", "and the reasoner's unperturbed thoughts")):
        for p in ("0.2", "0.3"):
            run = Results(f"smollm2/valid-{name}-p{p}")
            row(label, p, *(run.share(rule, 64) for rule in ("majority", "weighted", "best_of")))


def smollm2_auc():
    """AUC of right against wrong trajectories of a question by reward, on GSM8K test."""
    metrics = Results("smollm2/gsm_test-dropout").metrics
    head("after", "AUC")
    for k in (1, 5, 10, 20, 30, 50):
        row(f"{k} thought{'s' if k > 1 else ''}", f"{metrics['auc', k]['value']:.2f}")
    row("the answer", f"{metrics['auc_verdict', 64]['value']:.2f}")


def smollm2_thoughts():
    """Accuracy of SmolLM2 with replaced thoughts."""
    runs = [json.loads((RUNS / f"smollm2/{test}-ablated-ablation.json").read_text()) for test, _ in TESTS]
    head("thoughts", *(label for _, label in TESTS))
    row("its own", *(share(run["clean"]) for run in runs))
    for at, kind in enumerate(runs[0]["ablations"]):
        row(kind["kind"], *(share(run["ablations"][at]["accuracy"]) for run in runs))


def families():
    """Small models like Latent-SFT and like Render-of-Thought, with each sampler at the strength that was chosen on valid."""
    head("model", "problems", "sampler", "greedy", "coverage@1", "@2", "@4", "@8", "@16", "majority@16", "majority@16 over greedy")
    for model, name in (("latent-sft", "like Latent-SFT"), ("rot", "like RoT")):
        for sampler, sign in (("dropout", "p"), ("noise", "σ")):
            sweep = json.loads((RUNS / f"families/{model}-{sampler}-valid.json").read_text())
            best = next(point["strength"] for point in sweep["points"] if point["run"] == sweep["best"])
            # A tiny run has the easy problems of test alone.
            for split in (s for s in SPLITS if (RUNS / f"families/{model}-{sampler}-{s}.json").exists()):
                r = Results(f"families/{model}-{sampler}-{split}")
                curve = (r.share("coverage", k) for k in (2, 4, 8))
                row(name, split, f"{sampler}, {sign} = {best:g}", r.with_interval("greedy", 1), r.with_interval("coverage", 1), *curve,
                    r.with_interval("coverage", 16), r.with_interval("majority", 16), r.gain("majority", "greedy"))


def baselines():
    """Answering at once, thinking in vectors and thinking in words, alone and with several trajectories."""
    head("model", "split", "greedy", "coverage@4", "best of 4", "majority@16", "coverage@16", "decoding steps of 16 sequences", "of no-cot's",
         "GFLOP a question")
    for model in ("no-cot", "latent", "cot"):
        for split in SPLITS:
            r, least = Results(f"baselines/{model}-{split}"), Results(f"baselines/no-cot-{split}")
            best = r.with_interval("best_of", 4) if ("best_of", 4) in r.metrics else ""
            row(model, split, r.with_interval("greedy", 1), r.with_interval("coverage", 4), best, r.with_interval("majority", 16),
                r.with_interval("coverage", 16), f"{r.cost['steps']:.0f}", f"{r.cost['steps'] / least.cost['steps']:.1f}",
                f"{r.cost['flops'] / 1e9:.1f}")


def rollouts():
    """Reward models of the published head by the rollouts behind their labels."""
    head("labels and training", "split", "majority@64", "best of 8", "best of 64", "weighted@64")
    for name, label in (("m128", "M = 128"), ("m4", "M = 4, the same problems"), ("m4-eightfold", "M = 4, eight times the problems"),
                        ("published", "M = 128, the published training")):
        for split in SPLITS:
            r = Results(f"rollouts/{name}-{split}")
            row(label, split, r.with_interval("majority", 64), *(r.with_interval("best_of", k) for k in (8, 64)), r.with_interval("weighted", 64))


def formats(folder, wide, narrow):
    """Every rule in two number formats, and their paired difference: folder below runs/, formats."""
    head("rule", *(f"{split}: {wide}, {narrow}, difference" for split in SPLITS))
    paired = {}
    for split in SPLITS:
        for line in (RUNS / folder / f"{split}.txt").read_text().splitlines():
            rule, _, difference = line.split(": ")
            paired[rule, split] = difference
    measured = ((rule, k) for rule, k in (("greedy", 1), ("majority", 64), ("weighted", 64), ("best_of", 64), ("beam", 64)) if (rule, "test") in paired)
    for rule, k in measured:
        cells = ([Results(f"{folder}/{name}-{split}").share(rule, k) for name in (wide, narrow)] + [paired[rule, split]] for split in SPLITS)
        row(rule.replace("_", " ") + (" 64" if k > 1 else ""), *(", ".join(cell) for cell in cells))


def thoughts():
    """Accuracy with replaced thoughts, of runs/ablation.json."""
    content = json.loads((RUNS / "ablation.json").read_text())

    def interval(of, sign=""):
        return f"{100 * of['value']:{sign}.1f} ({100 * of['low']:{sign}.1f} to {100 * of['high']:{sign}.1f})"
    head("thoughts", "accuracy", "difference", "changed")
    row("greedy", interval(content["clean"]), "", "")
    for kind in content["ablations"]:
        row(kind["kind"], interval(kind["accuracy"]), interval(kind["difference"], "+"), f"{100 * kind['changed']:.1f}")


TABLES = {f.__name__: f for f in (rules, reward_models, moved, coverage, strengths, doublings, ablation, beams, searches, lengths, smollm2,
                                  smollm2_heads, smollm2_sweep, smollm2_sampling, smollm2_masks, smollm2_choice, smollm2_auc,
                                  smollm2_thoughts, thoughts, families, baselines, rollouts, formats)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TABLES:
        sys.exit(f"usage: tables.py {'|'.join(TABLES)} [ARGUMENT...]")
    TABLES[sys.argv[1]](*sys.argv[2:])
