"""Where the time of a run at 64 x 64 goes, from what gpu_trace.c noted: python3 runs/gpu_trace.py TRACE [ANSWER_TOKENS]

Of the fastest run: each kernel's time from the end of the one before it to its own end, so that what overlaps counts once and
what is between two kernels counts for the second; then the median of the same by pass."""
import collections
import sys

path, tokens = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
events = sorted((int(start), int(end), name) for start, end, name in (line.split(None, 2) for line in open(path)))
events = [(start, end, name.strip()) for start, end, name in events]
# A run ends with its last search for the likeliest tokens; copies run beside the kernels.
runs, run, searches = [], [], 0
for event in (event for event in events if event[2] != "copy"):
    run.append(event)
    if event[2] == "likeliest_whole":
        searches += 1
        if searches % tokens == 0:
            runs.append(run)
            run = []
runs = runs[1:]  # the first one had loading and warming before it


def alone(run):
    """Without what was before the last long pause."""
    pauses = [i for i in range(1, len(run)) if run[i][0] - run[i - 1][1] > 100_000]
    return run[pauses[-1] if pauses else 0:]


runs = [alone(run) for run in runs]
print("runs, us:", *(f"{(run[-1][1] - run[0][0]) / 1e3:.0f}" for run in runs))
best = min(runs, key=lambda run: run[-1][1] - run[0][0])


def exposed(run):
    """(name, microseconds) of each kernel: from the end of all before it to its own."""
    end, before = run[0][0], None
    for start, stop, name in run:
        label = name
        if name == "residual_768":
            label = "residual_768 " + ("768" if before == "attention_64" else "3072")
        yield label, max(0, stop - end) / 1e3, max(0, start - end) / 1e3
        end, before = max(end, stop), name


times, counts, gaps = collections.Counter(), collections.Counter(), 0.0
for name, time, gap in exposed(best):
    times[name] += time
    counts[name] += 1
    gaps += gap
print(f"\nthe fastest: {sum(times.values()):.0f} us, of which nothing runs {gaps:.0f}")
for name, time in times.most_common():
    print(f"{time:9.1f} us  {counts[name]:4d} x {time / counts[name]:7.2f}  {name}")
print("\nby pass: us, then the median of each kernel's")
passes, one = [], []
for event in best:
    if event[2].startswith("add_norm_1_1") and one:
        passes.append(one)
        one = []
    one.append(event)
for one in passes + [one]:
    if len(one) < 20:
        continue
    of = collections.defaultdict(list)
    for name, time, _ in exposed(one):
        of[name].append(time)
    print(f"{(one[-1][1] - one[0][0]) / 1e3:7.0f} ", ", ".join(f"{name} {sorted(t)[len(t) // 2]:.1f}" for name, t in of.items()))
