"""Columns as data frames and Parquet files. Optional libraries are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np


def _import(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{package} is not installed; `pip install {package}`") from error


def pandas_frame(columns: Mapping[str, Any]) -> Any:
    """Returns a ``pandas.DataFrame``; two-dimensional arrays become lists."""
    return _import("pandas", "pandas").DataFrame(_flat(columns))


def polars_frame(columns: Mapping[str, Any]) -> Any:
    """Returns a ``polars.DataFrame``; two-dimensional arrays stay arrays."""
    return _import("polars", "polars").DataFrame(dict(columns))


def arrow_table(columns: Mapping[str, Any]) -> Any:
    """Returns a ``pyarrow.Table``; two-dimensional arrays become fixed-size lists, uncopied."""
    arrow = _import("pyarrow", "pyarrow")

    def convert(column: Any) -> Any:
        if isinstance(column, np.ndarray) and column.ndim == 2:
            flat = arrow.array(column.reshape(-1))
            return arrow.FixedSizeListArray.from_arrays(flat, column.shape[1])
        return arrow.array(column)

    return arrow.table({name: convert(column) for name, column in columns.items()})


def write_parquet(columns: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Writes columns to one Parquet file."""
    parquet = _import("pyarrow.parquet", "pyarrow")
    parquet.write_table(arrow_table(columns), fspath(path), compression="zstd")


def _flat(columns: Mapping[str, Any]) -> dict[str, Any]:
    def flat(column: Any) -> Any:
        return list(column) if isinstance(column, np.ndarray) and column.ndim == 2 else column

    return {name: flat(column) for name, column in columns.items()}
