"""Run directories, written by ``evaluate`` and ``latent-tts eval``, and sweeps of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core, _frames
from ._figures import Figure
from ._voting import register_rule, rule_name


class RunDirectory:
    """A run with its settings, results and trajectories. It may be unfinished."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        manifest, _ = _core.run_json(self.path)
        self.manifest: dict[str, Any] = json.loads(manifest)
        """The content of ``manifest.json``: settings, seeds, host and versions."""

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def _repr_html_(self) -> str:
        if self.results is None:
            return f"<p>{escape(repr(self))}: not finished</p>"
        return f"<p>{escape(str(self.path))}</p><pre>{escape(self.table())}</pre>"

    @property
    def results(self) -> dict[str, Any] | None:
        """The content of ``results.json``; ``None`` until the run is finished."""
        results: dict[str, Any] | None = json.loads(_core.run_json(self.path)[1])
        return results

    def metric(self, name: str, k: int | None = None) -> float:
        """Returns a metric such as ``coverage`` or ``majority`` at k trajectories.

        Without ``k``, the largest recorded k is used.
        """
        results = self.results or {"metrics": []}
        found = {m["k"]: m["value"] for m in results["metrics"] if m["name"] == name}
        if not found or (k is not None and k not in found):
            raise KeyError(f"{name} at k={k}; there are {sorted(found)}")
        return float(found[max(found) if k is None else k])

    def rescore(
        self, *rules: Any, page: bool | None = None
    ) -> RunDirectory:
        """Measures additional voting rules on the recorded trajectories and rewrites
        ``results.json``. Nothing is sampled.

        A rule is a name or a callable (see :data:`latent_tts.RuleFunction`);
        ``rescore("mine", function)`` gives the callable a name. An existing report is rewritten;
        ``page`` overrides this.
        """
        if len(rules) == 2 and isinstance(rules[0], str) and callable(rules[1]):
            name, function = rules
            register_rule(name, function)
            rules = (name,)
        _core.rescore_run(self.path, [rule_name(rule) for rule in rules])
        if (self.path / "report.html").exists() if page is None else page:
            self.report()
        return self

    def report(self, *others: RunDirectory, out: str | PathLike[str] | None = None) -> Path:
        """Writes a report with figures of this run and others into ``out`` and returns its path.

        ``out`` defaults to the run directory."""
        paths = [run.path for run in (self, *others)]
        return _core.write_report(paths, self.path if out is None else Path(out))

    def table(self, *, width: int = 100, all_rules: bool = False) -> str:
        """Returns the results as the text table of ``latent-tts eval``."""
        return _core.run_table(self.path, width, all_rules)

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yields the records of ``samples.jsonl``."""
        with open(self.path / "samples.jsonl", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)

    def columns(self) -> dict[str, Any]:
        """Returns all trajectories by column; ``kind`` distinguishes greedy and sampled ones."""
        return _core.run_columns(self.path)

    def metrics(self) -> dict[str, list[Any]]:
        """Returns all metrics by column."""
        metrics = (self.results or {"metrics": []})["metrics"]
        names = ("name", "k", "value", "low", "high")
        return {name: [metric[name] for metric in metrics] for name in names}

    def to_pandas(self, what: str = "trajectories") -> Any:
        """Returns ``trajectories`` or ``metrics`` as a ``pandas.DataFrame``."""
        return _frames.pandas_frame(self._part(what))

    def to_polars(self, what: str = "trajectories") -> Any:
        """Returns ``trajectories`` or ``metrics`` as a ``polars.DataFrame``."""
        return _frames.polars_frame(self._part(what))

    def to_parquet(self, path: str | PathLike[str], what: str = "trajectories") -> None:
        """Writes ``trajectories`` or ``metrics`` to a Parquet file."""
        _frames.write_parquet(self._part(what), path)

    def _part(self, what: str) -> Mapping[str, Any]:
        parts = {"trajectories": self.columns, "metrics": self.metrics}
        if what not in parts:
            raise ValueError(f"what={what!r}: use trajectories or metrics")
        return parts[what]()

    def thoughts(self, id: int, *, seed: int | None = None, greedy: bool = False) -> NDArray[Any]:
        """Returns the thoughts of a question, memory-mapped, if the run recorded them.

        The shape is (trajectories, thoughts, width), or (all thoughts, width) if lengths differ.
        With ``greedy`` it is (thoughts, width), of the unperturbed trajectory.
        """
        path = self.path / "latents.safetensors"
        if not path.exists():
            raise FileNotFoundError(f"{path}: no thoughts recorded; pass keep_thoughts=True")
        seed = self.manifest["seeds"][0] if seed is None else seed
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        name = f"{seed}.{id}" + (".greedy" if greedy else "")
        if name not in header:
            raise KeyError(f"question {id} under seed {seed} has no thoughts in {path}")
        start, shape = 8 + length + header[name]["data_offsets"][0], header[name]["shape"]
        return np.memmap(path, dtype="<f4", mode="r", offset=start, shape=tuple(shape))

    def figures(self, *others: RunDirectory, partial: bool = False) -> list[Figure]:
        """Returns all available figures of this run, compared with ``others``."""
        paths = [run.path for run in (self, *others)]
        return [Figure(svg, data) for svg, data in _core.run_figures(paths, partial)]

    def figure(self, name: str, *others: RunDirectory) -> Figure:
        """Returns the figure with this name, such as ``coverage``."""
        figures = {figure.name: figure for figure in self.figures(*others)}
        if name not in figures:
            raise KeyError(f"no figure {name!r}; there are {', '.join(figures)}")
        return figures[name]


class Sweep:
    """The directory of a sweep: one run per strength, and the best of them."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        with open(self.path / "sweep.json", encoding="utf-8") as file:
            self.summary: dict[str, Any] = json.load(file)
        """The content of ``sweep.json``."""

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r}, best={self.summary['best']!r})"

    @property
    def runs(self) -> list[RunDirectory]:
        """The runs of each swept option in turn, weakest perturbation first."""
        return [RunDirectory(self.path / point["run"]) for point in self.summary["points"]]

    @property
    def best(self) -> RunDirectory:
        """The run with the best value of the sweep's metric."""
        return RunDirectory(self.path / self.summary["best"])

    def figures(self) -> list[Figure]:
        """Returns the figures that compare all runs."""
        first, *others = self.runs
        return first.figures(*others)
