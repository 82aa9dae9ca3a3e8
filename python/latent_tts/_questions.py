"""Questions, read from files or taken from lists, dicts, data frames and ``datasets``."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Union

from . import _core, _options


class Question(NamedTuple):
    """A problem with its gold answer."""

    id: int
    """The index in the data set, part of the key of the question's random numbers."""
    text: str
    gold: str
    kind: str
    """``number``, ``math``, ``choice`` or ``yes_no``."""
    steps: list[str]
    """Worked steps such as ``<<48/2=24>>``, or sentences, if the data set has them."""


# Data frames and data sets are recognized by their methods; their libraries are not imported.
Data = Union[str, PathLike[str], Question, Mapping[str, Any], Sequence[Any], Any]
"""Questions: a name or path, or questions in memory. The latter are a :class:`Question`, a dict
with the fields of a data file such as ``{"question": ..., "answer": ...}``, a list of these, a
``pandas`` or ``polars`` data frame, or a split of ``datasets``."""


def read_questions(
    data: Data = "embedded:test",
    *,
    limit: int | None = None,
    question_field: str | None = None,
    answer_field: str | None = None,
    steps_field: str | None = None,
) -> list[Question]:
    """Reads questions from a file, from the built-in corpus, or from memory.

    ``data`` is a path (JSON, JSON lines, CSV, Parquet), the id of a dataset on the Hugging Face Hub
    (``owner/name`` or ``owner/name/file.parquet``), ``embedded:SPLIT`` or
    ``embedded:SPLIT:FIRST..END``. A split without a range or ``limit`` returns its first 300
    problems. ``data`` may also be a list, a dict, a data frame or a data set with the columns of
    such a file. ``question_field``, ``answer_field`` and ``steps_field`` name columns with
    non-standard names.

    >>> [question.gold for question in read_questions("embedded:test", limit=2)]
    ['181', '140']
    >>> read_questions({"question": "What is 3 plus 4?", "answer": 7})[0].gold
    '7'
    >>> read_questions({"q": "Is it?", "gold": True}, question_field="q", answer_field="gold")[0].gold
    'yes'
    """
    fields = (question_field, answer_field, steps_field)
    if isinstance(data, (str, PathLike)):
        found = _core.read_questions(_options.data_name(data), fields, limit, 300)
        return [Question(*question) for question in found]
    return _known(rows(data)[:limit], fields)


def rows(data: Any) -> list[Any]:
    """Returns the questions of data in memory, each a text, a dict or a :class:`Question`."""
    if isinstance(data, (Question, Mapping)):
        return [data]
    if hasattr(data, "to_dicts"):  # polars
        return list(data.to_dicts())
    if hasattr(data, "columns") and hasattr(data, "to_dict"):  # pandas
        return list(data.to_dict("records"))
    if hasattr(data, "__iter__"):  # a list, a split of datasets
        return list(data)
    raise TypeError(
        f"questions are a list, a dict, a data frame or a data set, not {type(data).__name__}"
    )


def inputs(data: Data, answer_kind: str) -> list[tuple[str, str | None, str]]:
    """Returns text, gold answer (if known) and answer kind of each question to sample."""
    listed = [data] if isinstance(data, str) else rows(data)
    return [_input(row, index, answer_kind) for index, row in enumerate(listed)]


def _input(row: Any, index: int, answer_kind: str) -> tuple[str, str | None, str]:
    if isinstance(row, str):
        return row, None, answer_kind
    fields = row if isinstance(row, Question) else _record(row, index)
    if isinstance(fields, dict) and fields.keys() == {"question"}:
        return str(fields["question"]), None, answer_kind
    (question,) = [row] if isinstance(row, Question) else _known([row])
    return question.text, question.gold, question.kind


def _known(
    listed: list[Any], fields: tuple[str | None, str | None, str | None] = (None, None, None)
) -> list[Question]:
    """Returns questions with answers; other rows are parsed like those of a data file."""
    questions = []
    for index, row in enumerate(listed):
        if isinstance(row, Question):
            questions.append(row._replace(id=index))
        else:
            text = json.dumps([_record(row, index)], default=_plain)
            (question,) = _core.parse_questions(f"question {index}", text, fields)
            questions.append(Question(*question)._replace(id=index))
    return questions


def _record(row: Any, index: int) -> dict[str, Any]:
    """Returns a row without missing values."""
    if isinstance(row, str):
        raise ValueError(f'question {index} has no answer; pass {{"question": ..., "answer": ...}}')
    if not isinstance(row, Mapping):
        raise TypeError(
            f"questions[{index}] must be a str or a dict, not {type(row).__name__}: {row!r}"
        )
    return {str(name): value for name, value in row.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> Any:
    """Converts numpy values for JSON, and anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@contextmanager
def source(data: Data) -> Iterator[str]:
    """Yields the name of a data source with these questions.

    Questions in memory are written to a temporary file for the duration of the context. Equal
    questions give a file of equal name and content."""
    if isinstance(data, (str, PathLike)):
        yield _options.data_name(data)
        return
    lines = [_line(row, index) + "\n" for index, row in enumerate(rows(data))]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    with tempfile.TemporaryDirectory(prefix="latent-tts-") as directory:
        path = Path(directory) / f"questions-{digest[:12]}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        yield str(path)


def _line(row: Any, index: int) -> str:
    if isinstance(row, Question):
        if row.kind != "number":
            raise ValueError(f"question {index} is of kind {row.kind}; pass a dict or a file")
        return json.dumps({"question": row.text, "answer": f"#### {row.gold}"})
    return json.dumps(_record(row, index), default=_plain)
