"""The table of runs/scaling.sh: a line for each measurement as it arrives, `SERIES QUESTIONS SAMPLES JSON`.

The last column is the time divided by that of the line before, as a power of the trajectories: 0 where more of them
take no longer, 1 where the cost grows linearly.
"""
import json
import math
import sys

TITLES = {
    "N": "one question, more trajectories",
    "questions-1": "more questions, one trajectory each",
    "questions-16": "more questions, 16 trajectories each",
}


def gib(size):
    return f"{size / 2**30:10.3f}" if size is not None else f"{'-':>10}"


series, before = None, None
for line in sys.stdin:
    name, questions, samples, document = line.split(" ", 3)
    run = json.loads(document)
    rows, seconds = int(questions) * int(samples), run["best_s"]
    if name != series:
        if series is None:
            print(f"{run['device']}; GiB held at most: of the process, of the GPU")
        print(f"\n{TITLES[name]}\nquestions      N  trajectories    best s  median s  trajectories/s   process       GPU  growth")
        series, before = name, None
    growth = ""
    if before and rows > before[0]:
        growth = f"{math.log(seconds / before[1]) / math.log(rows / before[0]):7.2f}"
    print(
        f"{questions:>9} {samples:>6} {rows:>13} {seconds:9.4f} {run['median_s']:9.4f} {run['trajectories_per_s']:15.1f}"
        f"{gib(run['peak_memory'])}{gib(run['gpu_peak_memory'])} {growth}",
        flush=True,
    )
    before = rows, seconds
