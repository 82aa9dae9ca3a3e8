"""The README's SmolLM2 models: adapters over a base given by `base=`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from latent_tts import Candidate, Reasoner, Trajectory, TrainingExample, train_reasoner, train_reward

MODEL = ROOT / "models" / "smollm2-135m"
QUESTION = "Natalia sold clips to 48 friends in April, and half as many in May. How many in all?"
QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
ADAPTER: dict[str, Any] = {
    "lora": 2, "steps": 1, "batch": 1, "warmup": 1, "eval_every": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def base() -> Path:
    found = sorted((ROOT / "target" / "smollm2").glob("*.gguf"))
    if not found:
        pytest.skip("no base of the SmolLM2 adapters in target/smollm2; .ci/python downloads it")
    return found[0]


@pytest.fixture(scope="module")
def smollm2(base: Path) -> Reasoner:
    reward_model = ROOT / "models" / "smollm2-135m-reward"
    return Reasoner.from_pretrained(MODEL, reward_model=reward_model, base=base, device="cpu")


def last_answer(candidates: list[Candidate]) -> int:
    return len(candidates) - 1


def fewest_thoughts(question: str, trajectories: list[Trajectory]) -> list[float]:
    return [-trajectory.latent_steps for trajectory in trajectories]


def keyed_noise(thoughts: Any, keys: Any) -> Any:
    noise = [np.random.default_rng(key).normal(0, 0.05, thoughts.shape[1]) for key in keys]
    return thoughts + np.array(noise)


def test_a_rule_a_scorer_and_a_sampler(smollm2: Reasoner, tmp_path: Path) -> None:
    assert smollm2.family == "colar" and smollm2.reward_model is not None
    run = smollm2.evaluate(
        [{"question": QUESTION, "answer": "72"}], samples=2, sampler=keyed_noise,
        rules=["majority", last_answer], scorer=fewest_thoughts, out=tmp_path / "run",
        latent_length="<=8", progress=False,
    )  # fmt: skip
    (sample,) = run.samples()
    for trajectory in sample["trajectories"]:
        assert trajectory["outcome_reward"] == -trajectory["latent_steps"]
    assert run.manifest["settings"]["sampling"]["sampler"] == "keyed_noise"
    correct = [trajectory["correct"] for trajectory in sample["trajectories"]]
    assert run.metric("last_answer", 2) == float(correct[-1])
    states = smollm2.hidden_states(QUESTION, layers=[0, smollm2.layers])
    assert all(array.shape[1] == 576 for array in states.layers.values())


def test_a_reasoner_is_trained_over_it(base: Path, tmp_path: Path) -> None:
    example = TrainingExample(QUESTION, ["<<48/2=24>>", "<<48+24=72>>"], "72")
    trained = train_reasoner(
        tmp_path / "reasoner", examples=[example], init=MODEL, base=base, adapter="over",
        method="colar", held_out_count=0, **ADAPTER, **QUIET,
    )  # fmt: skip
    assert trained.finished and (trained.path / "adapter_model.safetensors").exists()
    reasoner = Reasoner.from_pretrained(trained.path, base=base, reward_model=None, device="cpu")
    (trajectory,) = reasoner.sample(QUESTION, samples=1, latent_length="<=8")[0]
    assert trajectory.latent_steps <= 8


def test_a_reward_model_is_trained_over_it(
    smollm2: Reasoner, base: Path, tmp_path: Path
) -> None:
    # Training needs problems with correct and wrong trajectories, which this seed has.
    labels = smollm2.annotate(
        [{"question": QUESTION, "answer": "72"}], samples=8, rollouts=0, dropout_p=0.3, seed=0,
        out=tmp_path / "labels", progress=False,
    )  # fmt: skip
    trained = train_reward(
        tmp_path / "rm", model=MODEL, base=base, annotations=[labels.path], head="linear",
        **ADAPTER, **QUIET,
    )  # fmt: skip
    assert trained.finished and trained.log()[0]["n_examples"] == 1
    both = Reasoner.from_pretrained(MODEL, base=base, reward_model=trained.path, device="cpu")
    found = both.solve(QUESTION, samples=2, latent_length="<=8")
    assert all(trajectory.process_rewards is not None for trajectory in found.trajectories)
