"""Conversion of pickled checkpoints to safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from . import _core
from ._progress import fetch


def convert(
    inputs: str | PathLike[str] | Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    base: str | PathLike[str] | None = None,
    lora_alpha: float | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Converts pickled checkpoints (``torch.save``), or directories of them, to safetensors.

    Tensors are read without executing code. ``base`` supplies the configuration and the tokenizer
    if the checkpoint has none, or is the model that an adapter was trained on. Returns the object
    that ``latent-tts convert --json`` prints.
    """
    listed = [inputs] if isinstance(inputs, (str, PathLike)) else list(inputs)
    name = None if base is None else fspath(base)
    fetch([name] if name is not None else [])
    paths = [Path(path) for path in listed]
    report: dict[str, Any] = json.loads(
        _core.convert(paths, Path(out), name, lora_alpha, overwrite)
    )
    return report
