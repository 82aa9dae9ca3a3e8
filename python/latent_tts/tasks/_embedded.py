"""The built-in corpus as a dataset of the harness, for a task that needs no download."""

from __future__ import annotations

from typing import Any

from latent_tts import read_questions


def dataset(data: str, **metadata: Any) -> Any:
    """Returns the questions of ``data`` (``embedded:SPLIT``) as the split ``test``."""
    del metadata
    from datasets import Dataset, DatasetDict

    rows = [{"question": q.text, "answer": q.gold} for q in read_questions(data)]
    return DatasetDict({"test": Dataset.from_list(rows)})
