"""What Ray adds to an evaluation on the same cores.

    RAY_AUTH_MODE=disabled python runs/ray_overhead.py [QUESTIONS]

One process with two threads, then two Ray actors with one thread each, with the same settings;
seconds of the whole commands, Ray's start and the loading of models included. On a machine that does
other things too, CPU seconds (those of Ray's daemons included) say more than the clock.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

QUESTIONS = sys.argv[1] if len(sys.argv) > 1 else "600"
ALONE = """
import sys, latent_tts
reasoner = latent_tts.Reasoner.from_pretrained("embedded", device="cpu", threads=2)
reasoner.evaluate(limit=int(sys.argv[1]), n=64, out=sys.argv[2], progress=False)
"""


def timed(line: list[str]) -> tuple[float, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        alone = timed([sys.executable, "-c", ALONE, QUESTIONS, scratch + "/alone"])
        load = os.getloadavg()[0]
        ray = timed(
            [sys.executable, "-m", "latent_tts.ray", "eval", "--limit", QUESTIONS, "-n", "64",
             "--actors", "2", "--threads", "1", "--questions-per-task", "16", "--quiet",
             "--out", scratch + "/ray"])  # fmt: skip
        same = (
            open(scratch + "/alone/samples.jsonl", "rb").read()
            == open(scratch + "/ray/samples.jsonl", "rb").read()
        )
    print(f"one process: wall {alone[0]:.1f} s, cpu {alone[1]:.1f} s (load average {load:.1f})")
    print(f"two actors:  wall {ray[0]:.1f} s, cpu of reaped processes {ray[1]:.1f} s "
          f"(load average {os.getloadavg()[0]:.1f})")  # fmt: skip
    print(f"overhead {100 * (ray[0] / alone[0] - 1):+.1f}% of wall time; same samples: {same}")


if __name__ == "__main__":
    main()
