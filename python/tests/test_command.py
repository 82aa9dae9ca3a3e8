"""The console script of the wheel runs the Rust program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

QUESTION = (
    "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?"
)
SCRIPT = Path(sysconfig.get_path("scripts")) / "latent-tts"
SOLVE = ["solve", "--json", "--quiet", "-n", "4", "--seed", "3", "--device", "cpu", QUESTION]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("program", [[str(SCRIPT)], [sys.executable, "-m", "latent_tts"]])
def test_the_script_solves(program: list[str]) -> None:
    done = run(*program, *SOLVE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer"] == "7"


def test_the_script_is_the_binary() -> None:
    binary = os.environ.get("LATENT_TTS_BIN")
    if binary is None:
        pytest.skip("LATENT_TTS_BIN names no binary to compare with")
    ours, theirs = json.loads(run(str(SCRIPT), *SOLVE).stdout), json.loads(run(binary, *SOLVE).stdout)
    for key in ("answer", "trajectories", "votes"):
        assert ours.get(key) == theirs.get(key)
    assert run(str(SCRIPT), "--version").stdout == run(binary, "--version").stdout
    assert "--upstream" in run(str(SCRIPT), "serve", "--help").stdout


def test_bad_usage_has_its_exit_code() -> None:
    done = run(str(SCRIPT), "solve", "--samples", "none", "x")
    assert done.returncode == 2
    assert "--samples" in done.stderr
