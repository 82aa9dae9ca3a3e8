"""Aggregation of many answers into one, by built-in rules or callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

from . import _core

RULES: tuple[str, ...] = tuple(_core.rules())
"""The names of all built-in voting rules."""

Candidate = _core.Candidate

RuleFunction = Callable[[list[Candidate]], Optional[Union[str, int, Candidate]]]
"""A voting rule: maps the trajectories of a question to the selected answer, the position of the
selected trajectory in the list, the trajectory itself, or ``None`` for no answer.

It is also called on subsets of the trajectories, for curves over k. The result must not depend on
the order of the list."""

Rule = Union[str, RuleFunction]
"""A voting rule: a name, or a callable, which results record by its ``__name__``."""

_registered: dict[str, RuleFunction] = {}


class Vote(NamedTuple):
    """A distinct answer and its votes."""

    answer: str
    votes: int
    weight: float
    """The answer's share of the summed weights exp(reward)."""
    reward: float | None
    """The mean reward of its candidates, if every candidate with an answer was scored."""


def register_rule(
    name: str,
    function: RuleFunction,
    *,
    label: str | None = None,
    describe: str | None = None,
    needs: Sequence[str] = (),
) -> None:
    """Registers a voting rule, or replaces the registered one of this name.

    Like built-in rules it gets metrics, intervals, curves and a place in the report. ``label`` is
    its name in tables and figures, ``describe`` a one-line description. It is not measured on
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
    """Returns the name of a rule; a callable is registered under its ``__name__``."""
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
        # A candidate counts as scored if it has process rewards.
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
    """Returns the index of the candidate that a rule selects; ``None`` if none has an answer.

    ``rewards`` has one number per candidate, ``process_rewards`` one list per candidate with a
    number per thought. If several candidates gave the selected answer, the first is returned.

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
    """Returns the distinct answers, in the order of their first votes.

    >>> [(vote.answer, vote.votes) for vote in votes(["7", "12", "12", None])]
    [('7', 1), ('12', 2)]
    """
    candidates = _candidates(answers, rewards, process_rewards, None)
    return [Vote(*vote) for vote in _core.votes(candidates)]
