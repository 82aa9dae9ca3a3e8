"""How many trajectories of other runs answer as those of the first do: agreement.py RUN RUN...

A RUN is a run directory (samples.jsonl) of `latent-tts eval`, all on the same questions and seeds: the same random numbers in another number
format, say. Beside it stand the greedy answers that agree, and the root mean square of the differences of rewards, of outcomes (where answers
agree) and of thoughts.
"""

import json
import pathlib
import sys


def samples(folder):
    with (pathlib.Path(folder) / "samples.jsonl").open() as lines:
        return {(s["id"], s["seed"]): s for s in map(json.loads, lines)}


def root_mean_square(pairs):
    squares = [(a - b) ** 2 for a, b in pairs]
    return f"{(sum(squares) / len(squares)) ** 0.5:.4f}" if squares else "none"


def main(first, *others):
    ours = samples(first)
    for folder in others:
        theirs = samples(folder)
        if ours.keys() != theirs.keys():
            sys.exit(f"{folder}: not the questions of {first}")
        both = [(s, theirs[key]) for key, s in ours.items()]
        rows = [pair for s, t in both for pair in zip(s["trajectories"], t["trajectories"], strict=True)]
        same = [(a, b) for a, b in rows if a["answer"] == b["answer"]]
        greedy = sum(s["greedy"]["answer"] == t["greedy"]["answer"] for s, t in both)
        outcomes = [(a["verdict"], b["verdict"]) for a, b in same if a.get("verdict") is not None]
        process = [pair for a, b in rows for pair in zip(a.get("scores") or [], b.get("scores") or [])]
        print(f"{folder}: {len(same)} of {len(rows)} trajectories agree, {100 * len(same) / len(rows):.1f}%; greedy {greedy} of {len(both)}; "
              f"rewards differ by {root_mean_square(outcomes)} (outcomes), {root_mean_square(process)} (thoughts)")


if len(sys.argv) < 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
