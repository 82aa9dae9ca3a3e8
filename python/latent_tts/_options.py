"""Keyword arguments shared by several methods, and their conversion for the extension module."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
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
    """The sampling options of every method, without those of a sampler, which a sweep varies."""

    samples: int
    """Number of trajectories per question, N."""
    latent_length: int | str
    """Number of thoughts per trajectory: 6, ``"<=64"``, ``"4-6"`` or 0."""
    cold_stop_entropy: float
    """Soft thinking: end the thoughts when the entropy stays below this, in nats; 0 disables it."""
    cold_stop_steps: int
    """Soft thinking: number of consecutive low-entropy thoughts that end the thoughts."""
    max_new_tokens: int
    """Maximum number of answer tokens."""
    greedy: bool
    """Whether to run the unperturbed trajectory too."""
    seed: int
    """The random seed (default 0)."""
    rule: Rule
    """The voting rule that selects the answer: a name or a callable."""
    vote_temperature: float
    """Softmax temperature of the rules ``normalized``, ``likelihood`` and ``combined``."""
    likelihood_weight: float
    """Rule ``combined``: weight of the log-probability relative to the reward."""
    lcb_coefficient: float
    """Rule ``lcb``: number of standard errors below the mean reward."""
    check_steps: bool
    """Verify the equations of written steps, or of thoughts read through the LM head."""
    calibration: Mapping[str, Any]
    """Weights of the rule ``calibrated`` and of the confidence, from :func:`calibrate`."""
    beam: bool
    """Whether to run a search over thoughts guided by rewards too (see ``search``)."""
    search: str
    """How the search selects paths: ``beam``, ``particles`` or ``dvts``."""
    beam_width: int
    """Search: number of beams, particles or subtrees kept at each step."""
    beam_candidates: int
    """Search: number of candidate extensions per beam or subtree."""
    search_temperature: float
    """Particles: temperature of the softmax over rewards by which they are resampled."""
    adaptive: bool
    """Whether to stop sampling a question once its vote is decided."""
    target_confidence: float
    """Adaptive sampling: confidence at which to stop, above 0.5 and at most 1."""


class Sampling(SharedSampling, total=False):
    """How trajectories are sampled. Omitted options have the model's default.

    The fields have the same names on the command line, in TOML files and in the server's ``latent``
    object.
    """

    sampler: Sampler
    """``dropout``, ``noise``, ``gumbel``, ``multiplex``, ``tokens``, ``none``, or a callable."""
    dropout_p: float
    """Dropout: probability that an element is dropped."""
    sites: str
    """Dropout: ``both``, ``attn`` or ``mlp``."""
    scope: str
    """Dropout: ``thoughts``, ``prompt``, ``generated`` or ``all``."""
    mask: str
    """Dropout: a new mask at each ``step``, or one per ``trajectory``."""
    noise_std: float
    """Noise: standard deviation of the Gaussian noise."""
    gumbel_tau: float
    """Gumbel: temperature of the mixture weights."""
    one_sided: bool
    """Gumbel: one-sided noise on the nucleus, as in Latent-GRPO."""
    gumbel_scale: float
    """Gumbel: factor of the one-sided noise."""
    multiplex_width: int
    """Multiplex: number of sampled tokens averaged into a thought."""
    temperature: float
    """Tokens, multiplex: softmax temperature."""
    top_p: float
    """Tokens, multiplex, one-sided gumbel: total probability of the nucleus."""


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
"""Deprecated names, accepted with a warning for one version."""

SWEPT = ("dropout_p", "noise_std", "gumbel_tau", "sites", "scope", "mask")
"""The options for which a sweep accepts several values."""


def current(options: Mapping[str, Any], *, stacklevel: int = 3) -> dict[str, Any]:
    """Returns the options under their current names, without those that are ``None``."""
    renamed: dict[str, Any] = {}
    for name, value in options.items():
        for new, part in _renamed(name, value, stacklevel + 1):
            if renamed.get(new) is not None:
                raise TypeError(f"{new} is given twice; {name} is its deprecated name")
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
    """Returns an option under its current name; a deprecated value may become two options."""
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
    Mapping[str, Any]: ((Mapping,), "a mapping"),
}
"""The accepted types of the fields of :class:`Sampling`, and their names in messages."""


def check_type(name: str, value: Any, types: tuple[type, ...], expected: str) -> None:
    """Raises ``TypeError`` for a value of another type; a bool does not count as a number."""
    if (isinstance(value, bool) and bool not in types) or not isinstance(value, types):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}: {value!r}")


def count(name: str, value: Any) -> int:
    """Checks an integer of at least 1 and returns it."""
    check_type(name, value, (Integral,), "an int")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return int(value)


def text(name: str, value: Any) -> str:
    """Checks a string and returns it."""
    check_type(name, value, (str,), "a str")
    return str(value)


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raises ``TypeError`` for an unknown name and suggests the closest known one."""
    for name in names:
        if name not in known:
            closest = get_close_matches(name, known, 1)
            advice = f"did you mean {closest[0]}?" if closest else f"there are {', '.join(known)}"
            raise TypeError(f"no option is called {name}; {advice}")


def on_existing(resume: bool, overwrite: bool) -> str:
    """Returns how to treat existing results: ``resume``, ``overwrite`` or ``refuse``."""
    if resume and overwrite:
        raise ValueError("resume continues a run and overwrite replaces it; pass only one of them")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


def path_or_none(path: str | PathLike[str] | None) -> Path | None:
    """Converts a path for the extension module."""
    return None if path is None else Path(path)


def skips(too_long: str) -> bool:
    """Returns whether questions that are too long are skipped."""
    if too_long not in ("stop", "skip"):
        raise ValueError(f"too_long={too_long!r} is not known; use stop or skip")
    return too_long == "skip"


def with_search(
    options: dict[str, Any], rules: Sequence[Rule] | None, scorer: object | None
) -> dict[str, Any]:
    """Returns the options of an evaluation.

    As on the command line, a beam search runs beside the samples if there are rewards to guide it,
    unless ``rules`` or a ``scorer`` are given."""
    asked = options.keys() & {
        "beam", "search", "beam_width", "beam_candidates", "search_temperature",
    }  # fmt: skip
    if asked or (rules is None and scorer is None):
        return options
    return {**options, "beam": False}


def grid(strengths: str | float | Sequence[float] | None) -> str | None:
    """Formats the strengths of a sweep: values, a range ``0.1:0.5:0.1``, an interval ``0:0.9``."""
    if strengths is None or isinstance(strengths, str):
        return strengths
    values = [strengths] if isinstance(strengths, (int, float)) else list(strengths)
    return ",".join(repr(float(value)) for value in values)


def names(values: str | Sequence[str] | None) -> list[str]:
    """Returns one name, several names, or ``None`` as a list."""
    return [] if values is None else [values] if isinstance(values, str) else list(values)


FIELDS = ("question_field", "answer_field", "steps_field")
"""The arguments that name the question, answer and steps fields of data."""


def fields(given: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Returns the names of the question, answer and steps fields."""
    question, answer, steps = (given.get(name) for name in FIELDS)
    return question, answer, steps


def data_name(data: str | PathLike[str]) -> str:
    """Returns the name of a data source, after downloading it if it is a Hub id."""
    name = fspath(data)
    fetch(data=name)
    return name
