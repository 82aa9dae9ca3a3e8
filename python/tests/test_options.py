"""Sampling options: the fields of the schema, and their names in earlier versions."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from typing import Any, get_type_hints

import pytest

from latent_tts import Reasoner, Sampling, _core
from latent_tts._options import RENAMED, SharedSampling

TEXT = "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?"

# A non-default value for each field of the schema, with the fields that it requires.
VALUES: dict[str, dict[str, Any]] = {
    "samples": {"samples": 3},
    "sampler": {"sampler": "none"},
    "dropout_p": {"dropout_p": 0.35},
    "sites": {"sites": "mlp"},
    "scope": {"scope": "all"},
    "mask": {"mask": "trajectory"},
    "noise_std": {"noise_std": 0.25},
    "gumbel_tau": {"gumbel_tau": 0.5},
    "one_sided": {"one_sided": True},
    "gumbel_scale": {"one_sided": True, "gumbel_scale": 0.5},
    "multiplex_width": {"multiplex_width": 4},
    "temperature": {"temperature": 0.7},
    "top_p": {"top_p": 0.9},
    "latent_length": {"latent_length": "4-5"},
    "cold_stop_entropy": {"cold_stop_entropy": 0.05},
    "cold_stop_steps": {"cold_stop_steps": 12},
    "max_new_tokens": {"max_new_tokens": 7},
    "greedy": {"greedy": False},
    "seed": {"seed": 7},
    "rule": {"rule": "likelihood"},
    "vote_temperature": {"vote_temperature": 0.5},
    "likelihood_weight": {"likelihood_weight": 2.0},
    "lcb_coefficient": {"lcb_coefficient": 2.5},
    "check_steps": {"check_steps": True},
    "calibration": {"calibration": {"weights": {"votes": 0.5}, "slope": 0.75, "intercept": -0.5}},
    "beam": {"beam": True},
    "search": {"search": "particles"},
    "search_temperature": {"search": "particles", "search_temperature": 0.5},
    "beam_width": {"beam_width": 3},
    "beam_candidates": {"beam_candidates": 2},
    "adaptive": {"adaptive": True},
    "target_confidence": {"target_confidence": 0.9},
}


def test_options_are_the_schemas_fields() -> None:
    assert set(get_type_hints(Sampling)) == set(_core.sampling_fields()) == set(VALUES)
    assert set(get_type_hints(SharedSampling)) < set(get_type_hints(Sampling))
    assert set(RENAMED.values()) < set(_core.sampling_fields())
    assert not set(RENAMED) & set(_core.sampling_fields())


@pytest.mark.parametrize("field", VALUES)
def test_every_field_reaches_the_parameters(reasoner: Reasoner, field: str) -> None:
    """The parameters of a request differ from the defaults only in the given field."""
    defaults = reasoner._engine.resolve({})
    resolved = reasoner._engine.resolve(VALUES[field])
    if field in ("greedy", "adaptive"):
        opposite = reasoner._engine.resolve({field: field == "greedy"})
        assert opposite != resolved
    else:
        assert resolved != defaults
    assert reasoner._engine.resolve(resolved) == resolved
    if field == "calibration":
        # The weights that are not given are 0.
        assert resolved[field]["weights"].pop("votes") == VALUES[field][field]["weights"]["votes"]
        assert not any(resolved[field]["weights"].values())
    elif field in resolved:
        assert resolved[field] == pytest.approx(VALUES[field][field])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"n": 2}, {"samples": 2}),
        ({"p": 0.3}, {"dropout_p": 0.3}),
        ({"sigma": 0.3}, {"noise_std": 0.3}),
        ({"thoughts": 3}, {"latent_length": 3}),
        ({"caution": 2.0, "rule": "lcb"}, {"lcb_coefficient": 2.0, "rule": "lcb"}),
        ({"adaptive": 0.9}, {"target_confidence": 0.9}),
        ({"beam": (2, 2)}, {"beam_width": 2, "beam_candidates": 2}),
    ],
)
def test_old_names_work_with_a_warning(
    reasoner: Reasoner, old: dict[str, Any], new: dict[str, Any]
) -> None:
    name = next(iter(old))
    with pytest.warns(DeprecationWarning, match=f"{name}=.* is deprecated; use") as warned:
        before = reasoner.solve(TEXT, **{"samples": 4, **old} if name != "n" else old)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = reasoner.solve(TEXT, **{"samples": 4, **new})
    assert [t.text for t in before.trajectories] == [t.text for t in after.trajectories]
    assert before.answer == after.answer and (before.beam is None) == (after.beam is None)


def test_a_name_and_its_old_name_contradict(reasoner: Reasoner) -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(TypeError, match="dropout_p is given tw"):
        reasoner.solve(TEXT, dropout_p=0.1, p=0.2)  # type: ignore[call-arg]


@pytest.mark.parametrize("method", ["solve", "sample", "evaluate", "annotate", "sweep"])
def test_unknown_options_get_the_closest_name(reasoner: Reasoner, method: str) -> None:
    for wrong, closest in (("sampels", "samples"), ("latent_lenght", "latent_length")):
        with pytest.raises(TypeError, match=f"no option is called {wrong}; did you mean {closest}"):
            getattr(reasoner, method)(TEXT, **{wrong: 2})


def test_the_cluster_command_has_a_flag_for_each_field() -> None:
    pytest.importorskip("ray")
    line = [sys.executable, "-m", "latent_tts.ray", "eval", "--help"]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"--[a-z-]+", text))
    assert {"--" + field.replace("_", "-") for field in _core.sampling_fields()} <= flags
    assert {"--base", "--too-long", "--p", "--sigma", "--tau"} <= flags
