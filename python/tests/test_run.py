"""Evaluations, sweeps and annotations: same files as the command line, frames and figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import files
from latent_tts import Annotations, Reasoner, RunDirectory, RunError

LIMIT, N = 6, 4


@pytest.fixture(scope="module")
def run(reasoner: Reasoner, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("runs") / "run"
    return reasoner.evaluate(
        "embedded:test", limit=LIMIT, samples=N, seeds=2, out=out, keep_thoughts=True, progress=False
    )


def without_times(path: Path) -> dict[str, object]:
    """The files that must be equal in different processes."""
    content: dict[str, object] = dict(files(path))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("created"), manifest.pop("host")
    results = json.loads((path / "results.json").read_text())
    results["cost"].pop("seconds")
    content.update({"manifest.json": manifest, "results.json": results})
    return {name: content[name] for name in content if name.split(".")[1] != "html"} | {
        "timings.jsonl": None
    }


def test_evaluate_is_the_commands_eval(
    run: RunDirectory, command: Callable[..., None], tmp_path: Path
) -> None:
    command("eval", "--data", "embedded:test", "--limit", LIMIT, "-n", N, "--seeds", 2,
            "--latents", "--device", "cpu", "--no-report", "--out", tmp_path / "run")  # fmt: skip
    assert without_times(run.path) == without_times(tmp_path / "run")


def test_results_and_metrics(run: RunDirectory) -> None:
    assert run.manifest["questions"] == LIMIT and run.manifest["seeds"] == [0, 1]
    results = run.results
    assert results is not None and results["trajectories"] == N
    assert 0 <= run.metric("majority") <= run.metric("coverage") <= 1
    assert run.metric("coverage", 1) <= run.metric("coverage", N)
    with pytest.raises(KeyError, match="coverage at k=3"):
        run.metric("coverage", 3)
    assert "majority" in run.table() and "<pre>" in run._repr_html_()
    assert len(list(run.samples())) == 2 * LIMIT


def test_frames(run: RunDirectory, tmp_path: Path) -> None:
    frame = run.to_pandas()
    assert len(frame) == 2 * LIMIT * (N + 1) and set(frame.kind) == {"greedy", "sampled"}
    sampled = frame[frame.kind == "sampled"]
    covered = sampled.groupby(["seed", "id"]).correct.any().mean()
    assert covered == pytest.approx(run.metric("coverage", N))
    assert run.to_polars().height == len(frame)
    assert set(run.to_pandas("metrics").columns) == {"name", "k", "value", "low", "high"}
    run.to_parquet(tmp_path / "run.parquet")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "run.parquet")
    assert table.column("answer").to_pylist() == [
        None if answer is None else answer for answer in run.columns()["answer"]
    ]
    with pytest.raises(ValueError, match="trajectories or metrics"):
        run.to_pandas("everything")


def test_missing_libraries_are_named(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        run.to_pandas()


def test_thoughts_are_mapped(run: RunDirectory, reasoner: Reasoner) -> None:
    thoughts = run.thoughts(0)
    assert isinstance(thoughts, np.memmap) and thoughts.shape == (N, 6, reasoner.width)
    assert run.thoughts(0, greedy=True).shape == (6, reasoner.width)
    assert not (run.thoughts(0, seed=1) == thoughts).all()
    question = next(run.samples())["question"]
    assert (reasoner.sample(question, samples=N).stacked_thoughts()[0] == thoughts).all()


def test_figures(run: RunDirectory) -> None:
    figure = run.figure("coverage")
    assert "<svg" in figure._repr_html_() and figure.caption
    drawn = figure.matplotlib()
    lines = drawn.axes[0].get_lines()
    assert len(lines) == len(figure.data["panels"][0]["series"])
    with pytest.raises(KeyError, match="coverage"):
        run.figure("nonsense")


def test_resume_and_overwrite(reasoner: Reasoner, run: RunDirectory, tmp_path: Path) -> None:
    def again(**more: object) -> RunDirectory:
        return reasoner.evaluate(
            limit=LIMIT, samples=N, seeds=2, out=tmp_path / "run", progress=False, **more  # type: ignore[arg-type]
        )

    again()
    with pytest.raises(RunError, match="already holds a run"):
        again()
    samples = tmp_path / "run" / "samples.jsonl"
    whole = samples.read_bytes()
    assert whole == (run.path / "samples.jsonl").read_bytes()
    samples.write_bytes(whole[: len(whole) // 3])
    again(resume=True)
    assert samples.read_bytes() == whole
    with pytest.raises(ValueError, match="one of them"):
        again(resume=True, overwrite=True)


def test_sweep_is_the_commands(
    reasoner: Reasoner, command: Callable[..., None], tmp_path: Path
) -> None:
    found = reasoner.sweep(
        dropout_p=[0.1, 0.4], noise_std="0.2", limit=4, samples=4, out=tmp_path / "a", progress=False
    )
    command("sweep", "--p", "0.1,0.4", "--sigma", "0.2", "--limit", 4, "-n", 4, "--device", "cpu",
            "--no-report", "--out", tmp_path / "b")  # fmt: skip
    assert files(tmp_path / "a")["sweep.json"] == files(tmp_path / "b")["sweep.json"]
    assert [run.path.name for run in found.runs] == ["dropout-0.1", "dropout-0.4", "noise-0.2"]
    assert found.best.path.name == found.summary["best"] and found.figures()
    with pytest.raises(ValueError, match="dropout_p: 1.5"):
        reasoner.sweep(dropout_p=1.5, out=tmp_path / "c")


def test_a_sweep_by_rewards_is_the_commands(
    reasoner: Reasoner, command: Callable[..., None], tmp_path: Path
) -> None:
    def again(**more: object) -> None:
        given = {"dropout_p": [0.1, 0.4], "limit": 3, "samples": 4, "metric": "weighted", **more}
        reasoner.sweep(out=tmp_path / "a", progress=False, **given)  # type: ignore[arg-type]

    again()
    command("sweep", "--p", "0.1,0.4", "--limit", 3, "-n", 4, "--metric", "weighted",
            "--device", "cpu", "--no-report", "--out", tmp_path / "b")  # fmt: skip
    found = files(tmp_path / "a")
    assert found["sweep.json"] == files(tmp_path / "b")["sweep.json"]
    with pytest.raises(RunError, match="already holds a sweep"):
        again()
    with pytest.raises(RunError, match="settings.sampling.samples = 4, now it is 8"):
        again(samples=8, resume=True)
    with pytest.raises(RunError, match='settings.dropout_p = "0.1,0.4"'):
        again(dropout_p=0.2, resume=True)
    assert files(tmp_path / "a") == found
    again(resume=True)
    assert files(tmp_path / "a") == found
    with pytest.raises(ValueError, match='invalid metric="best"'):
        again(metric="best")
    unscored = Reasoner.from_pretrained("embedded", reward_model=None, device="cpu")
    with pytest.raises(ValueError, match="needs rewards"):
        unscored.sweep(metric="best_of", out=tmp_path / "c")


def test_annotations_are_the_commands(
    reasoner: Reasoner, command: Callable[..., None], tmp_path: Path
) -> None:
    found = reasoner.annotate(
        limit=24, samples=4, rollouts=2, per_shard=10, out=tmp_path / "a", progress=False
    )
    command("annotate", "--limit", 24, "-n", 4, "-m", 2, "--per-shard", 10, "--device", "cpu",
            "--out", tmp_path / "b")  # fmt: skip
    assert files(tmp_path / "a") == files(tmp_path / "b") and len(files(tmp_path / "a")) == 4
    assert len(found) and found.thoughts.shape == (len(found), reasoner.width)
    assert ((found.labels >= 0) & (found.labels <= 1)).all()
    assert len(found.to_pandas()) == found.to_polars().height == len(found)
    found.to_parquet(tmp_path / "a.parquet")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    first = np.array(table.column("thoughts")[0].as_py(), dtype=np.float32)
    assert (first == found.thoughts[0]).all()
    (tmp_path / "a" / "00001-of-00003.safetensors").unlink()
    with pytest.raises(RunError):
        Annotations(tmp_path / "a")
    reasoner.annotate(
        limit=24, samples=4, rollouts=2, per_shard=10, out=tmp_path / "a", resume=True,
        progress=False,
    )  # fmt: skip
    assert files(tmp_path / "a") == files(tmp_path / "b")
