"""Results of sampling: trajectories, and the answer selected among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._voting import Rule, Vote, aggregate

T = TypeVar("T")

Trajectory = _core.Trajectory


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _reward(trajectory: Trajectory) -> float:
    """Returns the outcome reward, else the mean process reward, else NaN."""
    if trajectory.outcome_reward is not None:
        return trajectory.outcome_reward
    rewards = trajectory.process_rewards
    return float("nan") if rewards is None or rewards.size == 0 else float(rewards.mean())


class Trajectories(Sequence[list[Trajectory]]):
    """The trajectories of several questions; item ``q`` is the list for question ``q``.

    Columns have one row per question. The engine's memory is moved into the numpy arrays of
    thoughts without a copy; :meth:`stacked_thoughts` copies them into one array.
    """

    def __init__(self, questions: Sequence[str], replies: Sequence[_core.Reply]) -> None:
        self.questions = list(questions)
        self._rows = [reply.trajectories for reply in replies]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> list[Trajectory]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Trajectory]]: ...
    def __getitem__(self, index: int | slice) -> list[Trajectory] | list[list[Trajectory]]:
        return self._rows[index]

    def __iter__(self) -> Iterator[list[Trajectory]]:
        return iter(self._rows)

    def __repr__(self) -> str:
        counts = {len(row) for row in self._rows}
        n = "/".join(map(str, sorted(counts)))
        return f"Trajectories({len(self)} questions x {n} trajectories)"

    @property
    def texts(self) -> list[list[str]]:
        """The decoded answer texts."""
        return [[t.text for t in row] for row in self._rows]

    @property
    def answers(self) -> list[list[str | None]]:
        """The answers extracted from the texts."""
        return [[t.answer for t in row] for row in self._rows]

    @property
    def correct(self) -> list[list[bool | None]]:
        """Whether each answer is correct; ``None`` if the gold answer is unknown."""
        return [[t.correct for t in row] for row in self._rows]

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Outcome rewards, else mean process rewards, else NaN, of shape (questions, N)."""
        return self._table([[_reward(t) for t in row] for row in self._rows])

    @property
    def process_rewards(self) -> list[list[NDArray[np.float32] | None]]:
        """The process rewards of each trajectory, one per thought."""
        return [[t.process_rewards for t in row] for row in self._rows]

    @property
    def logprobs(self) -> NDArray[np.float64]:
        """Log-probabilities of the answer tokens, NaN if not finite, of shape (questions, N)."""
        return self._table([[_number(t.logprob) for t in row] for row in self._rows])

    @property
    def thoughts(self) -> list[list[NDArray[np.float32]]]:
        """The thoughts of each trajectory, of shape (thoughts, width), without a copy."""
        return [[t.thoughts for t in row] for row in self._rows]

    def stacked_thoughts(self) -> NDArray[np.float32]:
        """Copies all thoughts into one array of shape (questions, N, thoughts, width)."""
        shapes = {t.thoughts.shape for row in self._rows for t in row}
        if len(shapes) > 1 or len({len(row) for row in self._rows}) > 1:
            raise ValueError("trajectories differ in number or length; use .thoughts")
        return np.stack([np.stack([t.thoughts for t in row]) for row in self._rows])

    def aggregate(
        self,
        rule: Rule = "majority",
        *,
        vote_temperature: float | None = None,
        likelihood_weight: float | None = None,
        lcb_coefficient: float | None = None,
    ) -> list[str | None]:
        """Returns the answer of each question under a voting rule."""
        chosen: list[str | None] = []
        for row in self._rows:
            index = aggregate(
                [t.answer for t in row],
                rewards=_scored([t.outcome_reward for t in row]),
                process_rewards=_scored(
                    [None if r is None else r.tolist() for r in (t.process_rewards for t in row)]
                ),
                logprobs=_scored([t.logprob for t in row]),
                rule=rule,
                vote_temperature=vote_temperature,
                likelihood_weight=likelihood_weight,
                lcb_coefficient=lcb_coefficient,
            )
            chosen.append(None if index is None else row[index].answer)
        return chosen

    def _table(self, rows: list[list[float]]) -> NDArray[np.float64]:
        """Pads rows of different lengths (adaptive sampling) with NaN."""
        table = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        for row, values in zip(table, rows):
            row[: len(values)] = values
        return table


def _scored(column: list[T | None]) -> list[T | None] | None:
    """Returns a column, or ``None`` if all its values are missing."""
    return None if all(value is None for value in column) else column


@dataclass(frozen=True)
class HiddenStates:
    """The hidden states of a reasoner along a trajectory; see ``Reasoner.hidden_states``."""

    layers: dict[int, NDArray[np.float32]]
    """The hidden states of each layer, of shape (positions, width)."""
    logits: NDArray[np.float32] | None
    """The logits of shape (positions, vocabulary), if requested. The logits at a position predict
    the next token."""
    prompt: slice
    """Positions of the prompt."""
    thoughts: slice
    """Positions of the thoughts."""
    end: slice
    """Positions of the tokens between the thoughts and the answer."""
    answer: slice
    """Positions of the answer."""


@dataclass(frozen=True, repr=False)
class Solution:
    """The answer to a question, with the votes and trajectories it was selected from."""

    question: str
    answer: str | None
    rule: str
    """The rule that selected the answer."""
    confidence: float | None
    """The probability that the answer is correct, if a calibration was given."""
    votes: list[Vote]
    trajectories: list[Trajectory]
    greedy: Trajectory | None
    """The unperturbed trajectory."""
    beam: Trajectory | None
    """The best path of the beam search, if one ran."""
    diversity: list[float]
    """The mean pairwise cosine dissimilarity of the thoughts at each step (d_t in the paper)."""
    flops: float
    seconds: float
    notes: list[str] = field(default_factory=list)
    """Notes on the reliability of the answer, such as words outside the vocabulary or a question
    unlike the training data. Each is also issued as a ``UserWarning``."""

    def __repr__(self) -> str:
        tally = ", ".join(f"{vote.answer} x {vote.votes}" for vote in self.votes)
        return f"Solution(answer={self.answer!r}, rule={self.rule!r}, votes=[{tally}])"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(vote.answer)}</td><td>{vote.votes}</td><td>{vote.weight:.3f}</td></tr>"
            for vote in sorted(self.votes, key=lambda vote: -vote.votes)
        )
        return (
            f"<p>{escape(self.question)}</p><p><b>{escape(str(self.answer))}</b> "
            f"({escape(self.rule)})</p><table><tr><th>answer</th><th>votes</th>"
            f"<th>weight</th></tr>{rows}</table>"
        )
