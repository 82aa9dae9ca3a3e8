"""Calibration: the combination of all signals of a run, and the confidence of its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from . import _core
from ._run import RunDirectory

Run = RunDirectory | str | PathLike[str]


def calibrate(
    runs: Run | Sequence[Run],
    *,
    measure: Run | Sequence[Run] = (),
    signals: Sequence[str] | None = None,
    out: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """Fits the weights of all signals to runs on problems that no model was trained on.

    Pass the result's ``calibration`` as the sampling option of that name. It enables the rule
    ``calibrated`` and the confidence, the probability that the answer is correct. ``signals`` are
    the signals used beside the votes, by default all that the runs have: ``likelihood``,
    ``reward``, ``probe``, ``arithmetic``, ``grounding``, ``conclusion``. With ``measure``, the
    result also has the accuracy, the difference to the majority and the calibration error on other
    runs, and an ablation of the signals. ``out`` is written for ``latent-tts eval --calibration``.
    """
    text = _core.calibrate(_paths(runs), _paths(measure), None if signals is None else [*signals])
    report: dict[str, Any] = json.loads(text)
    if out is not None:
        Path(out).write_text(json.dumps(report["calibration"], indent=2) + "\n")
    return report


def _paths(runs: Run | Sequence[Run]) -> list[str]:
    """Returns the directories of one or several runs."""
    several = [runs] if isinstance(runs, (RunDirectory, str, PathLike)) else list(runs)
    return [str(run.path) if isinstance(run, RunDirectory) else fspath(run) for run in several]
