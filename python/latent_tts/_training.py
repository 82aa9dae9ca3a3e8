"""Training of reasoners by every method, and of reward models on annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from . import _core
from ._progress import Progress, fetch, logger


class TrainingExample(NamedTuple):
    """A question with worked steps, such as ``<<16-3-4=9>>``, and an answer."""

    question: str
    steps: list[str]
    answer: str


class Training:
    """The result of a training: the model's directory with its learning curves."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.path = Path(report["out"])
        """The model's directory, for :meth:`Reasoner.from_pretrained`."""
        self.finished: bool = report["finished"]
        """Whether the training completed all steps or stopped early."""
        self.seconds: float = report["seconds"]
        self.kept: dict[str, Any] | None = report["kept"]
        """The evaluation of the retained model: step, score and metrics."""

    def __repr__(self) -> str:
        return f"Training({str(self.path)!r}, finished={self.finished})"

    def log(self) -> list[dict[str, Any]]:
        """Returns losses, learning rate and gradient norm of every step."""
        text = (self.path / "training" / "log.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns every evaluation on held-out data."""
        text = (self.path / "training" / "evals.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


class _Events:
    """Reports events of a training to a progress bar, the log and a callback."""

    def __init__(self, bar: Progress, callback: Callable[[dict[str, Any]], object] | None) -> None:
        self._bar = bar
        self._callback = callback
        self._before = 0
        self._started = False

    def __call__(self, text: str) -> None:
        event: dict[str, Any] = json.loads(text)
        if event["event"] == "step":
            if not self._started:
                self._started = True
                self._bar.start(self._before, event["total"])
            self._bar(None, 1)
        elif event["event"] == "resumed":
            self._before = event["steps"]
        elif event["event"] == "evaluation":
            logger.info("after %d steps: %s", event["record"]["step"], event["record"]["metrics"])
        else:
            logger.log(30 if event["event"] == "warning" else 20, "%s", event["text"])
        if self._callback is not None:
            self._callback(event)


def train_reasoner(
    out: str | PathLike[str],
    *,
    preset: str | None = None,
    examples: Iterable[TrainingExample | Mapping[str, Any]] | None = None,
    held_out_examples: Iterable[TrainingExample | Mapping[str, Any]] | None = None,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    progress: bool = True,
    callback: Callable[[dict[str, Any]], object] | None = None,
    **options: Any,
) -> Training:
    """Trains a latent reasoner, or a baseline with or without a chain of thought in text.

    The options are the flags of ``latent-tts train reasoner`` with underscores: ``method``,
    ``mode``, ``init``, ``base``, ``data``, ``steps``, ``batch``, ``lr``, ``lora``, ...;
    ``training_options("reasoner")`` returns all of them with their defaults. ``preset`` names a set
    of options. ``examples`` and ``held_out_examples`` replace the files named by ``data`` and
    ``held_out``. ``callback`` is called with every event, a dict whose ``event`` is ``step``,
    ``evaluation``, ``resumed``, ``note`` or ``warning``. Ctrl-C saves the state after the current
    step, and ``resume=True`` continues from it. The files are byte-identical to those of the
    command line.
    """
    arguments = _arguments(out, preset, options, device, dtype, threads)
    with Progress(progress, what="steps") as bar:
        report = _core.train_reasoner(
            arguments, _tuples(examples), _tuples(held_out_examples), _Events(bar, callback)
        )
    return Training(json.loads(report))


def train_reward(
    out: str | PathLike[str],
    *,
    preset: str | None = None,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    progress: bool = True,
    callback: Callable[[dict[str, Any]], object] | None = None,
    **options: Any,
) -> Training:
    """Trains a latent reward model on annotations written by :meth:`Reasoner.annotate`.

    The options are the flags of ``latent-tts train reward`` with underscores: ``model``,
    ``annotations``, ``held_out``, ``objective``, ``base``, ``steps``, ...;
    ``training_options("reward")`` returns all of them with their defaults. The other arguments are
    those of :func:`train_reasoner`.
    """
    arguments = _arguments(out, preset, options, device, dtype, threads)
    with Progress(progress, what="steps") as bar:
        report = _core.train_reward(arguments, _Events(bar, callback))
    return Training(json.loads(report))


def train_rl(
    out: str | PathLike[str],
    *,
    questions: Iterable[TrainingExample | Mapping[str, Any]] | None = None,
    held_out_questions: Iterable[TrainingExample | Mapping[str, Any]] | None = None,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    progress: bool = True,
    callback: Callable[[dict[str, Any]], object] | None = None,
    **options: Any,
) -> Training:
    """Trains a reasoner by reinforcement learning on its own sampled trajectories.

    The options are the flags of ``latent-tts train rl`` with underscores: ``model``, ``data``,
    ``samples``, ``sampler``, ``estimator``, ``reward``, ``steps``, ...; ``training_options("rl")``
    returns all of them with their defaults. ``questions`` and ``held_out_questions`` replace the
    files named by ``data`` and ``held_out``; steps are not read. The other arguments are those of
    :func:`train_reasoner`.
    """
    arguments = _arguments(out, None, options, device, dtype, threads)
    with Progress(progress, what="steps") as bar:
        report = _core.train_rl(
            arguments, _tuples(questions), _tuples(held_out_questions), _Events(bar, callback)
        )
    return Training(json.loads(report))


def training_options(kind: str) -> dict[str, Any]:
    """Returns the options of a training (``reasoner``, ``reward`` or ``rl``) with their defaults.

    >>> training_options("reasoner")["curriculum_end"]
    0.4
    """
    reasoner, reward, rl = _core.training_options()
    by_kind = {"reasoner": reasoner, "reward": reward, "rl": rl}
    options: dict[str, Any] = json.loads(by_kind[kind])
    return {
        name: float(f"{value:.7g}") if isinstance(value, float) else value
        for name, value in options.items()
    }


def _arguments(
    out: str | PathLike[str],
    preset: str | None,
    options: dict[str, Any],
    device: str,
    dtype: str | None,
    threads: int | None,
) -> dict[str, Any]:
    """Returns the arguments of the extension module, after downloading models named by a Hub id."""
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    models = [given.get(name) for name in ("init", "model", "reference")]
    fetch(
        [model for model in models if model not in (None, "reasoner", "none")],
        base=given.get("base"),
    )
    return {
        "out": Path(out),
        "options": json.dumps(given),
        "preset": preset,
        "device": device,
        "dtype": dtype,
        "threads": threads,
    }


def _plain(value: Any) -> Any:
    """Converts a value for JSON; paths become text."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _tuples(
    examples: Iterable[TrainingExample | Mapping[str, Any]] | None,
) -> list[tuple[str, list[str], str]] | None:
    if examples is None:
        return None
    fields = (
        (one["question"], one.get("steps", ()), one["answer"])
        if isinstance(one, Mapping)
        else one
        for one in examples
    )
    return [(question, list(steps), str(answer)) for question, steps, answer in fields]
