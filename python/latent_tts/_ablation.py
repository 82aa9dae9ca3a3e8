"""Ablations: tests whether a reasoner uses its thoughts."""

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
    """Measures the accuracy of greedy runs with their own thoughts and with replaced thoughts.

    ``kinds`` are the replacements of ``latent-tts eval --ablate``: ``zero``, ``mean``, ``swap``,
    ``freeze``, ``shuffle`` and ``round``. Returns the content of ``ablation.json``: the accuracies
    and their paired differences, with intervals.
    """
    given = {"samples": 1, **_options.current(sampling)}
    with _questions.source(data) as name:
        arguments = {
            "data": name, "fields": (question_field, answer_field, steps_field), "limit": limit, "default_count": 300, "kinds": list(kinds),
        }  # fmt: skip
        result: dict[str, Any] = json.loads(_core.ablate(reasoner._engine, arguments, given))
    return result
