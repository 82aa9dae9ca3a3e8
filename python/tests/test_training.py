"""Training from Python: same files as the command line, examples in memory, callbacks, Ctrl-C."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latent_tts import (
    Reasoner,
    RunError,
    TrainingExample,
    ablate,
    train_reasoner,
    train_reward,
    training_options,
)

TINY: dict[str, Any] = {
    "width": 16, "layers": 1, "heads": 2, "context": 192, "batch": 3, "steps": 3, "warmup": 1,
    "held_out_count": 2, "eval_every": 2,
}  # fmt: skip
QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "progress": False}


def weights(path: Path) -> tuple[bytes, bytes]:
    return (path / "model.safetensors").read_bytes(), (path / "training/log.jsonl").read_bytes()


def test_a_training_is_the_commands(command: Callable[..., None], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    trained = train_reasoner(tmp_path / "mine", callback=events.append, **TINY, **QUIET)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    command("train", "reasoner", "--out", tmp_path / "other", "--threads", 1, *flags)
    assert weights(trained.path) == weights(tmp_path / "other")
    assert trained.finished and trained.kept is not None and trained.kept["step"] == 3
    assert [event["steps"] for event in events if event["event"] == "step"] == [1, 2, 3]
    assert sum(event["event"] == "evaluation" for event in events) == 2
    assert trained.log()[0].keys() >= {"step", "loss", "lr", "grad_norm"}
    assert Reasoner.from_pretrained(trained.path, device="cpu").family == "coconut"


def test_examples_in_memory(tmp_path: Path) -> None:
    examples = [
        TrainingExample(f"Tom has {n} pens and buys 4 more pens. How many pens does Tom have?",
                        [f"<<{n}+4={n + 4}>>"], str(n + 4))
        for n in range(2, 8)
    ]  # fmt: skip
    given = {"method": "codi", "thoughts": 2, **TINY}
    trained = train_reasoner(
        tmp_path / "m", examples=examples, held_out_examples=examples[:2], **given, **QUIET
    )
    assert trained.evaluations()[-1]["metrics"]["problems"] == 2
    with pytest.raises(RunError, match="resume"):
        train_reasoner(tmp_path / "m", examples=examples, **given, **QUIET)
    with pytest.raises(RunError, match="data changed"):
        train_reasoner(tmp_path / "m", examples=examples[1:], resume=True, **given, **QUIET)


def test_options_are_checked(tmp_path: Path) -> None:
    defaults = training_options("reasoner")
    assert defaults["lr"] == 0.0015 and "last_step_weight" in training_options("reward")
    for given, message in [
        ({"min_lr_rato": 0.1}, "min_lr_ratio"),
        ({"dropout": 1.5}, "dropout"),
        ({"steps": "many"}, "steps"),
        ({"method": "osmosis"}, "coconut"),
        ({"preset": "huge"}, "tiny"),
    ]:
        with pytest.raises(ValueError, match=message):
            train_reasoner(tmp_path / "m", **given, **QUIET)  # type: ignore[arg-type]
    assert not (tmp_path / "m").exists()


def test_a_reward_model_and_an_ablation(reasoner: Reasoner, tmp_path: Path) -> None:
    labels = reasoner.annotate(
        "embedded:train:5..21", samples=4, rollouts=0, out=tmp_path / "labels", progress=False
    )
    trained = train_reward(
        tmp_path / "rm", model="embedded", annotations=[labels.path], steps=1, head="linear",
        objective="bce", **QUIET,
    )  # fmt: skip
    problems = len(set(labels.columns()["id"]))
    assert trained.log()[0]["n_examples"] == problems, "the batch is clamped to the data"
    scored = Reasoner.from_pretrained("embedded", reward_model=trained.path, device="cpu")
    assert scored.solve("Tom has 3 pens. How many pens does Tom have?", samples=2).trajectories
    ablated = ablate(reasoner, "embedded:test", kinds=["zero"], limit=2)
    assert json.dumps(ablated), ablated


def test_an_adapter_over_a_given_base(tmp_path: Path) -> None:
    base = train_reasoner(tmp_path / "base", mode="cot", **TINY, **QUIET).path
    given = {**TINY, "init": base, "lora": 2, "steps": 1}
    adapter = train_reasoner(tmp_path / "adapter", method="codi", **given, **QUIET).path
    (tmp_path / "moved").mkdir()
    base.rename(tmp_path / "moved" / "base")
    again = {**given, "init": adapter, "base": tmp_path / "moved" / "base"}
    trained = train_reasoner(tmp_path / "again", method="codi", **again, **QUIET)
    assert trained.finished and (trained.path / "adapter_model.safetensors").exists()


def test_ctrl_c_saves_the_state(tmp_path: Path) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["steps"] == 1:
            signal.raise_signal(signal.SIGINT)

    given = {**TINY, "steps": 2000, "eval_every": 0, "held_out_count": 0}
    with pytest.raises(KeyboardInterrupt):
        train_reasoner(tmp_path / "m", callback=interrupt, **given, **QUIET)
    done = len((tmp_path / "m/training/log.jsonl").read_text().splitlines())
    assert 1 <= done < 2000 and (tmp_path / "m/training/state.safetensors").exists()
