"""Figures of a report, as SVG or as matplotlib figures."""

from __future__ import annotations

import json
from html import escape
from os import PathLike
from typing import Any


class Figure:
    """A figure of a run, displayed as SVG in notebooks."""

    def __init__(self, svg: str, data: str) -> None:
        self.svg = svg
        """The figure as an SVG document."""
        self.data: dict[str, Any] = json.loads(data)
        """The panels with their axes, series and points."""

    @property
    def name(self) -> str:
        """The file name in a report, without extension."""
        return str(self.data["name"])

    @property
    def title(self) -> str:
        """The title of the figure."""
        return str(self.data["title"])

    @property
    def caption(self) -> str:
        """The caption, which explains how to read the figure."""
        return str(self.data["caption"])

    def __repr__(self) -> str:
        return f"Figure({self.name!r}: {self.title})"

    def _repr_html_(self) -> str:
        # HTML does not allow the XML declaration.
        svg = self.svg[self.svg.index("<svg") :]
        return f"<figure>{svg}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the SVG to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)

    def matplotlib(self) -> Any:
        """Returns the figure as a ``matplotlib.figure.Figure``."""
        try:
            from matplotlib.figure import Figure as Canvas
            from matplotlib.ticker import PercentFormatter
        except ImportError as error:
            raise ImportError(
                "matplotlib is not installed; `pip install matplotlib`, or use the SVG"
            ) from error
        panels = self.data["panels"]
        canvas = Canvas(figsize=(4.8 * len(panels), 3.6), layout="constrained")
        for number, panel in enumerate(panels):
            axes = canvas.add_subplot(1, len(panels), number + 1)
            for series in panel["series"]:
                _draw(axes, series)
            for side, axis in (("x", panel["x"]), ("y", panel["y"])):
                getattr(axes, f"set_{side}label")(axis["label"])
                if axis["scale"] in ("log2", "log10"):
                    base = int(axis["scale"][3:])
                    getattr(axes, f"set_{side}scale")("log", base=base)
                elif axis["scale"] == "percent":
                    getattr(axes, f"{side}axis").set_major_formatter(PercentFormatter(1.0))
                elif axis["scale"] == "unlabelled":
                    getattr(axes, f"set_{side}ticks")([])
            axes.set_title(panel["title"])
            if any(series["label"] for series in panel["series"]):
                axes.legend(fontsize="small")
        canvas.suptitle(self.title)
        return canvas


def _draw(axes: Any, series: dict[str, Any]) -> None:
    x, y, colour = series["x"], series["y"], series["colour"]
    line = {"none": "", "solid": "-", "dashed": "--"}[series["line"]]
    label = series["label"] or None
    axes.plot(x, y, linestyle=line, marker="o", markersize=3, color=colour, label=label)
    intervals = [
        (x, low, high) for x, low, high in zip(x, series["low"], series["high"]) if low is not None
    ]
    if not intervals:
        return
    at, low, high = (list(column) for column in zip(*intervals))
    if series["intervals"] == "band":
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    elif series["intervals"] == "bars":
        axes.vlines(at, low, high, color=colour, linewidth=1)
