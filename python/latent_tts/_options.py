"""Keyword arguments that several methods share, and what the extension module takes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict

from ._progress import fetch


class Sampling(TypedDict, total=False):
    """How trajectories are sampled. What is not given is the model's default."""

    seed: int
    """The seed of all random numbers; 0."""
    sampler: str
    """``dropout``, ``noise``, ``gumbel``, ``tokens`` or ``none``."""
    p: float
    """Dropout: the probability that an element is dropped."""
    sites: str
    """Dropout: ``both``, ``attn`` or ``mlp``."""
    scope: str
    """Dropout: ``thoughts``, ``prompt`` or ``all``."""
    mask: str
    """Dropout: a fresh mask at each ``step``, or one for the ``trajectory``."""
    sigma: float
    """Noise: its standard deviation."""
    tau: float
    """Gumbel: the temperature of mixtures."""
    temperature: float
    """Tokens: the softmax temperature."""
    top_p: float
    """Tokens: the nucleus' probability."""
    thoughts: int | str
    """Thoughts of each trajectory: 6, ``"<=64"`` or ``"4-6"``."""
    max_new_tokens: int
    """Answer tokens of each trajectory, at most."""
    adaptive: float
    """Stop sampling a question once the vote is this sure: above 0.5 and at most 1."""
    vote_temperature: float
    likelihood_weight: float
    caution: float
    """The numbers in the voting rules."""


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("seed", "max_new_tokens"), ((Integral,), "an int")),
    **dict.fromkeys(("sampler", "sites", "scope", "mask"), ((str,), "a str")),
    "thoughts": ((Integral, str), "an int or a str"),
}
"""The types of :class:`Sampling` for messages; every other option is a float."""


def check_type(name: str, value: Any, types: tuple[type, ...], expected: str) -> None:
    """Refuses a value of another type; a bool is no number."""
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}: {value!r}")


def count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    check_type(name, value, (Integral,), "an int")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return int(value)


def text(name: str, value: Any) -> str:
    """A str."""
    check_type(name, value, (str,), "a str")
    return str(value)


def sampling(n: int, options: Sampling | dict[str, Any], **more: Any) -> dict[str, Any]:
    """The extension module's dict; refuses what is no option, and values of other types."""
    n = count("n", n)
    unknown = set(options) - set(Sampling.__annotations__)
    if unknown:
        known = ", ".join(Sampling.__annotations__)
        raise TypeError(f"no option is called {', '.join(sorted(unknown))}; there are {known}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        types, expected = _KINDS.get(name, ((Real,), "a float"))
        check_type(name, value, types, expected)
    return {"samples": n, **given, **more}


def on_existing(resume: bool, overwrite: bool) -> str:
    """What to do with results that are there already."""
    if resume and overwrite:
        raise ValueError("resume goes on with a run and overwrite replaces it; give one of them")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


def path_or_none(path: str | PathLike[str] | None) -> Path | None:
    """A path as the extension module takes it."""
    return None if path is None else Path(path)


def beam_size(
    beam: bool | tuple[int, int] | None, rules: Sequence[str] | None, scored: bool
) -> dict[str, Any]:
    """The options of the beam search beside an evaluation's samples, as the command line has them.

    By default a search runs where there is a reward model and no rules are named.
    """
    if isinstance(beam, tuple):
        width, candidates = beam
        return {"beam_width": width, "beam_candidates": candidates}
    return {"beam": (scored and rules is None) if beam is None else beam}


def grid(strengths: str | float | Sequence[float] | None) -> str | None:
    """The strengths of a sweep as text: values, a range ``0.1:0.5:0.1``, an interval ``0:0.9``."""
    if strengths is None or isinstance(strengths, str):
        return strengths
    values = [strengths] if isinstance(strengths, (int, float)) else list(strengths)
    return ",".join(repr(float(value)) for value in values)


def names(values: str | Sequence[str] | None) -> list[str]:
    """One name, several, or none."""
    return [] if values is None else [values] if isinstance(values, str) else list(values)


def data_name(data: str | PathLike[str]) -> str:
    """The name of a data source, which is there: an id of the Hub is downloaded."""
    name = fspath(data)
    fetch(data=name)
    return name
