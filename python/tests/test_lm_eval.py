"""lm-evaluation-harness on a small local task: the accuracy is that of an evaluation."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from latent_tts import Reasoner, read_questions

pytest.importorskip("lm_eval")

COUNT, N = 24, 8


def test_the_harness_reports_evals_accuracy(reasoner: Reasoner, tmp_path: Path) -> None:
    questions = read_questions("embedded:ood", limit=COUNT)
    lines = [json.dumps({"question": q.text, "answer": q.gold}) for q in questions]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    from latent_tts.lm_eval import TASKS

    shared = (TASKS / "_bare_question.yaml").read_text()
    task = (
        "task: local_bare\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {tmp_path / 'data.jsonl'}\n"
        "test_split: test\ndoc_to_target: '{{answer}}'\n"
    )
    (tasks / "local_bare.yaml").write_text(shared + task)
    line = [
        sys.executable, "-m", "latent_tts.lm_eval", "run", "--model", "latent_tts",
        "--model_args", f"pretrained=embedded,samples={N},rule=weighted,device=cpu",
        "--tasks", "local_bare", "--include_path", str(tasks),
        "--output_path", str(tmp_path / "out"),
    ]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = (tmp_path / "out").rglob("results*.json")
    results = json.loads(found.read_text())["results"]["local_bare"]
    run = reasoner.evaluate(
        tmp_path / "data.jsonl", samples=N, beam=False, out=tmp_path / "run", progress=False
    )
    assert results["exact_match,last-number"] == pytest.approx(run.metric("weighted", N))
    assert 0 < run.metric("weighted", N)


def documented_command() -> list[str]:
    """The command of docs/how-to/lm-eval.md, word by word."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "lm-eval.md"
    section = page.read_text().split("## In one process")[1]
    block = section.split("```bash\n")[1].split("```")[0]
    (line,) = [
        line for line in block.replace("\\\n", " ").splitlines() if line.startswith("python ")
    ]
    return shlex.split(line)


def test_the_documented_command_runs(tmp_path: Path) -> None:
    python, *arguments = documented_command()
    assert python == "python" and "--device" not in arguments
    command = [sys.executable, *arguments, "--output_path", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = (tmp_path / "out").rglob("results*.json")
    results = json.loads(found.read_text())["results"]["embedded_bare"]
    assert results["exact_match,last-number"] > 0


def test_a_device_that_is_given_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from latent_tts.lm_eval import LatentTTS

    from latent_tts import LatentTTSError

    monkeypatch.setattr(sys, "argv", ["lm_eval", "run"])
    LatentTTS.create_from_arg_obj({}, {"device": "cuda:0"})
    monkeypatch.setattr(sys, "argv", ["lm_eval", "run", "--device", "cuda:7"])
    with pytest.raises((LatentTTSError, ValueError)):
        LatentTTS.create_from_arg_obj({}, {"device": "cuda:7"})


def test_loglikelihood_is_a_plain_language_models(reasoner: Reasoner) -> None:
    from lm_eval.api.instance import Instance

    from latent_tts.lm_eval import LatentTTS

    model = LatentTTS("embedded", device="cpu")
    pairs = [("Tom has 3 pens.", " Tom has 4"), ("", "Tom has")]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    assert model.loglikelihood(requests) == reasoner.loglikelihood(pairs)
    texts = [Instance("loglikelihood_rolling", {}, ("Tom has",), 0)]
    assert model.loglikelihood_rolling(texts) == [model.loglikelihood(requests)[1][0]]


def test_published_tasks_are_found() -> None:
    from lm_eval.tasks import TaskManager

    from latent_tts.lm_eval import TASKS

    known = TaskManager(include_path=str(TASKS), include_defaults=False).all_tasks
    assert {"embedded_bare", "gsm8k_bare", "gsm_hard_bare", "multiarith_bare"} <= set(known)
