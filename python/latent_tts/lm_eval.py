"""Integration of lm-evaluation-harness: the model ``latent_tts`` and a command that registers it.

``python -m latent_tts.lm_eval`` takes the arguments of ``lm_eval``. It is needed because the
harness has no other way to find an external model. The tasks of this package need no
``--include_path``.

.. code-block:: sh

    python -m latent_tts.lm_eval run --model latent_tts \\
        --model_args pretrained=embedded,samples=16,rule=weighted --tasks embedded_bare --limit 24
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import _options
from ._reasoner import Reasoner

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise ImportError("lm_eval is not installed; `pip install latent-tts[lm-eval]`") from error

TASKS = Path(__file__).parent / "tasks"
"""The directory with the tasks of this package."""

DEFAULT_DEVICE = "cuda:0"
"""The device that the harness passes if its flag ``--device`` is not given."""


@register_model("latent_tts")
class LatentTTS(LM):  # type: ignore[misc, unused-ignore]
    """A latent reasoner as a model of the harness.

    ``generate_until`` samples trajectories and returns the text of the one that the rule selects.
    Log-likelihoods are those of a plain language model."""

    def __init__(
        self,
        pretrained: str = "embedded",
        samples: int = 16,
        rule: str | None = None,
        reward_model: str | None = "default",
        device: str = "auto",
        dtype: str | None = None,
        threads: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **sampling: Any,
    ) -> None:
        # The harness passes these to every model; the engine sizes its batches by memory.
        del batch_size, max_batch_size
        super().__init__()
        self.reasoner = Reasoner.from_pretrained(
            pretrained,
            reward_model=None if reward_model == "none" else reward_model,
            device=device or "auto",
            dtype=dtype,
            threads=threads,
        )
        self.samples = int(samples)
        self.rule = rule
        self.sampling = sampling

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> LatentTTS:
        """Creates the model; ``--model_args`` take precedence over flags such as ``--device``."""
        flags = {name: value for name, value in (additional_config or {}).items() if value}
        if flags.get("device") == DEFAULT_DEVICE and not _has_device_flag(sys.argv):
            flags["device"] = "auto"
        return cls(**{**flags, **arg_dict})

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the answers. Random numbers depend on the index of a request, as in
        ``latent-tts eval``."""
        del disable_tqdm
        arguments = [request.args for request in requests]
        limits = {options.get("max_gen_toks") for _, options in arguments}
        sampling = dict(self.sampling)
        if len(limits) == 1 and None not in limits:
            sampling.setdefault("max_new_tokens", limits.pop())
        options = _options.current({"samples": self.samples, "rule": self.rule, **sampling})
        questions: list[tuple[str, str | None, str]]
        questions = [(context, None, "number") for context, _ in arguments]
        replies = self.reasoner._engine.sample(questions, options, None, None)
        texts = []
        for (_, kwargs), reply in zip(arguments, replies):
            # If no trajectory has an answer, return the text of the first one.
            chosen = 0 if reply.chosen is None else reply.chosen
            texts.append(_cut(reply.trajectories[chosen].text, kwargs.get("until") or ()))
        return texts

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Returns the log-likelihoods of continuations after their contexts."""
        del disable_tqdm
        return self.reasoner.loglikelihood([request.args for request in requests])

    def loglikelihood_rolling(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Returns the log-likelihoods of whole texts, which must fit the model's context."""
        found = self.loglikelihood_of("", (request.args[0] for request in requests))
        return [sum_ for sum_, _ in found]

    def loglikelihood_of(self, context: str, texts: Iterable[str]) -> list[tuple[float, bool]]:
        """Returns the log-likelihoods of texts after one context."""
        return self.reasoner.loglikelihood([(context, text) for text in texts])


def _has_device_flag(argv: list[str]) -> bool:
    return any(argument.split("=")[0] == "--device" for argument in argv)


def _cut(text: str, until: str | Iterable[str]) -> str:
    """Returns the text before the first stop string."""
    for stop in [until] if isinstance(until, str) else until:
        text = text.split(stop)[0] if stop else text
    return text


def main() -> None:
    """Runs the command of the harness with the tasks of this package."""
    from lm_eval.__main__ import cli_evaluate

    if "--include_path" not in sys.argv and len(sys.argv) > 1:
        sys.argv += ["--include_path", str(TASKS)]
    cli_evaluate()


if __name__ == "__main__":
    main()
