#!/usr/bin/env python3
"""How our grades agree with other graders: grading_agreement.py RUN... [--pairs crates/data/tests/pairs.tsv]

Of a run, every text that was decoded is graded again: by lm-evaluation-harness' task gsm8k (its own file, strict and
flexible), and by the code that was published with COCONUT (the text after the last `#`) and with CODI (the last number).
Of the table of pairs, the formulas are graded by the harness' hendrycks_math (`is_equiv` on the last box), and numbers
as texts of a run. Needs the package lm-eval."""
import argparse
import collections
import importlib.util
import json
import pathlib
import re

import lm_eval.tasks
import yaml

TASKS = pathlib.Path(lm_eval.tasks.__file__).parent
GRADERS = ["harness, strict", "harness, flexible", "published COCONUT", "published CODI"]


def harness_gsm8k():
    """The patterns of the harness' own task: by filter, and those that a comparison ignores."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("!", lambda *_: None)
    task = yaml.load((TASKS / "gsm8k/gsm8k.yaml").read_text(), loader)
    filters = {f["name"]: f["filter"][0] for f in task["filter_list"]}
    return filters, task["metric_list"][0]["regexes_to_ignore"]


FILTERS, IGNORED = harness_gsm8k()


def harness(name, text, gold):
    """As the harness does it: the chosen match, then equality without what is ignored."""
    found = re.findall(FILTERS[name]["regex_pattern"], text)
    match = found[FILTERS[name].get("group_select", 0)] if found else "[invalid]"
    if isinstance(match, tuple):
        match = next((group for group in match if group), "[invalid]")
    plain = match.strip().lower()
    for pattern in IGNORED:
        plain, gold = re.sub(pattern, "", plain), re.sub(pattern, "", gold.lower())
    return plain == gold


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def coconut(text, gold):
    return text.split("#")[-1].replace(",", "").strip() == gold.replace(",", "").strip()


def codi(text, gold):
    found = re.findall(r"-?\d+\.?\d*", text.replace(",", ""))
    return bool(found) and number(found[-1]) == number(gold.replace(",", ""))


def grades(text, gold):
    """By each grader of GRADERS. The strict filter reads `####`, which latent models write as `###`."""
    strict = re.sub(r"(?<!#)###(?!#)", "####", text)
    return [harness("strict-match", strict, gold), harness("flexible-extract", text, gold),
            coconut(text, gold), codi(text, gold)]


def compare(title, rows):
    """Rows of (ours, {grader: theirs}, text, gold)."""
    tables = collections.defaultdict(collections.Counter)
    examples = collections.defaultdict(list)
    for ours, theirs, text, gold in rows:
        for name, grade in theirs.items():
            tables[name][ours, grade] += 1
            if ours != grade:
                examples[name].append(f"ours {'right' if ours else 'wrong'}: gold {gold!r}, text {text[-60:]!r}")
    for name, table in tables.items():
        count = sum(table.values())
        agreed = table[True, True] + table[False, False]
        print(f"{title}: {name}: {count} texts, agreement {100 * agreed / count:.2f}%, both right {table[True, True]}, "
              f"both wrong {table[False, False]}, only ours right {table[True, False]}, only theirs {table[False, True]}")
        for line in examples[name][:4]:
            print(f"    {line}")


def of_run(path):
    for line in (path / "samples.jsonl").open():
        sample = json.loads(line)
        for trajectory in [*sample["trajectories"], *filter(None, [sample.get("greedy")])]:
            text, gold = trajectory["text"], sample["gold"]
            yield trajectory["correct"], dict(zip(GRADERS, grades(text, gold))), text, gold


def hendrycks():
    spec = importlib.util.spec_from_file_location("hendrycks", TASKS / "hendrycks_math/utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_pairs(path):
    """The grades of the table, which its test holds us to, beside those of the harness, of formulas in boxes."""
    math = hendrycks()
    for line in path.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        rule, kind, gold, verdict, text = line.split("\t")
        if (rule, kind) == ("boxed", "math"):
            try:
                boxed = math.remove_boxed(math.last_boxed_only_string(text))
            except (AssertionError, TypeError):
                boxed = None
            theirs = boxed is not None and math.is_equiv(boxed, gold)
            yield verdict in ("right", "lenient"), {"harness, hendrycks_math": theirs}, text, gold


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=pathlib.Path)
    parser.add_argument("--pairs", type=pathlib.Path)
    args = parser.parse_args()
    for run in args.runs:
        compare(run.name, of_run(run))
    if args.pairs:
        compare(args.pairs.name, of_pairs(args.pairs))


if __name__ == "__main__":
    main()
