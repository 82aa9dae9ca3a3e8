"""Actors: classes that load the model once and map each task to its result.

Results are bytes in Arrow columns, because numpy strings would drop trailing zeros.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as arrow

from .._reasoner import Reasoner


class _Actor:
    def __init__(self, model: dict[str, Any]) -> None:
        self.reasoner = Reasoner.from_pretrained(**model)

    def work(self, row: dict[str, Any]) -> list[bytes]:
        raise NotImplementedError

    def __call__(self, batch: Any) -> Any:
        rows = batch.to_pylist()
        results = [self.work(row) for row in rows]
        return arrow.table(
            {
                "task": arrow.array([row["task"] for row in rows], arrow.int64()),
                "result": arrow.array(results, arrow.list_(arrow.large_binary())),
            }
        )


class EvalActor(_Actor):
    """Samples questions and returns their records."""

    def __init__(
        self, model: dict[str, Any], arguments: dict[str, Any], sampling: dict[str, Any]
    ) -> None:
        super().__init__(model)
        given = {**arguments, "out": None}
        self.evaluation = self.reasoner._evaluation(given, sampling, read=False, default_count=0)

    def work(self, row: dict[str, Any]) -> list[bytes]:
        questions = [tuple(question) for question in json.loads(row["questions"])]
        return self.reasoner._engine.records(self.evaluation, int(row["seed"]), questions)


class AnnotateActor(_Actor):
    """Annotates the questions of a shard and returns its file."""

    def __init__(
        self,
        model: dict[str, Any],
        arguments: dict[str, Any],
        sampling: dict[str, Any],
        index: str,
    ) -> None:
        super().__init__(model)
        given = {**arguments, "out": None}
        self.annotation = self.reasoner._annotation(given, sampling, read=False)
        self.index = index

    def work(self, row: dict[str, Any]) -> list[bytes]:
        questions = [tuple(question) for question in json.loads(row["questions"])]
        return [self.annotation.shard(self.reasoner._engine, self.index, questions)]
