"""What Ray adds to an evaluation on the same cores.

    RAY_AUTH_MODE=disabled python runs/ray_overhead.py [QUESTIONS [PAIRS]]

Alternates one process with two threads and two Ray actors with one thread each, with the same
settings, and prints wall-clock and CPU seconds of the whole commands: Ray's start, its daemons and
the loading of models included. On a machine that does other things too the clock says little; CPU
seconds are those of the command and of every process below it, looked at five times a second.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUESTIONS = sys.argv[1] if len(sys.argv) > 1 else "400"
PAIRS = int(sys.argv[2]) if len(sys.argv) > 2 else 1
TICKS = os.sysconf("SC_CLK_TCK")
ALONE = """
import sys, latent_tts
reasoner = latent_tts.Reasoner.from_pretrained("embedded", device="cpu", threads=2)
reasoner.evaluate(limit=int(sys.argv[1]), samples=64, out=sys.argv[2], progress=False)
"""


def processes() -> dict[int, tuple[int, float]]:
    """The parent and the CPU seconds of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            found[int(entry.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS)
    return found


def timed(line: list[str]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a command and all below it."""
    start, below, cpu = time.perf_counter(), set[int](), dict[int, float]()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    below.add(process.pid)
    while process.poll() is None:
        now = processes()
        while more := {pid for pid, (parent, _) in now.items() if parent in below} - below:
            below |= more
        cpu.update({pid: now[pid][1] for pid in below if pid in now})
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"{line} ended with {process.returncode}")
    return time.perf_counter() - start, sum(cpu.values())


def pair(scratch: str) -> tuple[tuple[float, float], tuple[float, float]]:
    alone = timed([sys.executable, "-c", ALONE, QUESTIONS, scratch + "/alone"])
    ray = timed(
        [sys.executable, "-m", "latent_tts.ray", "eval", "--limit", QUESTIONS, "-n", "64",
         "--actors", "2", "--threads", "1", "--questions-per-task", "16", "--quiet",
         "--out", scratch + "/ray"])  # fmt: skip
    same = [Path(scratch, name, "samples.jsonl").read_bytes() for name in ("alone", "ray")]
    assert same[0] == same[1], "the samples differ"
    return alone, ray


def main() -> None:
    added = []
    for index in range(PAIRS):
        with tempfile.TemporaryDirectory() as scratch:
            alone, ray = pair(scratch)
        added.append((ray[0] / alone[0] - 1, ray[1] / alone[1] - 1, ray[1] - alone[1]))
        print(f"pair {index}: one process wall {alone[0]:.1f} s, cpu {alone[1]:.1f} s; two actors "
              f"wall {ray[0]:.1f} s, cpu {ray[1]:.1f} s; load average {os.getloadavg()[1]:.1f}",
              flush=True)  # fmt: skip
    wall, cpu, seconds = (statistics.median(column) for column in zip(*added))
    print(f"{QUESTIONS} questions x 64: Ray adds {100 * wall:+.1f}% of wall-clock and "
          f"{100 * cpu:+.1f}% of CPU time ({seconds:+.1f} CPU s), medians of {PAIRS}; same samples")  # fmt: skip


if __name__ == "__main__":
    main()
