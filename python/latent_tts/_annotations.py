"""Annotations: thoughts labelled with the share of their rollouts that answer right."""

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

    One row per labelled thought; questions whose trajectories are all right or all wrong are not
    among them.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        index, self._columns = _core.annotation_columns(self.path)
        self.index: dict[str, Any] = json.loads(index)
        """Settings and shapes."""

    def __len__(self) -> int:
        return len(self._columns["label"])

    def __repr__(self) -> str:
        return f"Annotations({str(self.path)!r}, {len(self)} labelled thoughts)"

    @property
    def thoughts(self) -> NDArray[np.float32]:
        """(rows, width)."""
        thoughts: NDArray[np.float32] = self._columns["thoughts"]
        return thoughts

    @property
    def labels(self) -> NDArray[np.float32]:
        """A label in 0 to 1 per row."""
        labels: NDArray[np.float32] = self._columns["label"]
        return labels

    def columns(self) -> dict[str, Any]:
        """All columns: id, trajectory, position, label, correct, thoughts."""
        return dict(self._columns)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``."""
        return _frames.pandas_frame(self._columns)

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``."""
        return _frames.polars_frame(self._columns)

    def to_parquet(self, path: str | PathLike[str]) -> None:
        """Writes one Parquet file."""
        _frames.write_parquet(self._columns, path)
