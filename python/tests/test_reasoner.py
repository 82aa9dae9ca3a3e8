"""Solving and sampling."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latent_tts
from latent_tts import Question, Reasoner


def test_notes_are_warnings(reasoner: Reasoner, questions: list[Question]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert reasoner.solve(questions[0].text, samples=1).notes == []
    with pytest.warns(UserWarning) as caught:
        solution = reasoner.solve("What is 12 plus 30?", samples=1)
    assert [str(warning.message) for warning in caught] == solution.notes
    assert any('vocabulary: "What", "plus"' in note for note in solution.notes)
    assert any("1 sentence (expected 2" in note for note in solution.notes)
    assert all(warning.filename == __file__ for warning in caught), "the caller's line is named"
    with pytest.warns(UserWarning, match="1 of 2 questions"):
        reasoner.sample([questions[0].text, "What is 12 plus 30?"], samples=1)


def test_solve_counts_votes(reasoner: Reasoner, questions: list[Question]) -> None:
    solution = reasoner.solve(questions[0].text, samples=8)
    assert solution.answer in [vote.answer for vote in solution.votes]
    assert sum(vote.votes for vote in solution.votes) <= len(solution.trajectories) == 8
    assert solution.rule == "weighted" and solution.greedy is not None
    assert str(solution.answer) in repr(solution) and str(solution.answer) in solution._repr_html_()
    majority = reasoner.solve(questions[0].text, samples=8, rule="majority")
    assert majority.rule == "majority" and majority.votes == solution.votes


def test_sample_gives_columns(reasoner: Reasoner, questions: list[Question]) -> None:
    texts = [question.text for question in questions]
    found = reasoner.sample(texts, samples=5)
    assert len(found) == len(texts) and all(len(row) == 5 for row in found)
    assert found.rewards.shape == found.logprobs.shape == (len(texts), 5)
    assert np.isfinite(found.rewards).all() and (found.logprobs <= 0).all()
    stacked = found.stacked_thoughts()
    assert stacked.shape == (len(texts), 5, 6, reasoner.width)
    assert (stacked[1, 2] == found.thoughts[1][2]).all()
    assert found.aggregate("weighted")[0] == reasoner.solve(texts[0], samples=5).answer
    assert found.aggregate("majority")[0] == reasoner.solve(texts[0], samples=5, rule="majority").answer
    rewards = found.process_rewards[0][0]
    assert rewards is not None and rewards.shape == (6,)


def test_thoughts_are_the_engines_memory(reasoner: Reasoner, questions: list[Question]) -> None:
    thoughts = reasoner.sample(questions[0].text, samples=1)[0][0].thoughts
    assert thoughts.dtype == np.float32 and not thoughts.flags.owndata
    base = thoughts.base
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(base).__name__ == "PySliceContainer"


def test_fewer_samples_are_a_prefix(reasoner: Reasoner, questions: list[Question]) -> None:
    texts = [question.text for question in questions[:2]]
    few, many = reasoner.sample(texts, samples=2), reasoner.sample(texts, samples=6)
    for row, longer in zip(few, many):
        assert [t.text for t in row] == [t.text for t in longer[:2]]
        assert all((a.thoughts == b.thoughts).all() for a, b in zip(row, longer))
    other = reasoner.sample(texts, samples=2, seed=1)
    assert not (other[0][0].thoughts == few[0][0].thoughts).all()


def test_samplers_are_told_by_their_options(reasoner: Reasoner, questions: list[Question]) -> None:
    text = questions[0].text
    still = reasoner.sample(text, samples=2, sampler="none")[0]
    assert (still[0].thoughts == still[1].thoughts).all()
    assert reasoner.sample(text, samples=1, latent_length=3)[0][0].thoughts.shape[0] == 3
    with pytest.raises(ValueError, match="dropout_p belongs to sampler dropout and noise_std to"):
        reasoner.sample(text, dropout_p=0.1, noise_std=0.2)
    with pytest.raises(ValueError, match="dropout_p: .*at least 0 and below 1"):
        reasoner.sample(text, dropout_p=1.5)
    with pytest.raises(TypeError, match="no option is called temprature; did you mean temperature"):
        reasoner.sample(text, temprature=1.0)  # type: ignore[call-arg]


def test_errors_have_the_librarys_messages(tmp_path: Path, reasoner: Reasoner) -> None:
    with pytest.raises(latent_tts.ModelError, match="no such directory|not a directory|missing"):
        Reasoner.from_pretrained(tmp_path / "none", device="cpu")
    with pytest.raises(latent_tts.ModelError):
        latent_tts.RewardModel.from_pretrained(tmp_path)
    with pytest.raises(latent_tts.DataError, match="train, valid, test"):
        latent_tts.read_questions("embedded:nope")
    with pytest.raises(latent_tts.RunError, match="not a run directory"):
        latent_tts.RunDirectory(tmp_path)
    with pytest.raises(latent_tts.EngineError):
        reasoner.solve("pens " * 4000)
    with pytest.raises(latent_tts.DeviceError, match="bf16"):
        Reasoner.from_pretrained("embedded", device="cpu", dtype="bf16")
    with pytest.raises(latent_tts.DeviceError, match="fp8"):
        Reasoner.from_pretrained("embedded", device="cpu", dtype="fp8")
    assert issubclass(latent_tts.DeviceError, latent_tts.LatentTTSError)


def test_wrong_types_and_counts_are_refused_by_name(reasoner: Reasoner) -> None:
    text = "Tom has 3 pens."
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"samples": 0}, ValueError, "samples must be at least 1, not 0"),
        ({"samples": "4"}, TypeError, "samples must be an int, not str: '4'"),
        ({"samples": True}, TypeError, "samples must be an int, not bool"),
        ({"seed": 0.5}, TypeError, "seed must be an int, not float"),
        ({"dropout_p": "high"}, TypeError, "dropout_p must be a float, not str: 'high'"),
        ({"sampler": 3}, TypeError, "sampler must be a str or a callable, not int"),
        ({"latent_length": 2.5}, TypeError, "latent_length must be an int or a str, not float"),
        ({"beam": 2}, TypeError, "beam must be a bool, not int"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            reasoner.solve(text, **options)
    with pytest.raises(TypeError, match="question must be a str, not int: 5"):
        reasoner.solve(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"questions\[1\] must be a str or a dict, not NoneType"):
        reasoner.sample([text, None])  # type: ignore[list-item]
    # NumPy scalars are accepted.
    assert len(reasoner.solve(text, samples=np.int64(2), dropout_p=np.float32(0.1)).trajectories) == 2


def test_loading_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="latent_tts"):
        Reasoner.from_pretrained("embedded", reward_model=None, device="cpu")
    assert "loaded coconut model embedded" in caplog.text


def test_loglikelihoods_are_those_of_a_language_model(reasoner: Reasoner) -> None:
    (whole, greedy), (first, _), (second, _) = reasoner.loglikelihood(
        [("Tom has 3 pens.", " Tom has 4"), ("Tom has 3 pens.", " Tom has"),
         ("Tom has 3 pens. Tom has", " 4")]
    )  # fmt: skip
    assert whole < 0 and not greedy
    assert whole == pytest.approx(first + second, rel=1e-4)
    assert reasoner.loglikelihood([("", "Tom")])[0][0] < 0


def test_other_threads_run_meanwhile(reasoner: Reasoner, questions: list[Question]) -> None:
    """Other Python threads run during a long call."""
    counted, going = [0], [True]

    def count() -> None:
        while going[0]:
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    reasoner.sample([q.text for q in questions], samples=64)
    ran = counted[0] - before
    going[0] = False
    thread.join()
    assert ran > 3


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_a_long_call(tmp_path: Path) -> None:
    """KeyboardInterrupt is raised, records are kept, and the run can be resumed."""
    script = (
        "import latent_tts, sys\n"
        "reasoner = latent_tts.Reasoner.from_pretrained('embedded', device='cpu', threads=1)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        f"    reasoner.evaluate(limit=5000, samples=64, out={str(tmp_path / 'run')!r}, progress=False)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    samples = tmp_path / "run" / "samples.jsonl"
    while not (samples.exists() and samples.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == "interrupted\n" and process.returncode == 0
    lines = samples.read_text().splitlines()
    assert 0 < len(lines) < 5000 and lines[-1].endswith("}")


def test_parquet_is_read(tmp_path: Path) -> None:
    """Reads a dataset in the format of the Hub, by path and by the id of a cached dataset."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    rows = [
        {"question": "One?", "answer": "She has 3 <<1+2=3>>3.\n#### 3", "level": None},
        {"question": "Two?", "answer": "#### 1,234", "level": None},
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    expected = latent_tts.read_questions(tmp_path / "a.json")
    assert expected[0].steps == ["<<1+2=3>>"] and expected[1].gold == "1234"
    table = arrow.Table.from_pylist(rows)
    for codec in ("none", "snappy", "gzip"):
        path = tmp_path / f"{codec}.parquet"
        parquet.write_table(table, path, compression=codec)
        assert latent_tts.read_questions(path) == expected
    options = {"question": ["Which?"], "choices": [["no", "yes"]], "answer": [1], "other": [{"a": 1}]}
    parquet.write_table(arrow.table(options), tmp_path / "choices.parquet")
    (choice,) = latent_tts.read_questions(tmp_path / "choices.parquet")
    assert (choice.kind, choice.gold) == ("choice", "B") and choice.text.endswith("B) yes")
    parquet.write_table(table, tmp_path / "zstd.parquet", compression="zstd")
    with pytest.raises(latent_tts.DataError, match="ZSTD.*snappy"):
        latent_tts.read_questions(tmp_path / "zstd.parquet")
    snapshot = tmp_path / "datasets--owner--name" / "snapshots" / "1" / "main"
    snapshot.mkdir(parents=True)
    (tmp_path / "snappy.parquet").rename(snapshot / "test.parquet")
    script = "import latent_tts; print(*latent_tts.read_questions('owner/name/main/test.parquet')[0])"
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("0 One? 3 number")


def test_what_the_hub_does_not_have_is_told(tmp_path: Path) -> None:
    script = "import latent_tts; latent_tts.Reasoner.from_pretrained('owner/name', device='cpu')"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    failed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert "ModelError" in failed.stderr and "hf download owner/name" in failed.stderr


def test_an_adapter_is_loaded_over_a_base(
    tiny_gguf: Path, command: Callable[..., None], tmp_path: Path
) -> None:
    """The layout of models/smollm2-135m: a directory with an adapter over a GGUF file."""
    base = tmp_path / "base.gguf"
    base.write_bytes(tiny_gguf.read_bytes())
    known = latent_tts.read_questions("embedded:train", limit=6)
    examples = [{"question": q.text, "steps": q.steps, "answer": q.gold} for q in known]
    (tmp_path / "train.json").write_text(json.dumps(examples))
    adapter = tmp_path / "adapter"
    command("train", "reasoner", "--init", base, "--method", "codi", "--lora", 4, "--lora-alpha", 8,
            "--data", tmp_path / "train.json", "--batch", 3, "--steps", 3, "--warmup", 1,
            "--out", adapter)  # fmt: skip
    options: dict[str, Any] = {"samples": 2, "max_new_tokens": 6}
    text = "Tom has 3 pens and buys 4 more pens. How many pens does Tom have?"
    beside = Reasoner.from_pretrained(adapter, device="cpu").sample(text, **options)
    base.rename(tmp_path / "hidden.gguf")
    with pytest.raises(latent_tts.ModelError, match="base"):
        Reasoner.from_pretrained(adapter, device="cpu")
    over = Reasoner.from_pretrained(adapter, base=tmp_path / "hidden.gguf", device="cpu")
    found = over.sample(text, **options)
    assert found.texts == beside.texts
    assert (found.stacked_thoughts() == beside.stacked_thoughts()).all()
    assert over.family == "codi" and over.reward_model is None


def test_a_base_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(latent_tts.ModelError, match="no model is an adapter"):
        Reasoner.from_pretrained("embedded", base=tmp_path, device="cpu")
