"""The driver: missing questions become tasks, and results are written in task order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from .._annotations import Annotations
from .._options import FIELDS, RENAMED, SWEPT, current
from .._progress import Progress
from .._questions import source
from .._reasoner import Reasoner, _swept
from .._run import RunDirectory, Sweep
from ._actors import AnnotateActor, EvalActor

try:
    import ray
    import ray.data
except ImportError as error:
    raise ImportError("ray is not installed; `pip install latent-tts[ray]`") from error


@dataclass(frozen=True)
class Cluster:
    """The actors of a job and their resources on the cluster that Ray is connected to."""

    actors: int | tuple[int, int] = 2
    """Number of actors, or (minimum, maximum) for an autoscaling cluster."""
    num_gpus: float = 0
    """GPUs per actor. If above 0, an actor computes on the first GPU it sees."""
    num_cpus: float = 0.5
    """CPUs that Ray reserves per actor, below 1 so that read tasks can run beside them."""
    threads: int = 1
    """Worker threads per actor without a GPU."""
    questions_per_task: int = 32
    """Questions per task of an evaluation."""

    def model(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments with which an actor loads the model."""
        if self.num_gpus:
            return {**model, "device": "cuda"}
        return {**model, "device": "cpu", "threads": self.threads}

    def run(self, tasks: list[dict[str, Any]], actor: type, **start: Any) -> Iterator[Any]:
        """Yields the results in task order, each as soon as it and all earlier ones are available.

        Ray restarts failed actors and repeats their tasks."""
        if not tasks:
            return
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        least, most = (self.actors,) * 2 if isinstance(self.actors, int) else self.actors
        data = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
            actor,
            fn_constructor_kwargs=start,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus or None,
            zero_copy_batch=True,
        )
        held: dict[int, Any] = {}
        following = 0
        for row in data.iter_rows():
            held[row["task"]] = row["result"]
            while following in held:
                yield held.pop(following)
                following += 1


def _driver(model: Mapping[str, Any], reward_model: Any) -> Reasoner:
    """Loads the driver's reasoner, which checks and writes. It never samples and uses no GPU."""
    # The precision applies to the actors' GPUs.
    files = {name: value for name, value in model.items() if name != "dtype"}
    return Reasoner.from_pretrained(**files, reward_model=reward_model, device="cpu", threads=1)


def evaluate(
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    sampling: Mapping[str, Any],
    cluster: Cluster = Cluster(),
    *,
    driver: Reasoner | None = None,
    reward_model: Any = "default",
    progress: bool = True,
    default_count: int = 300,
) -> RunDirectory:
    """Evaluates a benchmark on a cluster.

    ``model`` holds the arguments of :meth:`Reasoner.from_pretrained`, ``arguments`` and
    ``sampling`` those of :meth:`Reasoner.evaluate`."""
    driver = driver or _driver(model, reward_model)
    given, options = _present(arguments, sampling)
    if given.get("ablate"):
        raise ValueError("ablate is not measured on a cluster; evaluate in one process")
    with source(given.get("data", "embedded:test")) as name:
        given["data"] = name
        evaluation = driver._evaluation(given, options, read=True, default_count=default_count)
        out, done, total = evaluation.open(driver._engine)
    tasks: list[dict[str, Any]] = []
    size = cluster.questions_per_task
    for seed, questions in evaluation.missing():
        for start in range(0, len(questions), size):
            part = questions[start : start + size]
            task = {"task": len(tasks), "seed": str(seed), "questions": json.dumps(part)}
            tasks.append(task)
    with Progress(progress) as bar:
        bar((str(out), done, total), 0)
        results = cluster.run(
            tasks,
            EvalActor,
            model={**cluster.model(model), "reward_model": reward_model},
            arguments={name: given[name] for name in given if name not in ("out", "too_long")},
            sampling=options,
        )
        for records in results:
            for record in records:
                evaluation.add(record)
            bar(None, len(records))
    return RunDirectory(evaluation.finish(driver._engine))


def annotate(
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    sampling: Mapping[str, Any],
    cluster: Cluster = Cluster(),
    *,
    progress: bool = True,
) -> Annotations:
    """Annotates on a cluster, one shard per task; see :meth:`Reasoner.annotate`."""
    driver = _driver(model, None)
    given, options = _present(arguments, sampling)
    with source(given.get("data", "embedded:train")) as name:
        given["data"] = name
        annotation = driver._annotation(given, options, read=True)
        out, index, missing, total = annotation.open(driver._engine)
    tasks = [
        {"task": task, "questions": json.dumps(annotation.questions_of(shard))}
        for task, shard in enumerate(missing)
    ]
    with Progress(progress, what="shards") as bar:
        bar((str(out), total - len(missing), total), 0)
        results = cluster.run(
            tasks,
            AnnotateActor,
            model={**cluster.model(model), "reward_model": None},
            arguments={name: given[name] for name in given if name not in ("out", "too_long")},
            sampling=options,
            index=index,
        )
        for shard, (content,) in zip(missing, results):
            annotation.write(shard, content)
            bar(None, 1)
    return Annotations(out)


def sweep(
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    sampling: Mapping[str, Any],
    cluster: Cluster = Cluster(),
    *,
    reward_model: Any = "default",
    progress: bool = True,
) -> Sweep:
    """Runs a sweep on a cluster, one point after another; see :meth:`Reasoner.sweep`."""
    given, options = _present(arguments, sampling)
    given = {
        **dict.fromkeys((*SWEPT, "out", "tolerance", "evaluations")), "ks": (), "resume": False,
        "metric": "coverage", "data": "embedded:test", **given,
    }  # fmt: skip
    options = _swept(given, options)
    scorer = reward_model if _core.needs_rewards(given["metric"]) else None
    driver = _driver(model, scorer)
    names = ("data", *FIELDS, "limit", "seeds", "too_long", "resume")

    def run(out: Path, sampler: dict[str, Any]) -> None:
        shared = {name: given[name] for name in names if name in given}
        evaluate(
            model, {**shared, "out": out}, {**options, **sampler}, cluster,
            driver=driver, reward_model=scorer, progress=progress, default_count=200,
        )  # fmt: skip

    with source(given["data"]) as name:
        given["data"] = name
        return driver._sweep(given, options, run)


def _present(
    arguments: Mapping[str, Any], sampling: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates arguments from sampling options, the latter under their current names."""
    given = dict(arguments)
    known = {*_core.sampling_fields(), *RENAMED} - {*SWEPT}
    moved = {name: given.pop(name) for name in arguments if name in known}
    return given, current({**moved, **sampling}, stacklevel=4)
