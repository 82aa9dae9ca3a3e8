"""Ablations: whether a reasoner uses its thoughts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _core, _options, _questions
from ._options import Sampling
from ._questions import Data
from ._reasoner import Reasoner

if TYPE_CHECKING:
    from typing_extensions import Unpack


def ablate(
    reasoner: Reasoner,
    data: Data = "embedded:test",
    *,
    kinds: Sequence[str] = ("zero", "mean", "swap", "freeze", "shuffle"),
    limit: int | None = None,
    question_field: str | None = None,
    answer_field: str | None = None,
    steps_field: str | None = None,
    **sampling: Unpack[Sampling],
) -> dict[str, Any]:
    """The accuracy of greedy runs with their own thoughts and with each replacement.

    ``kinds`` are those of ``latent-tts eval --ablate``. The result is the object ``ablation`` of
    ``results.json``: accuracies, and their differences with intervals.
    """
    given = {"samples": 1, **_options.current(sampling)}
    with _questions.source(data) as name:
        arguments = {
            "data": name, "fields": (question_field, answer_field, steps_field), "limit": limit, "default_count": 300, "kinds": list(kinds),
        }  # fmt: skip
        result: dict[str, Any] = json.loads(_core.ablate(reasoner._engine, arguments, given))
    return result
