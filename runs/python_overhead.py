"""What Python adds to an evaluation, and how much of it the GIL is held.

    python runs/python_overhead.py [REPETITIONS] [QUESTIONS]

Alternates `latent-tts eval` (LATENT_TTS_BIN, or the build of this checkout) with
`Reasoner.evaluate` in a process of its own, with the same settings and two threads, and compares
wall-clock and CPU seconds of the whole processes, start included. The calling thread holds the GIL
whenever it runs at all, so that its CPU time over the call's wall-clock time bounds the share of
time in which other threads of Python wait.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BINARY = os.environ.get("LATENT_TTS_BIN", str(ROOT / "target/debug/latent-tts"))
REPETITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
QUESTIONS = sys.argv[2] if len(sys.argv) > 2 else "200"

SCRIPT = """
import sys, time, latent_tts
reasoner = latent_tts.Reasoner.from_pretrained("embedded", device="cpu", threads=2)
wall, own = time.perf_counter(), time.thread_time()
reasoner.evaluate(limit=int(sys.argv[1]), samples=32, out=sys.argv[2], progress=False)
print((time.thread_time() - own) / (time.perf_counter() - wall))
"""


def timed(line: list[str]) -> tuple[float, float, str]:
    """Wall-clock and CPU seconds of a process, and what it prints."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def main() -> None:
    rows: dict[str, list[tuple[float, float]]] = {"command": [], "python": []}
    shares = []
    with tempfile.TemporaryDirectory() as scratch:
        for repetition in range(REPETITIONS):
            out = f"{scratch}/{repetition}"
            wall, cpu, _ = timed(
                [BINARY, "eval", "--limit", QUESTIONS, "-n", "32", "--device", "cpu", "--threads",
                 "2", "--no-report", "--quiet", "--out", out + "c"])  # fmt: skip
            rows["command"].append((wall, cpu))
            wall, cpu, text = timed([sys.executable, "-c", SCRIPT, QUESTIONS, out + "p"])
            rows["python"].append((wall, cpu))
            shares.append(float(text))
            print(f"pair {repetition}: cpu {rows['command'][-1][1]:.2f} s and {cpu:.2f} s", flush=True)
    for name, times in rows.items():
        wall, cpu = (statistics.median(column) for column in zip(*times))
        print(f"{name:8} wall {wall:7.2f} s  cpu {cpu:7.2f} s  all cpu", *(f"{c:.2f}" for _, c in times))
    added = [p / c - 1 for (_, c), (_, p) in zip(rows["command"], rows["python"])]
    print(f"python adds {100 * statistics.median(added):+.1f}% of CPU time (median of pairs)")
    print(f"GIL held at most {100 * max(shares):.2f}% of the call's time")
    print("load average", *(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
