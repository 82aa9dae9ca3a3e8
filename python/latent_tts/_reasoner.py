"""A reasoner and its reward model: solving, sampling, evaluating, annotating, sweeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core, _options
from ._annotations import Annotations
from ._options import Sampling
from ._progress import Progress, fetch, logger
from ._run import RunDirectory, Sweep
from ._trajectories import Solution, Trajectories
from ._voting import Vote

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        the embedded one and others have none. ``device`` is ``auto``, ``cpu``, ``cuda`` or
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
        fetch([fspath(name) for name in (pretrained, named) if name is not None])
        engine = _core.Engine.load(
            fspath(pretrained),
            "none" if reward_model is None else fspath(reward_model),
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
        n: int = 16,
        rule: str | None = None,
        answer_kind: str = "number",
        beam: bool | tuple[int, int] = False,
        **sampling: Unpack[Sampling],
    ) -> Solution:
        """Samples n trajectories of a question and lets a rule choose the answer.

        ``rule`` is one of :data:`latent_tts.RULES`, by default the best that the reward model
        allows; ``beam`` adds a beam search. See :class:`latent_tts._options.Sampling` for the
        other options.

        >>> reasoner = Reasoner.from_pretrained("embedded", device="cpu")
        >>> reasoner.solve("Tom has 3 boxes with 4 pens in each. He gives away 5 pens. "
        ...                "How many pens does Tom have?", n=4).answer
        '7'
        """
        size = _options.beam_size(beam, None, self.reward_model is not None)
        options = _options.sampling(n, sampling, rule=rule, greedy=True, **size)
        asked = [_options.text("question", question)]
        (reply,) = self._engine.sample(asked, answer_kind, options, None)
        return Solution(
            question=question,
            answer=reply.answer,
            rule=reply.rule,
            votes=[Vote(*vote) for vote in reply.votes],
            trajectories=reply.trajectories,
            greedy=reply.greedy,
            beam=reply.beam,
            diversity=reply.diversity,
            flops=reply.flops,
            seconds=reply.seconds,
        )

    def sample(
        self,
        questions: str | Sequence[str],
        *,
        n: int = 16,
        answer_kind: str = "number",
        progress: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Trajectories:
        """Samples n trajectories of each question.

        A question's random numbers are named by the seed and its index in the list: more
        trajectories keep those that were there before.

        >>> reasoner = Reasoner.from_pretrained("embedded", device="cpu")
        >>> found = reasoner.sample("Tom has 3 pens and buys 4 more pens. "
        ...                         "How many pens does Tom have?", n=2)
        >>> found.stacked_thoughts().shape == (1, 2, 6, reasoner.width)
        True
        """
        listed = [questions] if isinstance(questions, str) else list(questions)
        for index, question in enumerate(listed):
            _options.text(f"questions[{index}]", question)
        options = _options.sampling(n, sampling)
        with Progress(progress, len(listed)) as bar:
            replies = self._engine.sample(listed, answer_kind, options, bar)
        return Trajectories(listed, replies)

    def evaluate(
        self,
        data: str | PathLike[str] = "embedded:test",
        *,
        n: int = 64,
        limit: int | None = None,
        out: str | PathLike[str] | None = None,
        seeds: int = 1,
        ks: Sequence[int] = (),
        rules: Sequence[str] | None = None,
        beam: bool | tuple[int, int] | None = None,
        keep_thoughts: bool = False,
        resume: bool = False,
        overwrite: bool = False,
        progress: bool = True,
        **sampling: Unpack[Sampling],
    ) -> RunDirectory:
        """Evaluates a benchmark and records every trajectory in a run directory.

        The directory is that of ``latent-tts eval`` with the same settings, byte for byte but for
        times and host; without ``out`` it is named after inputs and settings, below ``runs/``.
        Ctrl-C keeps what is recorded, and ``resume=True`` goes on after it.
        """
        given = {
            "data": data, "n": n, "limit": limit, "out": out, "seeds": seeds, "ks": ks,
            "rules": rules, "beam": beam, "keep_thoughts": keep_thoughts, "resume": resume,
            "overwrite": overwrite,
        }  # fmt: skip
        evaluation = self._evaluation(given, {**sampling}, read=True, default_count=300)
        with Progress(progress) as bar:
            return RunDirectory(evaluation.run(self._engine, bar))

    def _evaluation(
        self, given: dict[str, Any], sampling: dict[str, Any], *, read: bool, default_count: int
    ) -> _core.Evaluation:
        """The extension module's evaluation by the arguments of :meth:`evaluate`."""
        rules, scored = given["rules"], self.reward_model is not None
        arguments = {
            "data": _options.data_name(given["data"]),
            "read": read,
            "limit": given["limit"],
            "default_count": default_count,
            "seeds": given["seeds"],
            "ks": list(given["ks"]),
            "rules": None if rules is None else list(rules),
            "out": _options.path_or_none(given["out"]),
            "on_existing": _options.on_existing(given["resume"], given["overwrite"]),
            "keep_thoughts": given["keep_thoughts"],
        }
        beam = _options.beam_size(given["beam"], rules, scored)
        return _core.Evaluation(arguments, _options.sampling(given["n"], sampling, **beam))

    def sweep(
        self,
        data: str | PathLike[str] = "embedded:test",
        *,
        p: str | float | Sequence[float] | None = None,
        sigma: str | float | Sequence[float] | None = None,
        tau: str | float | Sequence[float] | None = None,
        sites: str | Sequence[str] | None = None,
        scope: str | Sequence[str] | None = None,
        mask: str | Sequence[str] | None = None,
        n: int = 64,
        limit: int | None = None,
        ks: Sequence[int] = (),
        out: str | PathLike[str] | None = None,
        seeds: int = 1,
        seed: int = 0,
        thoughts: int | str | None = None,
        max_new_tokens: int | None = None,
        metric: str = "coverage",
        tolerance: float | None = None,
        evaluations: int | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> Sweep:
        """Evaluates each strength of the perturbation and finds the best by a metric.

        ``p``, ``sigma`` and ``tau`` are values, or text: ``"0.05:0.5:0.05"`` is a range,
        ``"0:0.9"`` an interval in which the best value is searched; without any, p is searched.
        ``metric`` is ``coverage``, ``majority``, ``weighted`` or ``best_of``; rewards are computed
        for the last two only. ``resume=True`` goes on with a sweep of the same settings.
        """
        sampling = {"seed": seed, "thoughts": thoughts, "max_new_tokens": max_new_tokens}
        given = {
            "data": data, "n": n, "limit": limit, "ks": ks, "out": out, "seeds": seeds,
            "resume": resume, "p": p, "sigma": sigma, "tau": tau, "sites": sites, "scope": scope,
            "mask": mask, "metric": metric, "tolerance": tolerance, "evaluations": evaluations,
        }  # fmt: skip

        scored = _core.needs_rewards(metric)
        reasoner = self if scored else Reasoner(self._engine.without_reward_model())

        def run(out: Path, sampler: dict[str, Any]) -> None:
            evaluation = reasoner._point(given, {**sampling, **sampler}, out)
            with Progress(progress) as bar:
                evaluation.run(reasoner._engine, bar)

        return reasoner._sweep(given, sampling, run)

    def _sweep(
        self,
        given: dict[str, Any],
        sampling: dict[str, Any],
        run: Callable[[Path, dict[str, Any]], None],
    ) -> Sweep:
        """A sweep by the arguments of :meth:`sweep`; ``run(out, sampler)`` evaluates a point."""
        arguments = {
            "ks": list(given["ks"]),
            "out": _options.path_or_none(given["out"]),
            **{name: given[name] for name in ("resume", "metric", "tolerance", "evaluations")},
            **{name: _options.grid(given[name]) for name in ("p", "sigma", "tau")},
            **{name: _options.names(given[name]) for name in ("sites", "scope", "mask")},
        }
        shared = self._point(given, sampling, None)
        return Sweep(_core.sweep(self._engine, shared, arguments, run, logger.info))

    def _point(
        self, given: dict[str, Any], sampling: dict[str, Any], out: Path | None
    ) -> _core.Evaluation:
        """The evaluation of one point of a sweep."""
        shared = {name: given[name] for name in ("data", "n", "limit", "seeds", "resume")}
        point = {
            **shared, "out": out, "ks": (), "rules": None, "beam": None, "keep_thoughts": False,
            "overwrite": False,
        }  # fmt: skip
        return self._evaluation(point, sampling, read=True, default_count=200)

    def annotate(
        self,
        data: str | PathLike[str] = "embedded:train",
        *,
        trajectories: int = 8,
        rollouts: int = 4,
        limit: int | None = None,
        out: str | PathLike[str] | None = None,
        per_shard: int = 1024,
        thoughts_dtype: str = "f32",
        resume: bool = False,
        overwrite: bool = False,
        progress: bool = True,
        **sampling: Unpack[Sampling],
    ) -> Annotations:
        """Labels thoughts with the share of their rollouts that answer right.

        The paper uses 128 rollouts; with 0 a thought has its own trajectory's outcome. The
        directory is that of ``latent-tts annotate`` with the same settings, byte for byte.
        """
        given = {
            "data": data, "trajectories": trajectories, "rollouts": rollouts, "limit": limit,
            "out": out, "per_shard": per_shard, "thoughts_dtype": thoughts_dtype,
            "resume": resume, "overwrite": overwrite,
        }  # fmt: skip
        annotation = self._annotation(given, {**sampling}, read=True)
        with Progress(progress) as bar:
            return Annotations(annotation.run(self._engine, bar))

    def _annotation(
        self, given: dict[str, Any], sampling: dict[str, Any], *, read: bool
    ) -> _core.Annotation:
        """The extension module's annotation by the arguments of :meth:`annotate`."""
        arguments = {
            "data": _options.data_name(given["data"]),
            "read": read,
            "limit": given["limit"],
            "default_count": 1024,
            "rollouts": given["rollouts"],
            "per_shard": given["per_shard"],
            "dtype": given["thoughts_dtype"],
            "out": _options.path_or_none(given["out"]),
            "on_existing": _options.on_existing(given["resume"], given["overwrite"]),
        }
        return _core.Annotation(arguments, _options.sampling(given["trajectories"], sampling))

    def loglikelihood(
        self, pairs: Sequence[tuple[str, str]], *, progress: bool = False
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation after its context, and whether it is greedy:
        the reasoner as a plain language model, without thoughts."""
        with Progress(progress, len(pairs), "texts") as bar:
            return self._engine.loglikelihoods(list(pairs), bar)
