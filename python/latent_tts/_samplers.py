"""Samplers that are callables on the latents of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from . import _core

SamplerFunction = Callable[[NDArray[np.float32], NDArray[np.uint64]], NDArray[Any]]
"""A sampler: from thoughts (rows, width) and their keys (rows, 4) to thoughts of the same shape.

A key is the seed, the question's index, the trajectory's index and the step, from 0. Rows of
several questions and trajectories come together in any order, so the result must depend on a
thought and its key alone."""

Sampler = Union[str, SamplerFunction]
"""A sampler by name, or a callable, which is called by its ``__name__`` in manifests."""

_registered: dict[str, SamplerFunction] = {}


def register_sampler(name: str, function: SamplerFunction) -> None:
    """Adds a sampler, which ``sampler=name`` selects from then on, or replaces the registered one
    of this name."""
    if not callable(function):
        raise TypeError(f"the sampler {name} is not callable: {function!r}")
    _core.register_sampler(name, function)
    _registered[name] = function


def sampler_name(sampler: Sampler) -> str:
    """The name of a sampler; a callable is registered under its ``__name__``."""
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
