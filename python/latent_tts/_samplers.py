"""Samplers given as callables on the thoughts of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from . import _core

SamplerFunction = Callable[[NDArray[np.float32], NDArray[np.uint64]], NDArray[Any]]
"""A sampler: maps thoughts (rows, width) and their keys (rows, 4) to thoughts of the same shape.

A key consists of the seed, the question's index, the trajectory's index and the step, counted from
0. A call gets rows of several questions and trajectories in any order, so each result must depend
only on its thought and key."""

Sampler = Union[str, SamplerFunction]
"""A sampler: a name, or a callable, which manifests record by its ``__name__``."""

_registered: dict[str, SamplerFunction] = {}


def register_sampler(name: str, function: SamplerFunction) -> None:
    """Registers a sampler, selected by ``sampler=name``, or replaces the one of this name."""
    if not callable(function):
        raise TypeError(f"the sampler {name} is not callable: {function!r}")
    _core.register_sampler(name, function)
    _registered[name] = function


def sampler_name(sampler: Sampler) -> str:
    """Returns the name of a sampler; a callable is registered under its ``__name__``."""
    if isinstance(sampler, str):
        return sampler
    if not callable(sampler):
        kind = type(sampler).__name__
        raise TypeError(f"sampler must be a str or a callable, not {kind}: {sampler!r}")
    registered = next((name for name, other in _registered.items() if other is sampler), None)
    if registered is not None:
        return registered
    name = str(getattr(sampler, "__name__", type(sampler).__name__))
    if name == "<lambda>":
        raise ValueError("a lambda has no name; pass a function, or register_sampler(name, ...)")
    register_sampler(name, sampler)
    return name
