"""Questions with known answers."""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple

from . import _core, _options


class Question(NamedTuple):
    """A problem and its gold answer."""

    id: int
    """The index in its data set, which keys the question's random numbers."""
    text: str
    gold: str
    kind: str
    """``number``, ``math`` or ``choice``."""
    steps: list[str]
    """Worked steps such as ``<<48/2=24>>``, where the data set has them."""


def read_questions(
    data: str | PathLike[str] = "embedded:test", *, limit: int | None = None
) -> list[Question]:
    """The questions of a benchmark's own file, or of the built-in corpus.

    ``data`` is a path (JSON, JSON lines, CSV, Parquet), a dataset's id on the Hugging Face Hub
    (``owner/name`` or ``owner/name/file.parquet``), ``embedded:SPLIT`` or
    ``embedded:SPLIT:FIRST..END``; a split without a range and a limit gives its first 300 problems.

    >>> [question.gold for question in read_questions("embedded:test", limit=2)]
    ['181', '140']
    """
    found = _core.read_questions(_options.data_name(data), limit, 300)
    return [Question(*question) for question in found]
