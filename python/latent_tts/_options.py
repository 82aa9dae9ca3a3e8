"""Keyword arguments that several methods share, and what the extension module takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from . import _core
from ._progress import fetch
from ._samplers import Sampler, sampler_name
from ._voting import Rule, rule_name


class SharedSampling(TypedDict, total=False):
    """The sampling options of every method; those of a sweep, whose samplers are swept."""

    samples: int
    """Trajectories of each question, N."""
    latent_length: int | str
    """Thoughts of each trajectory: 6, ``"<=64"``, ``"4-6"`` or 0."""
    cold_stop_entropy: float
    """Soft thinking: end the thoughts when entropy stays below this, in nats; 0 never does."""
    cold_stop_steps: int
    """Soft thinking: consecutive thoughts of low entropy that end thinking."""
    max_new_tokens: int
    """Maximum number of answer tokens."""
    greedy: bool
    """Also run the unperturbed trajectory."""
    seed: int
    """The random seed; 0."""
    rule: Rule
    """The voting rule that chooses the answer: a name or a callable."""
    vote_temperature: float
    """Softmax temperature of the rules normalized, likelihood and combined."""
    likelihood_weight: float
    """The rule combined: the weight of the log-probability relative to the reward."""
    lcb_coefficient: float
    """The rule lcb: standard errors below the mean reward."""
    beam: bool
    """Also run a beam search guided by rewards."""
    beam_width: int
    """Beam search: beams kept at each step."""
    beam_candidates: int
    """Beam search: extensions tried for each beam."""
    adaptive: bool
    """Stop sampling a question once its vote is decided."""
    target_confidence: float
    """Adaptive sampling: the confidence at which to stop, above 0.5 and at most 1."""


class Sampling(SharedSampling, total=False):
    """How trajectories are sampled. What is not given is the model's default.

    The fields are those of the command line, of TOML files and of the server's ``latent`` object.
    """

    sampler: Sampler
    """``dropout``, ``noise``, ``gumbel``, ``multiplex``, ``tokens``, ``none``, or a callable."""
    dropout_p: float
    """Dropout: the probability that an element is dropped."""
    sites: str
    """Dropout: ``both``, ``attn`` or ``mlp``."""
    scope: str
    """Dropout: ``thoughts``, ``prompt``, ``generated`` or ``all``."""
    mask: str
    """Dropout: a fresh mask at each ``step``, or one for the ``trajectory``."""
    noise_std: float
    """Noise: its standard deviation."""
    gumbel_tau: float
    """Gumbel: the temperature of mixtures."""
    one_sided: bool
    """Gumbel: one-sided noise on the nucleus, as Latent-GRPO samples."""
    gumbel_scale: float
    """Gumbel: the factor of one-sided noise."""
    multiplex_width: int
    """Multiplex: the sampled tokens that each thought averages."""
    temperature: float
    """Tokens, multiplex: the softmax temperature."""
    top_p: float
    """Tokens, multiplex, one-sided gumbel: the probability of the nucleus."""


RENAMED = {
    "n": "samples",
    "trajectories": "samples",
    "p": "dropout_p",
    "sigma": "noise_std",
    "tau": "gumbel_tau",
    "thoughts": "latent_length",
    "caution": "lcb_coefficient",
    "confidence": "target_confidence",
}
"""Names of earlier versions, accepted with a warning until the next one."""

SWEPT = ("dropout_p", "noise_std", "gumbel_tau", "sites", "scope", "mask")
"""The options that a sweep takes several values of."""


def current(options: Mapping[str, Any], *, stacklevel: int = 3) -> dict[str, Any]:
    """Options under their present names, without those that are ``None``."""
    renamed: dict[str, Any] = {}
    for name, value in options.items():
        for new, part in _renamed(name, value, stacklevel + 1):
            if renamed.get(new) is not None:
                raise TypeError(f"{new} is given twice; {name} is its name in earlier versions")
            renamed[new] = part
    check_names(renamed, _core.sampling_fields())
    given = {name: value for name, value in renamed.items() if value is not None}
    for name, value in given.items():
        if name == "rule":
            given[name] = rule_name(value)
        elif name == "sampler":
            given[name] = sampler_name(value)
        else:
            check_type(name, value, *_KINDS[get_type_hints(Sampling)[name]])
    if "samples" in given:
        given["samples"] = count("samples", given["samples"])
    return given


def _renamed(name: str, value: Any, stacklevel: int) -> list[tuple[str, Any]]:
    """An option under its present name; a value of an earlier version may be two options."""
    options = [(RENAMED.get(name, name), value)]
    if name == "adaptive" and isinstance(value, float):
        options = [("target_confidence", value)]
    elif name == "beam" and isinstance(value, tuple):
        options = [("beam_width", value[0]), ("beam_candidates", value[1])]
    new = " and ".join(name for name, _ in options)
    if value is not None and new != name:
        message = f"{name}={value!r} is deprecated; use {new}"
        warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
    return options


_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((Integral,), "an int"),
    float: ((Real,), "a float"),
    str: ((str,), "a str"),
    bool: ((bool,), "a bool"),
    int | str: ((Integral, str), "an int or a str"),
}
"""The types of the fields of :class:`Sampling`, and their names in messages."""


def check_type(name: str, value: Any, types: tuple[type, ...], expected: str) -> None:
    """Refuses a value of another type; a bool is no number."""
    if (isinstance(value, bool) and bool not in types) or not isinstance(value, types):
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


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuses a name that is not known, with the closest one that is."""
    for name in names:
        if name not in known:
            closest = get_close_matches(name, known, 1)
            advice = f"did you mean {closest[0]}?" if closest else f"there are {', '.join(known)}"
            raise TypeError(f"no option is called {name}; {advice}")


def on_existing(resume: bool, overwrite: bool) -> str:
    """What to do with results that are there already."""
    if resume and overwrite:
        raise ValueError("resume goes on with a run and overwrite replaces it; give one of them")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


def path_or_none(path: str | PathLike[str] | None) -> Path | None:
    """A path as the extension module takes it."""
    return None if path is None else Path(path)


def skips(too_long: str) -> bool:
    """Whether questions that are too long are left out."""
    if too_long not in ("stop", "skip"):
        raise ValueError(f"too_long={too_long!r} is not known; use stop or skip")
    return too_long == "skip"


def with_search(
    options: dict[str, Any], rules: Sequence[Rule] | None, scorer: Callable[..., Any] | None
) -> dict[str, Any]:
    """The options of an evaluation: like the command line's, it searches beside its samples where
    there are rewards to guide a search, unless rules are named."""
    asked = options.keys() & {"beam", "beam_width", "beam_candidates"}
    if asked or (rules is None and scorer is None):
        return options
    return {**options, "beam": False}


def grid(strengths: str | float | Sequence[float] | None) -> str | None:
    """The strengths of a sweep as text: values, a range ``0.1:0.5:0.1``, an interval ``0:0.9``."""
    if strengths is None or isinstance(strengths, str):
        return strengths
    values = [strengths] if isinstance(strengths, (int, float)) else list(strengths)
    return ",".join(repr(float(value)) for value in values)


def names(values: str | Sequence[str] | None) -> list[str]:
    """One name, several, or none."""
    return [] if values is None else [values] if isinstance(values, str) else list(values)


FIELDS = ("question_field", "answer_field", "steps_field")
"""The arguments that name the fields of questions, answers and steps in data."""


def fields(given: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """The names of the fields of question, answer and steps."""
    question, answer, steps = (given.get(name) for name in FIELDS)
    return question, answer, steps


def data_name(data: str | PathLike[str]) -> str:
    """The name of a data source, which is there: an id of the Hub is downloaded."""
    name = fspath(data)
    fetch(data=name)
    return name
