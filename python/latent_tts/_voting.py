"""Aggregation: one answer from many, by rules that are built in or callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

from . import _core

RULES: tuple[str, ...] = tuple(_core.rules())
"""The names of all built-in voting rules."""

Candidate = _core.Candidate

RuleFunction = Callable[[list[Candidate]], Optional[Union[str, int, Candidate]]]
"""A voting rule: from the trajectories of a question to the chosen answer, the position of the
chosen trajectory in the list, the trajectory itself, or ``None`` for no answer.

It is called on subsets of the trajectories, too, for curves over k. The order of the list must not
matter."""

Rule = Union[str, RuleFunction]
"""A voting rule by name, or a callable, which is called by its ``__name__`` in results."""

_registered: dict[str, RuleFunction] = {}


class Vote(NamedTuple):
    """A distinct answer and the candidates that gave it."""

    answer: str
    votes: int
    weight: float
    """Its share of the summed weights, exp(reward), of all answers."""
    reward: float | None
    """The mean of their rewards, where every candidate with an answer was scored."""


def register_rule(
    name: str,
    function: RuleFunction,
    *,
    label: str | None = None,
    describe: str | None = None,
    needs: Sequence[str] = (),
) -> None:
    """Adds a voting rule, which has metrics, intervals, curves and a place on the page like the
    built-in ones, or replaces the registered one of this name.

    ``label`` is its name in tables and figures, ``describe`` one line about it. It is left out for
    questions whose trajectories lack the signals it ``needs``: ``rewards``, ``logprobs``.

    >>> register_rule("longest", lambda candidates: max(
    ...     (c.answer for c in candidates if c.answer), key=len, default=None))
    >>> aggregate(["7", "12", "7"], rule="longest")
    1
    """
    if not callable(function):
        raise TypeError(f"the rule {name} is not callable: {function!r}")
    documented = (getattr(function, "__doc__", None) or "").strip().split("\n")[0]
    describe = describe or documented or "a rule of the calling program"
    _core.register_rule(name, function, label, describe, list(needs))
    _registered[name] = function


def rule_name(rule: Rule) -> str:
    """The name of a rule; a callable is registered under its ``__name__``."""
    if isinstance(rule, str):
        return rule
    if not callable(rule):
        raise TypeError(f"a rule is a name or a callable, not {rule!r}")
    name = str(getattr(rule, "__name__", type(rule).__name__))
    registered = next((name for name, other in _registered.items() if other is rule), None)
    if registered is not None:
        return registered
    if name == "<lambda>":
        raise ValueError("a lambda has no name; pass a function, or register_rule(name, ...)")
    register_rule(name, rule)
    return name


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
    rule: Rule = "majority",
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
    return _core.aggregate(candidates, rule_name(rule), constants)


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
