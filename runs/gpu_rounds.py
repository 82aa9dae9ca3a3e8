"""What took turns in rounds, as a table: the lines that pytorch_train_peer.py and pytorch_peer.py print with --rounds.

For each way to run a work: its best time of all rounds, the median of the rounds' medians, both in milliseconds, the times that the
engine's median goes into it, the most memory in GiB, and the rounds that there were. A way that failed has its error instead.

  python gpu_rounds.py FILE.jsonl...
"""

import json
import statistics
import sys

NAMES = ("shape", "work", "point", "precision", "run")


def times(line):
    """The best and the median of a line, in milliseconds."""
    if "ms_per_step" in line:
        return line["ms_per_step"], line["median_ms"]
    return 1e3 * line["best_s"], 1e3 * line["median_s"]


def main():
    groups = {}
    for path in sys.argv[1:]:
        with open(path) as file:
            for line in filter(str.strip, file):
                line = json.loads(line)
                groups.setdefault(tuple(str(line[name]) for name in NAMES if name in line), []).append(line)
    medians = {}
    for name, lines in groups.items():
        measured = [times(line) for line in lines if "error" not in line]
        if measured:
            medians[name] = statistics.median(median for _, median in measured)
    ours = {name[:-2] if name[-2:] == ("ours", "ours") else name[:-1]: x for name, x in medians.items() if name[-1] == "ours"}
    print(f"{'':50} {'best ms':>9} {'median':>9} {'ours x':>7} {'GiB':>7} rounds")
    for name, lines in groups.items():
        label = " ".join(dict.fromkeys(name))
        if name not in medians:
            print(f"{label:50} {lines[-1]['error']}")
            continue
        best = min(times(line)[0] for line in lines if "error" not in line)
        place = next((key for key in ours if name[: len(key)] == key), None)
        ratio = f"{medians[name] / ours[place]:.2f}" if place is not None else ""
        memory = [line["peak_mib"] / 1024 for line in lines if line.get("peak_mib")]
        print(f"{label:50} {best:9.2f} {medians[name]:9.2f} {ratio:>7} {max(memory, default=float('nan')):7.2f} {len(lines)}")


if __name__ == "__main__":
    main()
