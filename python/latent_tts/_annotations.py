"""Annotations: thoughts labelled with the share of their rollouts that are correct."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core, _frames


class Annotations:
    """A directory of annotations, as ``annotate`` and ``latent-tts annotate`` write it.

    It has one row per labelled thought. Questions whose trajectories are all correct or all wrong
    are left out.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        index, self._columns = _core.annotation_columns(self.path)
        self.index: dict[str, Any] = json.loads(index)
        """Settings and shapes of the annotations."""

    def __len__(self) -> int:
        return len(self._columns["label"])

    def __repr__(self) -> str:
        return f"Annotations({str(self.path)!r}, {len(self)} labelled thoughts)"

    @property
    def thoughts(self) -> NDArray[np.float32]:
        """The labelled thoughts, of shape (rows, width)."""
        thoughts: NDArray[np.float32] = self._columns["thoughts"]
        return thoughts

    @property
    def labels(self) -> NDArray[np.float32]:
        """The label of each row, between 0 and 1."""
        labels: NDArray[np.float32] = self._columns["label"]
        return labels

    def columns(self) -> dict[str, Any]:
        """Returns all columns: id, trajectory, position, label, correct, thoughts."""
        return dict(self._columns)

    def to_pandas(self) -> Any:
        """Returns the columns as a ``pandas.DataFrame``."""
        return _frames.pandas_frame(self._columns)

    def to_polars(self) -> Any:
        """Returns the columns as a ``polars.DataFrame``."""
        return _frames.polars_frame(self._columns)

    def to_parquet(self, path: str | PathLike[str]) -> None:
        """Writes the columns to one Parquet file."""
        _frames.write_parquet(self._columns, path)
