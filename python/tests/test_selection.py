"""Probes and calibrations: trained, used and measured from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import latent_tts
from latent_tts import Reasoner


def test_a_probe_is_trained_and_its_signal_calibrated(tmp_path: Path) -> None:
    reasoner = Reasoner.from_pretrained("embedded", reward_model="none", device="cpu")
    data = tmp_path / "problems.json"
    problems = latent_tts.read_questions("embedded:train:0..60")
    rows = [{"problem_text": problem.text, "result": problem.gold} for problem in problems]
    data.write_text(json.dumps(rows))
    evaluations: list[dict[str, Any]] = []
    report = reasoner.train_probe(
        tmp_path / "probe", data, question_field="problem_text", answer_field="result",
        kind="linear", steps=20, samples=8, progress=evaluations.append,
    )  # fmt: skip
    assert report["questions"] == 60 and 0 <= report["auc"] <= 1
    assert evaluations[-1]["event"] == "evaluation"
    with pytest.raises(latent_tts.DataError, match="question"):
        reasoner.train_probe(tmp_path / "other", data, steps=1)

    probing = Reasoner.from_pretrained(
        "embedded", reward_model="none", probe=tmp_path / "probe", device="cpu"
    )
    run = probing.evaluate(
        "embedded:train:60..100", samples=8, out=tmp_path / "run", progress=False
    )
    assert run.results is not None
    names = {metric["name"] for metric in run.results["metrics"]}
    assert {"probe", "best_probe", "auc_probe"} <= names

    out = tmp_path / "calibration.json"
    fitted = latent_tts.calibrate(run, measure=run, out=out)
    assert fitted["calibration"]["weights"].keys() >= {"votes", "probe"}
    assert json.loads(out.read_text()) == fitted["calibration"]
    solution = probing.solve(problems[0].text, samples=8, calibration=fitted["calibration"])
    assert solution.rule == "calibrated" and solution.confidence is not None
    assert 0 <= solution.confidence <= 1
