"""A reasoner and its reward model: solving, sampling, evaluating, annotating, sweeping."""

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

Scorer = Callable[[str, list[Trajectory]], Sequence[float]]
"""Rewards of trajectories: called with a question's text and its trajectories, the greedy one last;
returns one number each, larger for better ones."""


class RewardModel:
    """A latent reward model, found and checked; it is loaded with the reasoner it scores.

    >>> RewardModel.from_pretrained("embedded")
    RewardModel('embedded')
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_pretrained(cls, pretrained: str | PathLike[str] = "embedded") -> RewardModel:
        """A checkpoint directory, an id of the Hugging Face Hub, or ``embedded``."""
        name = fspath(pretrained)
        fetch([name])
        _core.check_reward_model(name)
        return cls(name)

    def __repr__(self) -> str:
        return f"RewardModel({self.name!r})"


class Reasoner:
    """A latent reasoner on a device, perhaps with its reward model. See :meth:`from_pretrained`."""

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

        ``reward_model`` names one likewise, or is ``None``; by default the embedded reasoner has
        the embedded one and others have none. ``probe`` is a directory that :meth:`train_probe` or
        ``latent-tts train probe`` wrote: trajectories have its score as the signal ``probe``.
        ``base`` names the model that adapters among the two
        are added to, by default the one that they record. ``device`` is ``auto``, ``cpu``, ``cuda`` or
        ``cuda:NUMBER``, ``dtype`` the precision (a GPU's are ``bf16``, ``f32`` and, on Hopper,
        ``fp8``, a processor's ``f32`` and ``int8``), ``threads`` the worker threads of a processor,
        ``memory`` the bytes of keys and values, ``family`` the reasoner's family where its
        checkpoint does not tell. ``deterministic`` gives a trajectory the same bits on a GPU
        whatever its batch; a processor always does.

        >>> Reasoner.from_pretrained("embedded", reward_model=None, device="cpu").family
        'coconut'
        """
        start = time.perf_counter()
        if isinstance(reward_model, RewardModel):
            reward_model = reward_model.name
        named = reward_model if reward_model not in (None, "default") else None
        fetch([fspath(name) for name in (base, pretrained, named) if name is not None])
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
        """Where the model is."""
        return self._engine.name

    @property
    def family(self) -> str:
        """The family, such as ``coconut`` or ``codi``."""
        return self._engine.family

    @property
    def device(self) -> str:
        """The device, in words."""
        return self._engine.device

    @property
    def width(self) -> int:
        """Numbers of a thought."""
        return self._engine.width

    @property
    def layers(self) -> int:
        """Blocks of the model."""
        return self._engine.layers

    @property
    def reward_model(self) -> str | None:
        """Where the reward model is, if there is one."""
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
        """Samples trajectories of a question and lets a rule choose the answer.

        ``samples`` is 16 unless given; ``rule`` is one of :data:`latent_tts.RULES` or a callable,
        by default the best that the reward model allows; ``beam=True`` adds a beam search. See
        :class:`latent_tts.Sampling` for all options.

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
        """Warns the caller's caller of questions whose answers mean little."""
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
        """Samples trajectories of each question; ``samples`` is 16 unless given.

        ``questions`` is a text, a list of texts, or questions in memory as
        :func:`latent_tts.read_questions` takes them; trajectories of questions with a known answer
        are graded. With ``lens``, trajectories have that many tokens for each thought, as the LM
        head reads it. A question's random numbers are named by the seed and its index in the list:
        more trajectories keep those that were there before.

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
        """Answers a question after given thoughts instead of its own: for patching and steering.

        ``latents`` is an array of shape (thoughts, width) or (trajectories, thoughts, width), or a
        list of the former, which may differ in length. Without a sampler the answers are greedy.

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
        """Trains a probe on this reasoner's hidden states and writes it to a directory, which
        ``from_pretrained(probe=...)`` takes.

        ``data`` are problems that the reasoner was not trained on, as :meth:`evaluate` takes them;
        they are sampled as ``sampling`` says, 16 trajectories each unless given. ``kind`` is
        ``linear`` or ``encoder``. The result has the step that is kept and its ranking accuracy on
        problems that were held out, ``auc``. ``progress`` gets every evaluation as a dict.
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
        """Hidden states at every position of a given trajectory, for probing.

        ``latents`` are its thoughts, of shape (thoughts, width), and ``answer`` its tokens; without
        both only the prompt is read. ``layers`` are numbered as in transformers: 0 is the input of
        the first block, ``layers`` the last one's output after the final norm; all unless given.

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

        ``data`` is a name as :func:`latent_tts.read_questions` takes it, or questions in memory;
        ``question_field``, ``answer_field`` and ``steps_field`` name its fields, as there.
        ``samples`` is 64 unless given. ``rules`` are names or callables, see
        :func:`latent_tts.register_rule`; ``scorer`` is a callable whose rewards replace the reward
        model's. ``lens`` records that many tokens for each of the greedy run's thoughts, ``ablate``
        measures it with replaced thoughts (``zero``, ``mean``, ``swap``, ``freeze``, ``shuffle``),
        and ``too_long="skip"`` leaves out questions that do not fit the model.

        The directory is that of ``latent-tts eval`` with the same settings, byte for byte but for
        times and host; without ``out`` it is named after inputs and settings, below ``runs/``.
        Ctrl-C keeps what is recorded, and ``resume=True`` goes on after it.
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
        """The extension module's evaluation by the arguments of :meth:`evaluate`; ``data`` is a
        name."""
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
        """Evaluates each strength of the perturbation and finds the best by a metric.

        ``dropout_p``, ``noise_std`` and ``gumbel_tau`` are values, or text: ``"0.05:0.5:0.05"`` is
        a range, ``"0:0.9"`` an interval in which the best value is searched; without any,
        ``dropout_p`` is searched. ``metric`` is ``coverage``, ``majority``, ``weighted`` or
        ``best_of``; rewards are computed for the last two only. ``resume=True`` goes on with a
        sweep of the same settings.
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
        """A sweep by the arguments of :meth:`sweep`; ``run(out, sampler)`` evaluates a point."""
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
        """The evaluation of one point of a sweep."""
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
        """Labels thoughts with the share of their rollouts that answer right.

        ``samples`` trajectories of each question are labelled, 8 unless given. The paper uses 128
        rollouts; with 0 a thought has its own trajectory's outcome. The directory is that of
        ``latent-tts annotate`` with the same settings, byte for byte.
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
        """The extension module's annotation by the arguments of :meth:`annotate`; ``data`` is a
        name."""
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
        """The log-likelihood of each continuation after its context, and whether it is greedy:
        the reasoner as a plain language model, without thoughts."""
        with Progress(progress, len(pairs), "texts") as bar:
            return self._engine.loglikelihoods(list(pairs), bar)


def _thought_arrays(latents: Any) -> list[Any]:
    """Arrays of (thoughts, width), one a trajectory."""
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
    """The options of all points; those that are swept, by names of earlier versions, move to
    ``given``."""
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
