"""Extension points in Python: rules, scorers, given thoughts, questions in memory."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latent_tts
from conftest import files
from latent_tts import Candidate, Question, Reasoner, RunDirectory, Trajectory

N = 8


def plain_majority(candidates: list[Candidate]) -> str | None:
    """Majority voting, reimplemented."""
    counts = Counter(candidate.answer for candidate in candidates if candidate.answer is not None)
    first = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.index):
        first.setdefault(candidate.answer, candidate.index)
    return min(counts, key=lambda answer: (-counts[answer], first[answer]), default=None)


def short_texts(question: str, trajectories: list[Trajectory]) -> list[float]:
    assert question and all(t.thoughts.shape[0] == t.latent_steps for t in trajectories)
    return [-len(t.text) + t.latent_steps for t in trajectories]


def evaluate(reasoner: Reasoner, out: Path, **more: Any) -> RunDirectory:
    return reasoner.evaluate(limit=6, samples=N, out=out, progress=False, **more)


def curve(run: RunDirectory, name: str) -> list[tuple[int, float, float, float]]:
    assert run.results is not None
    return [
        (metric["k"], metric["value"], metric["low"], metric["high"])
        for metric in run.results["metrics"]
        if metric["name"] == name
    ]


def test_a_callable_rule_is_a_rule(reasoner: Reasoner, tmp_path: Path) -> None:
    run = evaluate(reasoner, tmp_path / "run", rules=["majority", plain_majority])
    assert [k for k, *_ in curve(run, "majority")] == [1, 2, 4, 8]
    # Ties are broken in the same way, so that all subsets agree.
    assert curve(run, "plain_majority") == curve(run, "majority")
    assert "plain majority" in run.table()
    page = run.report(out=tmp_path / "page").read_text()
    assert "plain majority" in page
    figure = run.figure("accuracy")
    assert "plain majority" in [s["label"] for s in figure.data["panels"][0]["series"]]
    gains = run.results["gains"] if run.results else []
    assert {gain["over"] for gain in gains if gain["name"] == "plain_majority"} == {
        "greedy", "majority"
    }  # fmt: skip
    solved = reasoner.solve("Tom has 3 pens and buys 4 more pens. How many pens does Tom have?",
                            samples=N, rule=plain_majority)  # fmt: skip
    assert solved.rule == "plain_majority" and solved.answer == "7"


def test_rescore_measures_a_recorded_run(reasoner: Reasoner, tmp_path: Path) -> None:
    run = evaluate(reasoner, tmp_path / "run")
    before = run.results
    assert before is not None
    run.rescore("last", lambda candidates: len(candidates) - 1)
    after = run.results
    assert after is not None
    assert {metric["name"] for metric in after["metrics"]} - {
        metric["name"] for metric in before["metrics"]
    } == {"last"}
    kept = [metric for metric in after["metrics"] if metric["name"] != "last"]
    assert kept == before["metrics"]
    correct = [sample["trajectories"][-1]["correct"] for sample in run.samples()]
    assert run.metric("last", N) == pytest.approx(sum(correct) / len(correct))
    # The numbers of a rule registered by another process are kept.
    results = run.path / "results.json"
    results.write_text(results.read_text().replace('"last"', '"elsewhere"'))
    numbers = curve(run, "elsewhere")
    run.rescore(plain_majority)
    assert curve(run, "elsewhere") == numbers and curve(run, "plain_majority")


def test_what_a_rule_does_wrong_is_raised(reasoner: Reasoner, tmp_path: Path) -> None:
    run = evaluate(reasoner, tmp_path / "run")
    before = files(run.path)

    def broken(candidates: list[Candidate]) -> int:
        raise LookupError("no such thing")

    for name, rule, error, message in (
        ("broken", broken, LookupError, "no such thing"),
        ("far", lambda _: 99, IndexError, "index 99 of"),
        ("other", lambda _: "eleven", ValueError, "not the answer of any trajectory"),
        ("list", lambda _: [1], TypeError, r"returned \[1\]; expected an answer"),
        ("flag", lambda _: True, TypeError, "returned True"),
    ):
        with pytest.raises(error, match=message):
            run.rescore(name, rule)
    assert files(run.path) == before
    with pytest.raises(LookupError):
        reasoner.solve("Tom has 3 pens. How many?", samples=2, rule=broken)
    with pytest.raises(LookupError):
        evaluate(reasoner, tmp_path / "other", rules=[broken])
    assert not (tmp_path / "other" / "results.json").exists()
    with pytest.raises(ValueError, match="a lambda has no name"):
        reasoner.solve("?", rule=lambda candidates: 0)
    with pytest.raises(ValueError, match="a built-in rule is called"):
        latent_tts.register_rule("majority", plain_majority)
    with pytest.raises(ValueError, match="lowercase letters"):
        latent_tts.register_rule("My rule", plain_majority)


def test_a_scorers_rewards_feed_the_rules(reasoner: Reasoner, tmp_path: Path) -> None:
    run = evaluate(reasoner, tmp_path / "run", scorer=short_texts)
    assert run.manifest["settings"]["scorer"] == "short_texts"
    for sample in run.samples():
        assert sample.get("beam") is None
        for trajectory in [*sample["trajectories"], sample["greedy"]]:
            reward = -len(trajectory["text"]) + trajectory["latent_steps"]
            assert trajectory["outcome_reward"] == reward
            assert trajectory["process_rewards"] == [reward] * trajectory["latent_steps"]
        rewards = [trajectory["outcome_reward"] for trajectory in sample["trajectories"]]
        assert len(rewards) == N
    assert curve(run, "weighted") and curve(run, "best_of") and curve(run, "lcb")
    unscored = Reasoner.from_pretrained("embedded", reward_model=None, device="cpu")
    other = evaluate(unscored, tmp_path / "unscored", scorer=short_texts)
    assert curve(other, "best_of") == curve(run, "best_of")
    with pytest.raises(latent_tts.RunError, match="scorer"):
        evaluate(reasoner, run.path, beam=False, resume=True)


def test_what_a_scorer_does_wrong_is_raised(reasoner: Reasoner, tmp_path: Path) -> None:
    for index, (scorer, error, message) in enumerate((
        (lambda _, trajectories: [0.0], ValueError, "1 rewards for 9 trajectories"),
        (lambda _, trajectories: [float("nan")] * 9, ValueError, "finite"),
        (lambda _, trajectories: ["high"] * 9, TypeError, "str|float"),
        (lambda _, trajectories: 1 / 0, ZeroDivisionError, "division"),
    )):  # fmt: skip
        with pytest.raises(error, match=message):
            evaluate(reasoner, tmp_path / str(index), scorer=scorer)


def test_given_thoughts_are_decoded(reasoner: Reasoner, questions: list[Question]) -> None:
    # Noise is added to the thoughts; dropout is applied in the forward passes over them.
    found = reasoner.sample(questions[:2], samples=4, noise_std=0.3)
    for row, question in zip(found, questions):
        again = reasoner.decode(question, [t.thoughts for t in row])
        assert [t.text for t in again] == [t.text for t in row]
        assert all((a.thoughts == b.thoughts).all() for a, b in zip(again, row))
    first = found[0][0].thoughts
    (one,) = reasoner.decode(questions[0].text, first)
    assert one.text == found[0][0].text and one.latent_steps == 6
    (steered,) = reasoner.decode(questions[0].text, np.zeros_like(first))
    assert (steered.thoughts == 0).all() and steered.logprob != one.logprob
    (short,) = reasoner.decode(questions[0].text, first[:2])
    assert short.latent_steps == 2
    # Replaces the thoughts of one question by those of another.
    (patched,) = reasoner.decode(questions[1].text, first)
    assert patched.text != found[1][0].text or patched.logprob != found[1][0].logprob
    with pytest.raises(ValueError, match="have width 3, the model has"):
        reasoner.decode("?", np.zeros((2, 3)))
    with pytest.raises(ValueError, match="latents have the shape"):
        reasoner.decode("?", np.zeros((1, 2, 3, 4)))


def test_hidden_states_along_a_trajectory(reasoner: Reasoner) -> None:
    question = "Tom has 3 pens and buys 4 more pens. How many pens does Tom have?"
    greedy = reasoner.solve(question, samples=1).greedy
    assert greedy is not None
    states = reasoner.hidden_states(question, greedy.thoughts, greedy.tokens, logits=True)
    assert sorted(states.layers) == list(range(reasoner.layers + 1))
    positions = states.answer.stop
    assert all(array.shape == (positions, reasoner.width) for array in states.layers.values())
    assert states.logits is not None
    # Each token is predicted at the position before it.
    before = slice(states.answer.start - 1, states.answer.stop - 1)
    assert states.logits[before].argmax(axis=1).tolist() == greedy.tokens
    # COCONUT's thoughts are the hidden states of the positions before them.
    before = slice(states.thoughts.start - 1, states.thoughts.stop - 1)
    assert states.layers[reasoner.layers][before] == pytest.approx(greedy.thoughts, abs=1e-4)
    prompt = reasoner.hidden_states(question, layers=[1])
    assert (prompt.layers[1] == states.layers[1][states.prompt]).all() and prompt.logits is None
    assert prompt.prompt.stop == len(prompt.layers[1])
    with pytest.raises(latent_tts.EngineError, match="no layer"):
        reasoner.hidden_states(question, layers=[reasoner.layers + 1])
    with pytest.raises(ValueError, match="width 3"):
        reasoner.hidden_states(question, np.zeros((2, 3)))


def keyed_noise(thoughts: Any, keys: Any) -> Any:
    """Gaussian noise, seeded by the key of each thought."""
    noise = [np.random.default_rng(key).normal(0, 0.4, thoughts.shape[1]) for key in keys]
    return thoughts + np.array(noise)


def test_a_callable_sampler_is_a_sampler(
    reasoner: Reasoner, questions: list[Question], tmp_path: Path
) -> None:
    still = reasoner.solve(questions[0].text, samples=2, sampler="none")

    def unchanged(thoughts: Any, keys: Any) -> Any:
        return thoughts

    same = reasoner.sample(questions, samples=2, sampler=unchanged)
    assert all((a.thoughts == still.trajectories[0].thoughts).all() for a in same[0])
    seen: list[Any] = []

    def watched(thoughts: Any, keys: Any) -> Any:
        seen.extend(map(tuple, keys.tolist()))
        return keyed_noise(thoughts, keys)

    found = reasoner.sample(questions, samples=3, seed=5, sampler=watched)
    assert sorted(seen) == [(5, q, k, t) for q in range(4) for k in range(3) for t in range(6)]
    # A trajectory depends neither on the number of trajectories nor on other questions.
    for index, question in enumerate(questions[:1]):
        alone = reasoner.sample(question, samples=2, seed=5, sampler=keyed_noise)
        for a, b in zip(alone[0], found[index]):
            assert (a.thoughts == b.thoughts).all() and a.text == b.text
    first = found[0]
    assert not (first[0].thoughts == first[1].thoughts).all()
    key = np.array([5, 0, 0, 0], dtype=np.uint64)
    moved = keyed_noise(still.trajectories[0].thoughts[:1], [key])
    assert first[0].thoughts[0] == pytest.approx(moved[0], abs=1e-5)
    run = evaluate(reasoner, tmp_path / "run", sampler=keyed_noise)
    assert run.manifest["settings"]["sampling"]["sampler"] == "keyed_noise"
    assert run.metric("coverage", N) >= run.metric("coverage", 1)
    assert run.report(out=tmp_path / "page").exists()


def test_what_a_sampler_does_wrong_is_raised(reasoner: Reasoner, tmp_path: Path) -> None:
    def broken(thoughts: Any, keys: Any) -> Any:
        raise LookupError("no such thing")

    latent_tts.register_sampler("narrow", lambda thoughts, keys: thoughts[:, :1])
    latent_tts.register_sampler("nan", lambda thoughts, keys: thoughts * float("nan"))
    for sampler, error, message in (
        (broken, LookupError, "no such thing"),
        ("narrow", ValueError, r"returned thoughts of shape \(\d+, 1\)"),
        ("nan", ValueError, "non-finite"),
    ):
        with pytest.raises(error, match=message):
            reasoner.solve("Tom has 3 pens. How many?", samples=2, sampler=sampler)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        evaluate(reasoner, tmp_path / "run", sampler=broken)
    assert not (tmp_path / "run" / "samples.jsonl").read_bytes()
    with pytest.raises(ValueError, match="unknown sampler"):
        reasoner.solve("?", sampler="nothing")
    with pytest.raises(ValueError, match="dropout_p has no effect with sampler narrow"):
        reasoner.solve("?", sampler="narrow", dropout_p=0.1)
    with pytest.raises(ValueError, match="is the name of a built-in sampler"):
        latent_tts.register_sampler("dropout", keyed_noise)


def test_lens_and_correct(reasoner: Reasoner, questions: list[Question]) -> None:
    found = reasoner.sample(questions, samples=2, lens=3)
    for row, question in zip(found, questions):
        for trajectory in row:
            assert trajectory.correct == (trajectory.answer == question.gold)
            assert len(trajectory.lens) == 6 and all(len(tokens) == 3 for tokens in trajectory.lens)
            probabilities = [probability for _, probability in trajectory.lens[0]]
            assert probabilities == sorted(probabilities, reverse=True)
    assert found.correct == [[t.correct for t in row] for row in found]
    assert reasoner.sample(questions[0].text, samples=1)[0][0].correct is None


class Split:
    """Behaves like a split of ``datasets``: an iterable of dicts."""

    column_names = ["question", "answer"]

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def test_questions_in_memory_are_those_of_a_file(reasoner: Reasoner, tmp_path: Path) -> None:
    import pandas
    import polars

    rows = [
        {"question": "Tom has 3 pens and buys 4 pens. How many pens?", "answer": "3+4\n#### 7"},
        {"question": "Ann has 9 pens and loses 4 pens. How many pens?", "answer": "#### 5"},
    ]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    known = latent_tts.read_questions(tmp_path / "data.json")
    frame = pandas.DataFrame(rows)
    held: list[Any] = [rows, frame, polars.DataFrame(rows), Split(rows), known]
    assert all(latent_tts.read_questions(data) == known for data in held)
    assert latent_tts.read_questions(rows, limit=1) == known[:1]
    expected = reasoner.sample([question.text for question in known], samples=2)
    for data in held:
        assert reasoner.sample(data, samples=2).texts == expected.texts
    by_file = reasoner.evaluate(tmp_path / "data.json", samples=4, out=tmp_path / "file",
                                progress=False)  # fmt: skip
    by_frame = reasoner.evaluate(frame, samples=4, out=tmp_path / "frame", progress=False)
    assert [(s["question"], s["gold"], s["trajectories"]) for s in by_file.samples()] == [
        (s["question"], s["gold"], s["trajectories"]) for s in by_frame.samples()
    ]
    again = reasoner.evaluate(rows, samples=4, out=tmp_path / "frame", resume=True, progress=False)
    assert again.manifest["fingerprint"] == by_frame.manifest["fingerprint"]
    assert not Path(again.manifest["host"]["data"]).exists()
    frame.loc[2] = [None, None]
    with pytest.raises(latent_tts.DataError, match="question 2"):
        latent_tts.read_questions(frame)
    with pytest.raises(ValueError, match="question 0 has no answer"):
        reasoner.evaluate(["How many?"], out=tmp_path / "none")
    with pytest.raises(TypeError, match="not int"):
        reasoner.sample(5)


def test_questions_that_are_too_long_are_left_out(reasoner: Reasoner, tmp_path: Path) -> None:
    rows = [{"question": "pens " * 4000, "answer": "1"}, {"question": "3 pens?", "answer": "3"}]
    with pytest.raises(latent_tts.EngineError):
        reasoner.evaluate(rows, samples=2, out=tmp_path / "stop", progress=False)
    run = reasoner.evaluate(
        rows, samples=2, too_long="skip", out=tmp_path / "skip", progress=False
    )
    assert [sample["id"] for sample in run.samples()] == [1]
    with pytest.raises(ValueError, match="use stop or skip"):
        reasoner.evaluate(rows, too_long="drop", out=tmp_path / "none")


def test_lens_and_ablations_are_recorded(reasoner: Reasoner, tmp_path: Path) -> None:
    run = evaluate(reasoner, tmp_path / "run", lens=2, ablate=["zero", "mean"])
    assert all(len(sample["greedy"]["lens"]) == 6 for sample in run.samples())
    ablation = json.loads((run.path / "ablation.json").read_text())
    assert [found["kind"] for found in ablation["ablations"]] == ["zero", "mean"]
    with pytest.raises(ValueError, match="invalid ablate=\"nothing\"; use one of zero, mean"):
        evaluate(reasoner, tmp_path / "none", ablate=["nothing"])


def test_old_attributes_warn(reasoner: Reasoner) -> None:
    trajectory = reasoner.solve("3 pens?", samples=1).trajectories[0]
    with pytest.warns(DeprecationWarning, match="index"):
        assert trajectory.number == trajectory.index == 0


def test_an_endpoint_scores_trajectories(reasoner: Reasoner, tmp_path: Path) -> None:
    requests = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(body)
            reply = json.dumps({"rewards": [-len(text) for text in body["answers"]]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scorer = latent_tts.HttpScorer(f"http://127.0.0.1:{server.server_port}/rewards")
        run = evaluate(reasoner, tmp_path / "run", scorer=scorer)
        server.shutdown()
    assert len(requests) == 6 and all(request["question"] for request in requests)
    for sample in map(json.loads, (tmp_path / "run" / "samples.jsonl").read_text().splitlines()):
        for trajectory in sample["trajectories"]:
            assert trajectory["outcome_reward"] == -len(trajectory["text"].strip())
    assert curve(run, "weighted")
    with pytest.raises(ValueError, match="http"):
        latent_tts.HttpScorer("ftp://example.com")
    with pytest.raises(ValueError, match="model"):
        latent_tts.HttpScorer("http://127.0.0.1/v1/chat/completions")
