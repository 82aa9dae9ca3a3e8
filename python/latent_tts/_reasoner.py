"""A reasoner and its reward model: solve, sample, evaluate, annotate and sweep."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core, _options, _questions
from ._annotations import Annotations
from ._options import SWEPT, Sampling, SharedSampling
from ._progress import Progress, fetch, logger
from ._questions import Data
from ._run import RunDirectory, Sweep
from ._trajectories import HiddenStates, Solution, Trajectories, Trajectory
from ._voting import Rule, Vote, rule_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

Scorer = Callable[[str, list[Trajectory]], Sequence[float]] | _core.HttpScorer
"""A scorer: an HTTP endpoint, or a callable on the text of a question and its trajectories, the
greedy one last, that returns one reward per trajectory, larger for better ones."""


class RewardModel:
    """A latent reward model, located and checked. It is loaded together with its reasoner.

    >>> RewardModel.from_pretrained("embedded")
    RewardModel('embedded')
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_pretrained(cls, pretrained: str | PathLike[str] = "embedded") -> RewardModel:
        """Locates a checkpoint directory, an id of the Hugging Face Hub, or ``embedded``."""
        name = fspath(pretrained)
        fetch([name])
        _core.check_reward_model(name)
        return cls(name)

    def __repr__(self) -> str:
        return f"RewardModel({self.name!r})"


class Reasoner:
    """A latent reasoner on a device, with an optional reward model. See :meth:`from_pretrained`."""

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine

    @classmethod
    def from_pretrained(
        cls,
        pretrained: str | PathLike[str] = "embedded",
        *,
        reward_model: RewardModel | str | PathLike[str] | None = "default",
        probe: str | PathLike[str] | None = None,
        base: str | PathLike[str] | None = None,
        device: str = "auto",
        dtype: str | None = None,
        threads: int | None = None,
        memory: int | None = None,
        family: str | None = None,
        deterministic: bool = False,
    ) -> Reasoner:
        """Loads a checkpoint directory, a GGUF file, an id of the Hugging Face Hub (``owner/name``,
        from its cache or downloaded into it), or ``embedded``, the small reasoner in this package.

        ``reward_model`` is named in the same way, or is ``None``; by default the embedded reasoner
        has the embedded reward model and others have none. ``probe`` is a directory written by
        :meth:`train_probe` or ``latent-tts train probe``; trajectories then have its score as the
        signal ``probe``. ``base`` names the model that adapters are added to, by default the one
        that they record.

        ``device`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:NUMBER``. ``dtype`` is the precision:
        ``bf16``, ``f32`` or, on Hopper, ``fp8`` on a GPU, ``f32`` or ``int8`` on a CPU. ``threads``
        is the number of CPU worker threads, ``memory`` the size of the key-value cache in bytes,
        and ``family`` the reasoner's family if it cannot be detected. ``deterministic`` makes
        trajectories on a GPU bit-identical whatever their batch; on a CPU they always are.

        >>> Reasoner.from_pretrained("embedded", reward_model=None, device="cpu").family
        'coconut'
        """
        start = time.perf_counter()
        if isinstance(reward_model, RewardModel):
            reward_model = reward_model.name
        named = reward_model if reward_model not in (None, "default") else None
        fetch(
            [fspath(name) for name in (pretrained, named) if name is not None],
            base=None if base is None else fspath(base),
        )
        engine = _core.Engine.load(
            fspath(pretrained),
            "none" if reward_model is None else fspath(reward_model),
            probe=probe,
            base=None if base is None else fspath(base),
            family=family,
            device=device,
            dtype=dtype,
            threads=threads,
            memory=memory,
            deterministic=deterministic,
        )
        seconds = time.perf_counter() - start
        logger.info(
            "loaded %s model %s on %s in %.1f s", engine.family, engine.name, engine.device, seconds
        )
        return cls(engine)

    @property
    def name(self) -> str:
        """The name or path of the model."""
        return self._engine.name

    @property
    def family(self) -> str:
        """The family of the reasoner, such as ``coconut`` or ``codi``."""
        return self._engine.family

    @property
    def device(self) -> str:
        """A description of the device."""
        return self._engine.device

    @property
    def width(self) -> int:
        """The dimension of a thought."""
        return self._engine.width

    @property
    def layers(self) -> int:
        """The number of transformer blocks."""
        return self._engine.layers

    @property
    def reward_model(self) -> str | None:
        """The name or path of the reward model, if there is one."""
        return self._engine.reward_model

    def __repr__(self) -> str:
        scored = f", reward_model={self.reward_model!r}" if self.reward_model else ""
        return f"Reasoner({self.name!r}, family={self.family!r}{scored}, device={self.device!r})"

    def solve(
        self,
        question: str,
        *,
        answer_kind: str = "number",
        **sampling: Unpack[Sampling],
    ) -> Solution:
        """Samples trajectories of a question and selects an answer by a voting rule.

        ``samples`` defaults to 16. ``rule`` is one of :data:`latent_tts.RULES` or a callable; the
        default depends on the rewards that the reward model gives. ``beam=True`` adds a beam
        search. See :class:`latent_tts.Sampling` for all options.

        >>> reasoner = Reasoner.from_pretrained("embedded", device="cpu")
        >>> reasoner.solve("Tom has 3 boxes with 4 pens in each. He gives away 5 pens. "
        ...                "How many pens does Tom have?", samples=4).answer
        '7'
        """
        options = {"samples": 16, "greedy": True, **_options.current(sampling)}
        asked = [(_options.text("question", question), None, answer_kind)]
        notes = self._warn([question])
        (reply,) = self._engine.sample(asked, options, None, None)
        return Solution(
            question=question,
            answer=reply.answer,
            rule=reply.rule,
            confidence=reply.confidence,
            votes=[Vote(*vote) for vote in reply.votes],
            trajectories=reply.trajectories,
            greedy=reply.greedy,
            beam=reply.beam,
            diversity=reply.diversity,
            flops=reply.flops,
            seconds=reply.seconds,
            notes=notes,
        )

    def _warn(self, questions: list[str]) -> list[str]:
        """Warns the caller's caller about questions whose answers are unreliable."""
        notes = self._engine.notes(questions)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        return notes

    def sample(
        self,
        questions: Data,
        *,
        answer_kind: str = "number",
        lens: int | None = None,
        progress: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Trajectories:
        """Samples trajectories of each question; ``samples`` defaults to 16.

        ``questions`` is a text, a list of texts, or questions in memory as accepted by
        :func:`latent_tts.read_questions`; trajectories of questions with a known answer are graded.
        ``lens`` adds that many tokens per thought, read through the LM head. Random numbers are a
        function of the seed, the question's index in the list and the trajectory's index, so a
        larger ``samples`` only adds trajectories.

        >>> reasoner = Reasoner.from_pretrained("embedded", device="cpu")
        >>> found = reasoner.sample("Tom has 3 pens and buys 4 more pens. "
        ...                         "How many pens does Tom have?", samples=2)
        >>> found.stacked_thoughts().shape == (1, 2, 6, reasoner.width)
        True
        """
        options = {"samples": 16, **_options.current(sampling)}
        listed = _questions.inputs(questions, answer_kind)
        self._warn([text for text, _, _ in listed])
        with Progress(progress, len(listed)) as bar:
            replies = self._engine.sample(listed, options, lens, bar)
        return Trajectories([text for text, _, _ in listed], replies)

    def decode(
        self,
        question: Data,
        latents: ArrayLike | Sequence[ArrayLike],
        *,
        answer_kind: str = "number",
        **sampling: Unpack[Sampling],
    ) -> list[Trajectory]:
        """Answers a question from given thoughts instead of its own, for patching and steering.

        ``latents`` is an array of shape (thoughts, width) or (trajectories, thoughts, width), or a
        list of arrays of the former shape, which may differ in length. Answers are greedy unless a
        sampler is given.

        >>> reasoner = Reasoner.from_pretrained("embedded", device="cpu")
        >>> question = "Tom has 3 pens and buys 4 more pens. How many pens does Tom have?"
        >>> greedy = reasoner.solve(question, samples=1).greedy
        >>> reasoner.decode(question, greedy.thoughts)[0].text == greedy.text
        True
        """
        arrays = _thought_arrays(latents)
        given = {"sampler": "none", **_options.current(sampling)}
        (text,) = _questions.inputs(question, answer_kind)
        return self._engine.decode(text, arrays, {**given, "samples": len(arrays)}).trajectories

    def train_probe(
        self,
        out: str | PathLike[str],
        data: Data = "embedded:train",
        *,
        limit: int | None = None,
        overwrite: bool = False,
        kind: str = "encoder",
        objective: str = "pairwise",
        steps: int = 1000,
        batch: int = 8,
        lr: float = 3e-4,
        question_field: str | None = None,
        answer_field: str | None = None,
        steps_field: str | None = None,
        progress: Callable[[dict[str, Any]], object] | None = None,
        **sampling: Unpack[Sampling],
    ) -> dict[str, Any]:
        """Trains a probe on this reasoner's hidden states and writes it to a directory for
        ``from_pretrained(probe=...)``.

        ``data`` names problems that the reasoner was not trained on, as for :meth:`evaluate`;
        ``question_field``, ``answer_field`` and ``steps_field`` name its fields. The problems are
        sampled with the options ``sampling``; ``samples`` defaults to 16. ``kind`` is
        ``linear`` or ``encoder``. The result has the selected step and its ranking accuracy on
        held-out problems, ``auc``. ``progress`` is called with every evaluation, a dict.
        """
        options = {"samples": 16, **_options.current(sampling)}
        training = {"kind": kind, "objective": objective, "steps": steps, "batch": batch, "lr": lr}
        events = None if progress is None else lambda text: progress(json.loads(text))
        with _questions.source(data) as name:
            fields = (question_field, answer_field, steps_field)
            questions = _core.read_questions(name, fields, limit, 1000)
            report = _core.train_probe(
                self._engine, fspath(out), questions, options, json.dumps(training), overwrite,
                events,
            )  # fmt: skip
        result: dict[str, Any] = json.loads(report)
        return result

    def hidden_states(
        self,
        question: str,
        latents: ArrayLike | None = None,
        answer: Sequence[int] = (),
        *,
        layers: Sequence[int] | None = None,
        logits: bool = False,
    ) -> HiddenStates:
        """Returns the hidden states at every position of a given trajectory.

        ``latents`` are its thoughts, of shape (thoughts, width), and ``answer`` its tokens; without
        both, only the prompt is read. ``layers`` are numbered as in transformers: 0 is the input of
        the first block, and :attr:`layers` the output of the last block after the final norm. All
        layers are returned by default.

        >>> reasoner = Reasoner.from_pretrained("embedded", device="cpu")
        >>> question = "Tom has 3 pens and buys 4 more pens. How many pens does Tom have?"
        >>> greedy = reasoner.solve(question, samples=1).greedy
        >>> states = reasoner.hidden_states(question, greedy.thoughts, greedy.tokens, logits=True)
        >>> states.layers[reasoner.layers][states.thoughts].shape == (6, reasoner.width)
        True
        """
        chosen = list(range(self.layers + 1)) if layers is None else [int(n) for n in layers]
        if any(layer < 0 for layer in chosen):
            raise ValueError(f"layers are 0 to {self.layers}, not {min(chosen)}")
        given = None if latents is None else np.asarray(latents, dtype=np.float32)
        if given is not None and given.ndim != 2:
            raise ValueError(f"latents have the shape {given.shape}; pass (thoughts, width)")
        text = _options.text("question", question)
        arrays, read, counts = self._engine.hidden_states(
            (text, given, list(answer)), chosen, logits
        )
        ends = np.cumsum(counts).tolist()
        prompt, thoughts, end, tokens = map(slice, [0, *ends[:-1]], ends)
        return HiddenStates(dict(zip(chosen, arrays)), read, prompt, thoughts, end, tokens)

    def evaluate(
        self,
        data: Data = "embedded:test",
        *,
        limit: int | None = None,
        out: str | PathLike[str] | None = None,
        seeds: int = 1,
        ks: Sequence[int] = (),
        rules: Sequence[Rule] | None = None,
        scorer: Scorer | None = None,
        keep_thoughts: bool = False,
        lens: int | None = None,
        ablate: Sequence[str] = (),
        too_long: str = "stop",
        question_field: str | None = None,
        answer_field: str | None = None,
        steps_field: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        progress: bool = True,
        **sampling: Unpack[Sampling],
    ) -> RunDirectory:
        """Evaluates a benchmark and records every trajectory in a run directory.

        ``data`` is a name as accepted by :func:`latent_tts.read_questions`, or questions in memory;
        ``question_field``, ``answer_field`` and ``steps_field`` name its fields. ``samples``
        defaults to 64. ``rules`` are names or callables (see :func:`latent_tts.register_rule`);
        ``scorer`` is a callable or a :class:`latent_tts.HttpScorer` whose rewards replace those of
        the reward model. ``lens`` records
        that many tokens for each thought of the greedy run. ``ablate`` repeats the greedy run with
        replaced thoughts (``zero``, ``mean``, ``swap``, ``freeze``, ``shuffle``, ``round``).
        ``too_long="skip"`` skips questions that do not fit the model.

        Except for times and host, the directory is byte-identical to that of ``latent-tts eval``
        with the same settings. Without ``out`` its name is derived from inputs and settings, below
        ``runs/``. After Ctrl-C, ``resume=True`` continues the run.
        """
        given = {
            "limit": limit, "out": out, "seeds": seeds, "ks": ks, "rules": rules,
            "scorer": scorer, "keep_thoughts": keep_thoughts, "lens": lens, "ablate": ablate,
            "too_long": too_long, "resume": resume, "overwrite": overwrite,
            "question_field": question_field, "answer_field": answer_field,
            "steps_field": steps_field,
        }  # fmt: skip
        options = _options.current(sampling)
        with _questions.source(data) as name, Progress(progress) as bar:
            given["data"] = name
            evaluation = self._evaluation(given, options, read=True, default_count=300)
            return RunDirectory(evaluation.run(self._engine, bar))

    def _evaluation(
        self, given: dict[str, Any], options: dict[str, Any], *, read: bool, default_count: int
    ) -> _core.Evaluation:
        """Creates the extension module's evaluation from the arguments of :meth:`evaluate`;
        ``data`` is a name."""
        rules, scorer = given.get("rules"), given.get("scorer")
        named = None if scorer is None else getattr(scorer, "__name__", type(scorer).__name__)
        arguments = {
            "data": given["data"],
            "fields": _options.fields(given),
            "read": read,
            "limit": given.get("limit"),
            "default_count": default_count,
            "seeds": given.get("seeds", 1),
            "ks": list(given.get("ks", ())),
            "rules": None if rules is None else [rule_name(rule) for rule in rules],
            "out": _options.path_or_none(given.get("out")),
            "on_existing": _options.on_existing(
                given.get("resume", False), given.get("overwrite", False)
            ),
            "keep_thoughts": given.get("keep_thoughts", False),
            "lens": given.get("lens"),
            "ablate": list(given.get("ablate", ())),
            "skip_too_long": _options.skips(given.get("too_long", "stop")),
            "scorer": None if scorer is None else (str(named), scorer),
        }
        options = _options.with_search(options, rules, scorer)
        evaluation = _core.Evaluation(self._engine, arguments, options)
        _log_skipped(evaluation.skipped)
        return evaluation

    def sweep(
        self,
        data: Data = "embedded:test",
        *,
        dropout_p: str | float | Sequence[float] | None = None,
        noise_std: str | float | Sequence[float] | None = None,
        gumbel_tau: str | float | Sequence[float] | None = None,
        sites: str | Sequence[str] | None = None,
        scope: str | Sequence[str] | None = None,
        mask: str | Sequence[str] | None = None,
        limit: int | None = None,
        ks: Sequence[int] = (),
        out: str | PathLike[str] | None = None,
        seeds: int = 1,
        too_long: str = "stop",
        question_field: str | None = None,
        answer_field: str | None = None,
        steps_field: str | None = None,
        metric: str = "coverage",
        tolerance: float | None = None,
        evaluations: int | None = None,
        resume: bool = False,
        progress: bool = True,
        **sampling: Unpack[SharedSampling],
    ) -> Sweep:
        """Evaluates several strengths of the perturbation and finds the best by a metric.

        ``dropout_p``, ``noise_std`` and ``gumbel_tau`` are values or text: ``"0.05:0.5:0.05"`` is a
        range, ``"0:0.9"`` an interval in which the best value is searched. If none is given,
        ``dropout_p`` is searched. ``metric`` is ``coverage``, ``majority``, ``weighted`` or
        ``best_of``; rewards are computed only for the last two. ``resume=True`` continues a sweep
        with the same settings.
        """
        given = {
            "limit": limit, "ks": ks, "out": out, "seeds": seeds, "too_long": too_long,
            "resume": resume, "dropout_p": dropout_p, "noise_std": noise_std,
            "gumbel_tau": gumbel_tau, "sites": sites, "scope": scope, "mask": mask,
            "metric": metric, "tolerance": tolerance, "evaluations": evaluations,
            "question_field": question_field, "answer_field": answer_field,
            "steps_field": steps_field,
        }  # fmt: skip
        options = _swept(given, _options.current(sampling))
        scored = _core.needs_rewards(metric)
        reasoner = self if scored else Reasoner(self._engine.without_reward_model())

        def run(out: Path, sampler: dict[str, Any]) -> None:
            evaluation = reasoner._point(given, {**options, **sampler}, out)
            with Progress(progress) as bar:
                evaluation.run(reasoner._engine, bar)

        with _questions.source(data) as name:
            given["data"] = name
            return reasoner._sweep(given, options, run)

    def _sweep(
        self,
        given: dict[str, Any],
        options: dict[str, Any],
        run: Callable[[Path, dict[str, Any]], None],
    ) -> Sweep:
        """Runs a sweep with the arguments of :meth:`sweep`; ``run`` evaluates a point."""
        arguments = {
            "ks": list(given["ks"]),
            "out": _options.path_or_none(given["out"]),
            **{name: given[name] for name in ("resume", "metric", "tolerance", "evaluations")},
            **{name: _options.grid(given[name]) for name in SWEPT[:3]},
            **{name: _options.names(given[name]) for name in SWEPT[3:]},
        }
        shared = self._point(given, options, None)
        return Sweep(_core.sweep(self._engine, shared, arguments, run, logger.info))

    def _point(
        self, given: dict[str, Any], options: dict[str, Any], out: Path | None
    ) -> _core.Evaluation:
        """Creates the evaluation of one point of a sweep."""
        names = ("data", *_options.FIELDS, "limit", "seeds", "too_long", "resume")
        shared = {name: given[name] for name in names if name in given}
        return self._evaluation({**shared, "out": out}, options, read=True, default_count=200)

    def annotate(
        self,
        data: Data = "embedded:train",
        *,
        rollouts: int = 4,
        limit: int | None = None,
        out: str | PathLike[str] | None = None,
        per_shard: int = 1024,
        thoughts_dtype: str = "f32",
        too_long: str = "stop",
        question_field: str | None = None,
        answer_field: str | None = None,
        steps_field: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        progress: bool = True,
        **sampling: Unpack[Sampling],
    ) -> Annotations:
        """Labels thoughts with the share of their rollouts that are correct.

        ``samples`` trajectories of each question (8 by default) are labelled. The paper uses 128
        rollouts; with 0, the label is the outcome of the trajectory itself. The directory is
        byte-identical to that of ``latent-tts annotate`` with the same settings.
        """
        given = {
            "rollouts": rollouts, "limit": limit, "out": out, "per_shard": per_shard,
            "thoughts_dtype": thoughts_dtype, "too_long": too_long, "resume": resume,
            "overwrite": overwrite, "question_field": question_field,
            "answer_field": answer_field, "steps_field": steps_field,
        }  # fmt: skip
        options = _options.current(sampling)
        with _questions.source(data) as name, Progress(progress) as bar:
            given["data"] = name
            annotation = self._annotation(given, options, read=True)
            return Annotations(annotation.run(self._engine, bar))

    def _annotation(
        self, given: dict[str, Any], options: dict[str, Any], *, read: bool
    ) -> _core.Annotation:
        """Creates the extension module's annotation from the arguments of :meth:`annotate`;
        ``data`` is a name."""
        arguments = {
            "data": given["data"],
            "fields": _options.fields(given),
            "read": read,
            "limit": given.get("limit"),
            "skip_too_long": _options.skips(given.get("too_long", "stop")),
            "default_count": 1024,
            "rollouts": given.get("rollouts", 4),
            "per_shard": given.get("per_shard", 1024),
            "dtype": given.get("thoughts_dtype", "f32"),
            "out": _options.path_or_none(given.get("out")),
            "on_existing": _options.on_existing(
                given.get("resume", False), given.get("overwrite", False)
            ),
        }
        annotation = _core.Annotation(self._engine, arguments, {"samples": 8, **options})
        _log_skipped(annotation.skipped)
        return annotation

    def loglikelihood(
        self, pairs: Sequence[tuple[str, str]], *, progress: bool = False
    ) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each continuation after its context, and whether it is the
        greedy one. The reasoner is used as a plain language model, without thoughts."""
        with Progress(progress, len(pairs), "texts") as bar:
            return self._engine.loglikelihoods(list(pairs), bar)


def _thought_arrays(latents: Any) -> list[Any]:
    """Returns arrays of shape (thoughts, width), one per trajectory."""
    whole = isinstance(latents, np.ndarray) and latents.ndim == 2
    listed = [latents] if whole else list(latents)
    arrays = [np.ascontiguousarray(array, dtype=np.float32) for array in listed]
    if arrays and all(array.ndim == 1 for array in arrays):
        arrays = [np.stack(arrays)]
    if not arrays or any(array.ndim != 2 for array in arrays):
        raise ValueError(
            "latents have the shape (thoughts, width) or (trajectories, thoughts, width)"
        )
    return arrays


def _swept(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of all points; swept options that were passed under deprecated names
    are moved to ``given``."""
    for name in SWEPT:
        if name in options and given.get(name) is not None:
            raise TypeError(f"{name} is given twice")
        if name in options:
            given[name] = options.pop(name)
    return options


def _log_skipped(skipped: list[int]) -> None:
    if skipped:
        ids = ", ".join(map(str, skipped[:20])) + (", ..." if len(skipped) > 20 else "")
        logger.warning("skipped %d questions, too long for the model: %s", len(skipped), ids)
