"""Run evaluations, annotations and sweeps on a Ray cluster."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any, get_type_hints

from .._core import LatentTTSError
from .._options import FIELDS, SWEPT, Sampling


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m latent_tts.ray", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    eval_ = commands.add_parser("eval", help="evaluate a benchmark into a run directory")
    annotate = commands.add_parser("annotate", help="label thoughts, one shard per task")
    sweep = commands.add_parser("sweep", help="run one evaluation per perturbation strength")
    for command, own in ((eval_, ()), (annotate, ()), (sweep, SWEPT)):
        _add_shared(command, own)
    eval_.add_argument("--seeds", type=int, default=1)
    for command in (eval_, sweep):
        command.add_argument("--reward-model", default="default", help="a reward model, or none")
    eval_.add_argument("--rules", help="voting rules to report, separated by commas")
    eval_.add_argument("--latents", action="store_true", dest="keep_thoughts")
    eval_.add_argument("--overwrite", action="store_true")
    eval_.add_argument("--parquet", help="also write all trajectories to this file")
    annotate.add_argument("--rollouts", "-m", type=int, default=4)
    annotate.add_argument("--per-shard", type=int, default=1024)
    annotate.add_argument("--thoughts-dtype", default="f32", choices=["f32", "bf16"])
    annotate.add_argument("--overwrite", action="store_true")
    annotate.add_argument("--parquet", help="also write all labelled thoughts to this file")
    sweep.add_argument("--seeds", type=int, default=1)
    for name in SWEPT[:3]:
        sweep.add_argument(*_flags(name), help="values, a range 0.1:0.5:0.1 or an interval 0:0.9")
    for name in SWEPT[3:]:
        sweep.add_argument(*_flags(name), help="names separated by commas; each is swept")
    sweep.add_argument("--metric", default="coverage",
                       help="metric to maximize: coverage, majority, weighted or best_of")  # fmt: skip
    sweep.add_argument("--tolerance", type=float)
    sweep.add_argument("--evaluations", type=int)
    return parser


_SHORT = {"dropout_p": "p", "noise_std": "sigma", "gumbel_tau": "tau"}


def _flags(name: str) -> list[str]:
    """Returns the flags of a sampling option; the short ones are aliases of the command line."""
    flags = ["--" + name.replace("_", "-")]
    flags += ["--" + _SHORT[name]] if name in _SHORT else []
    return ["-n", *flags, "--trajectories"] if name == "samples" else flags


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: use true or false")
    return text == "true"


def _add_shared(parser: argparse.ArgumentParser, own: tuple[str, ...]) -> None:
    """Adds the arguments of every command, except sampling options that it defines itself."""
    group = parser.add_argument_group("model and data")
    group.add_argument("--model", default="embedded", help="the reasoner, readable by every actor")
    group.add_argument("--base", help="the model that adapters are added to")
    group.add_argument("--family", help="the family, if it cannot be detected")
    group.add_argument("--data", help="a file that the driver reads, or embedded:SPLIT[:FIRST..END]")
    group.add_argument("--question-field", help="the field that holds the question")
    group.add_argument("--answer-field", help="the field that holds the answer")
    group.add_argument("--steps-field", help="the field that holds the steps")
    group.add_argument("--limit", type=int, help="take only the first questions")
    group.add_argument("--too-long", default="stop", choices=["stop", "skip"])
    group.add_argument("--out", help="the output directory")
    group.add_argument("--resume", action="store_true", help="continue the run in --out")
    group = parser.add_argument_group("cluster")
    group.add_argument("--address", help="the cluster [default: start Ray on this machine]")
    group.add_argument("--actors", default="2", help="number of actors, or MIN:MAX [2]")
    group.add_argument("--num-gpus", type=float, default=0, help="GPUs per actor [0]")
    group.add_argument("--num-cpus", type=float, default=0.5, help="CPUs reserved per actor [0.5]")
    group.add_argument("--threads", type=int, default=1, help="threads per CPU actor [1]")
    group.add_argument("--questions-per-task", type=int, default=32, help="questions per task [32]")
    group.add_argument("--dtype", help="precision on a GPU: bf16 or f32")
    group.add_argument("--quiet", action="store_true", help="do not show progress")
    group = parser.add_argument_group("sampling")
    for name, hint in get_type_hints(Sampling).items():
        if name in own:
            continue
        if hint is bool:
            group.add_argument(*_flags(name), type=_boolean, nargs="?", const=True)
        else:
            kind = hint if hint in (int, float) else str
            group.add_argument(*_flags(name), type=kind, dest=name)


_ARGUMENTS = {
    "eval": (
        *FIELDS, "limit", "too_long", "out", "resume", "overwrite", "seeds", "rules", "keep_thoughts",
    ),
    "annotate": (
        *FIELDS, "limit", "too_long", "out", "resume", "overwrite", "rollouts", "per_shard",
        "thoughts_dtype",
    ),
    "sweep": (
        *FIELDS, "limit", "too_long", "out", "resume", "seeds", *SWEPT, "metric", "tolerance",
        "evaluations",
    ),
}  # fmt: skip


def _run(args: argparse.Namespace) -> dict[str, Any]:
    import ray

    from . import Cluster, annotate, evaluate, sweep

    model = {
        "pretrained": args.model, "base": args.base, "family": args.family, "dtype": args.dtype,
    }  # fmt: skip
    least, _, most = args.actors.partition(":")
    cluster = Cluster(
        actors=(int(least), int(most)) if most else int(least),
        num_gpus=args.num_gpus,
        num_cpus=args.num_cpus,
        threads=args.threads,
        questions_per_task=args.questions_per_task,
    )
    arguments = {name: getattr(args, name) for name in _ARGUMENTS[args.command]}
    for name in ("rules", "sites", "scope", "mask"):
        if isinstance(arguments.get(name), str):
            arguments[name] = arguments[name].split(",")
    split = "embedded:train" if args.command == "annotate" else "embedded:test"
    arguments["data"] = args.data or split
    sampling = {
        name: getattr(args, name)
        for name in get_type_hints(Sampling)
        if name not in arguments and getattr(args, name) is not None
    }
    if not ray.is_initialized():
        ray.init(address=args.address, log_to_driver=not args.quiet, include_dashboard=False)
    shared: dict[str, Any] = {"cluster": cluster, "progress": not args.quiet}
    if args.command != "annotate":
        shared["reward_model"] = None if args.reward_model == "none" else args.reward_model
    if args.command == "sweep":
        found = sweep(model, arguments, sampling, **shared)
        return {"out": str(found.path), "best": found.summary["best"]}
    if args.command == "annotate":
        annotations = annotate(model, arguments, sampling, **shared)
        if args.parquet:
            annotations.to_parquet(args.parquet)
        return {"out": str(annotations.path), "thoughts": len(annotations)}
    run = evaluate(model, arguments, sampling, **shared)
    if args.parquet:
        run.to_parquet(args.parquet)
    if not args.quiet:
        print(run.table(), file=sys.stderr)
    return {"out": str(run.path)}


def main() -> int:
    """Runs the command; errors are printed in one line and give exit code 2."""
    args = _parser().parse_args()
    if not args.quiet:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("latent_tts").setLevel(logging.INFO)
    try:
        print(json.dumps(_run(args)))
    except (LatentTTSError, ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; continue with --resume", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
