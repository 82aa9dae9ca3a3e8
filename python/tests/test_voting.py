"""Aggregation against a Python reference implementation, on arbitrary candidates."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latent_tts import RULES, aggregate, votes

# Rewards that are exact in f32, and far enough apart that sums of their exponentials do not tie by
# rounding.
REWARDS = st.integers(-8, 8).map(lambda x: x / 4)
CANDIDATES = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3", None]), REWARDS), min_size=1, max_size=12
)


def majority(answers: list[str | None]) -> int | None:
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return None
    most = max(counts.values())
    return next(i for i, a in enumerate(answers) if a is not None and counts[a] == most)


def best_of(answers: list[str | None], rewards: list[float]) -> int | None:
    answered = [i for i, answer in enumerate(answers) if answer is not None]
    return max(answered, key=lambda i: (rewards[i], -i)) if answered else None


def weighted(answers: list[str | None], rewards: list[float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for answer, reward in zip(answers, rewards):
        if answer is not None:
            sums[answer] = sums.get(answer, 0.0) + math.exp(reward)
    return sums


@given(CANDIDATES)
def test_majority(candidates: list[tuple[str | None, float]]) -> None:
    answers = [answer for answer, _ in candidates]
    assert aggregate(answers) == majority(answers)
    counts = Counter(answer for answer in answers if answer is not None)
    assert {vote.answer: vote.votes for vote in votes(answers)} == counts


@given(CANDIDATES)
def test_best_of(candidates: list[tuple[str | None, float]]) -> None:
    answers = [answer for answer, _ in candidates]
    rewards = [reward for _, reward in candidates]
    assert aggregate(answers, rewards=rewards, rule="best_of") == best_of(answers, rewards)


@given(CANDIDATES)
def test_weighted(candidates: list[tuple[str | None, float]]) -> None:
    answers = [answer for answer, _ in candidates]
    rewards = [reward for _, reward in candidates]
    sums = weighted(answers, rewards)
    chosen = aggregate(answers, rewards=rewards, rule="weighted")
    if not sums:
        assert chosen is None
    else:
        assert chosen is not None
        answer = answers[chosen]
        assert answer is not None and answers.index(answer) == chosen
        assert sums[answer] >= max(sums.values()) * (1 - 1e-9)


@given(st.lists(st.sampled_from(["1", "2", None]), min_size=1, max_size=9), st.sampled_from(RULES))
def test_equal_signals_are_the_majority(answers: list[str | None], rule: str) -> None:
    if not rule.startswith("best_of"):
        same = [0.5] * len(answers)
        chosen = aggregate(answers, rewards=same, logprobs=same, rule=rule)
        assert (chosen is None) == (majority(answers) is None)
        if chosen is not None:
            counts = Counter(answer for answer in answers if answer is not None)
            assert counts[answers[chosen] or ""] == max(counts.values())


def test_wrong_arguments_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="weighted"):
        aggregate(["1"], rule="loudest")
    with pytest.raises(ValueError, match="logprobs has 1 entries for 2 answers"):
        aggregate(["1", "2"], logprobs=[0.0])
    with pytest.raises(ValueError, match="vote_temperature"):
        aggregate(["1"], vote_temperature=0.0)
