"""Ablations: whether a reasoner uses its thoughts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from . import _core, _options
from ._options import Sampling
from ._reasoner import Reasoner

if TYPE_CHECKING:
    from typing_extensions import Unpack


def ablate(
    reasoner: Reasoner,
    data: str | PathLike[str] = "embedded:test",
    *,
    kinds: Sequence[str] = ("zero", "mean", "swap", "freeze", "shuffle"),
    limit: int | None = None,
    **sampling: Unpack[Sampling],
) -> dict[str, Any]:
    """The accuracy of greedy runs with their own thoughts and with each replacement.

    ``kinds`` are those of ``latent-tts eval --ablate``. The result is the object ``ablation`` of
    ``results.json``: accuracies, and their differences with intervals.
    """
    arguments = {
        "data": _options.data_name(data),
        "limit": limit,
        "default_count": 300,
        "kinds": list(kinds),
    }
    given = _options.sampling(1, sampling)
    result: dict[str, Any] = json.loads(_core.ablate(reasoner._engine, arguments, given))
    return result
