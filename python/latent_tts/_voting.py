"""Aggregation: one answer from many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _core

RULES: tuple[str, ...] = tuple(_core.rules())
"""The names of all voting rules."""


class Vote(NamedTuple):
    """A distinct answer and the candidates that gave it."""

    answer: str
    votes: int
    weight: float
    """Its share of the summed weights, exp(reward), of all answers."""
    reward: float | None
    """The sum of their rewards, where every candidate with an answer was scored."""


def _candidates(
    answers: Sequence[str | None],
    rewards: Sequence[float | None] | None,
    process_rewards: Sequence[Sequence[float] | None] | None,
    logprobs: Sequence[float | None] | None,
) -> dict[str, Any]:
    if rewards is not None and process_rewards is None:
        # A candidate is scored if it has process rewards; one reward is a list of one.
        process_rewards = [None if reward is None else [reward] for reward in rewards]
    return {
        "answers": list(answers),
        "process_rewards": process_rewards,
        "outcome_rewards": rewards,
        "logprobs": logprobs,
    }


def aggregate(
    answers: Sequence[str | None],
    *,
    rewards: Sequence[float | None] | None = None,
    process_rewards: Sequence[Sequence[float] | None] | None = None,
    logprobs: Sequence[float | None] | None = None,
    rule: str = "majority",
    vote_temperature: float | None = None,
    likelihood_weight: float | None = None,
    lcb_coefficient: float | None = None,
) -> int | None:
    """The index of the candidate that a rule chooses; ``None`` if no candidate has an answer.

    ``rewards`` has one number a candidate, ``process_rewards`` one per thought. Candidates are
    numbered by their position; of those that gave the chosen answer, the first is returned.

    >>> aggregate(["7", "12", "12", None])
    1
    >>> aggregate(["7", "12", "12"], rewards=[2.5, 0.1, 0.2], rule="weighted")
    0
    >>> aggregate([None, None]) is None
    True
    """
    candidates = _candidates(answers, rewards, process_rewards, logprobs)
    constants = {
        "vote_temperature": vote_temperature,
        "likelihood_weight": likelihood_weight,
        "lcb_coefficient": lcb_coefficient,
    }
    return _core.aggregate(candidates, rule, constants)


def votes(
    answers: Sequence[str | None],
    *,
    rewards: Sequence[float | None] | None = None,
    process_rewards: Sequence[Sequence[float] | None] | None = None,
) -> list[Vote]:
    """The distinct answers, in the order of their first votes.

    >>> [(vote.answer, vote.votes) for vote in votes(["7", "12", "12", None])]
    [('7', 1), ('12', 2)]
    """
    candidates = _candidates(answers, rewards, process_rewards, None)
    return [Vote(*vote) for vote in _core.votes(candidates)]
