"""Ray on the local machine: two actors produce the same files as one process, even if they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import files
from latent_tts import Reasoner
from test_run import without_times

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

EVAL = ("eval", "--data", "embedded:ood", "--limit", "60", "-n", "8", "--latents", "--p", "0.2",
        "--questions-per-task", "4")  # fmt: skip
ANNOTATE = ("annotate", "--limit", "48", "-n", "4", "-m", "4", "--per-shard", "6")
ACTORS = ("--actors", "2", "--quiet")
WRITTEN = {"eval": "samples.jsonl", "annotate": "*.safetensors"}
QUIET = {"PYTHONWARNINGS": "ignore", "RAY_AUTH_MODE": "disabled", "RAY_DISABLE_IMPORT_WARNING": "1"}


@pytest.fixture(scope="module")
def alone(reasoner: Reasoner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files written by a single process."""
    out = tmp_path_factory.mktemp("alone")
    reasoner.evaluate(
        "embedded:ood", limit=60, samples=8, dropout_p=0.2, out=out / "run", keep_thoughts=True, progress=False
    )
    reasoner.annotate(
        limit=48, samples=4, rollouts=4, per_shard=6, out=out / "annotations", progress=False
    )
    return out


def start(*arguments: str) -> subprocess.Popen[str]:
    return run_python("-m", "latent_tts.ray", *arguments, *ACTORS)


def start_in_turn(jobs: list[tuple[str, ...]]) -> subprocess.Popen[str]:
    """Runs commands one after the other on one cluster, since starting a cluster is slow."""
    program = f"""
import sys
from latent_tts.ray.__main__ import main
for job in {jobs!r}:
    sys.argv[1:] = [*job, *{ACTORS!r}]
    if code := main():
        sys.exit(code)
"""
    return run_python("-c", program)


def run_python(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], env={**os.environ, **QUIET}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors


def descendants(pid: int) -> dict[int, str]:
    """The child processes of a process, with their command lines."""
    found, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                line = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            parents[int(entry.name)] = (int(stat[1]), line)
    below = {pid}
    while more := {p for p, (parent, _) in parents.items() if parent in below} - below:
        below |= more
    found = {p: parents[p][1] for p in below - {pid}}
    return found


def actors(pid: int) -> list[int]:
    return [p for p, line in descendants(pid).items() if line.startswith("ray::") and "Actor" in line]


def wait_for_output(process: subprocess.Popen[str], written: Path) -> None:
    """Waits until something is written, so that the next action happens during the run."""
    while not (list(written.parent.glob(written.name)) and _size(written)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def _size(pattern: Path) -> int:
    return sum(path.stat().st_size for path in pattern.parent.glob(pattern.name))


@pytest.mark.parametrize("command", ["eval", "annotate"])
def test_a_killed_actor_changes_nothing(command: str, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(*(EVAL if command == "eval" else ANNOTATE), "--out", str(out))
    wait_for_output(process, out / WRITTEN[command])
    (victim, *_) = actors(process.pid)
    os.kill(victim, signal.SIGKILL)
    before = _size(out / WRITTEN[command])
    finish(process)
    compare(command, out, alone)
    assert before < _size(out / WRITTEN[command])


@pytest.mark.parametrize("command", ["eval", "annotate"])
def test_a_killed_driver_is_resumed(command: str, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (*(EVAL if command == "eval" else ANNOTATE), "--out", str(out))
    process = start(*arguments)
    wait_for_output(process, out / WRITTEN[command])
    below = descendants(process.pid)
    process.kill()
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate()
    before = _size(out / WRITTEN[command])
    finish(start(*arguments, "--resume"))
    compare(command, out, alone)
    assert before < _size(out / WRITTEN[command])


def test_undisturbed_jobs_are_one_processs(
    reasoner: Reasoner, alone: Path, tmp_path: Path
) -> None:
    reasoner.sweep(dropout_p=[0.1, 0.3], limit=6, samples=4, seed=3, out=tmp_path / "alone", progress=False)
    sweep = ("sweep", "--p", "0.1,0.3", "--limit", "6", "-n", "4", "--seed", "3")
    jobs = [(*job, "--out", str(tmp_path / job[0])) for job in (EVAL, ANNOTATE, sweep)]
    finish(start_in_turn(jobs))
    compare("eval", tmp_path / "eval", alone)
    compare("annotate", tmp_path / "annotate", alone)
    assert files(tmp_path / "sweep") == files(tmp_path / "alone")


def test_bad_arguments_are_one_line() -> None:
    process = start("eval", "--data", "embedded:nope")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "train, valid, test" in errors.splitlines()[-1]


def compare(command: str, out: Path, alone: Path) -> None:
    if command == "eval":
        assert without_times(out) == without_times(alone / "run")
    else:
        assert files(out) == files(alone / "annotations")
