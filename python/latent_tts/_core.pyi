"""The extension module. It is private; the public API is the package ``latent_tts``."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

class LatentTTSError(Exception):
    """Base class of all errors of latent_tts."""

class ModelError(LatentTTSError):
    """A model could not be found or loaded."""

class DeviceError(LatentTTSError):
    """A device is missing or failed."""

class DataError(LatentTTSError):
    """Questions could not be read."""

class EngineError(LatentTTSError):
    """A request cannot be executed."""

class RunError(LatentTTSError):
    """A run directory or annotations could not be read or written."""

_Opened = tuple[str, int, int]
_Progress = Callable[[_Opened | None, int], None] | None
_FieldTuple = tuple[str | None, str | None, str | None]
_QuestionTuple = tuple[int, str, str, str, list[str]]
_QuestionInput = tuple[str, str | None, str]
_Vote = tuple[str, int, float, float | None]

@final
class Trajectory:
    index: int
    latent_steps: int
    text: str
    answer: str | None
    correct: bool | None
    tokens: list[int]
    thoughts: NDArray[np.float32]
    process_rewards: NDArray[np.float32] | None
    outcome_reward: float | None
    logprob: float | None
    signals: dict[str, float]
    lens: list[list[tuple[str, float]]]
    @property
    def number(self) -> int: ...

@final
class Candidate:
    index: int
    answer: str | None
    process_rewards: NDArray[np.float32] | None
    outcome_reward: float | None
    logprob: float | None

@final
class Reply:
    answer: str | None
    rule: str
    chosen: int | None
    confidence: float | None
    votes: list[_Vote]
    trajectories: list[Trajectory]
    greedy: Trajectory | None
    beam: Trajectory | None
    diversity: list[float]
    steps: int
    flops: float
    seconds: float

@final
class Engine:
    name: str
    reward_model: str | None
    probe: str | None
    family: str
    device: str
    width: int
    layers: int
    thoughts: str
    default_rule: str
    @staticmethod
    def load(
        name: str,
        reward_model: str,
        *,
        probe: str | PathLike[str] | None = None,
        base: str | None = None,
        family: str | None = None,
        device: str = "auto",
        dtype: str | None = None,
        threads: int | None = None,
        memory: int | None = None,
        deterministic: bool = False,
    ) -> Engine: ...
    def resolve(self, sampling: Mapping[str, Any]) -> dict[str, Any]: ...
    def without_reward_model(self) -> Engine: ...
    def notes(self, questions: Sequence[str]) -> list[str]: ...
    def sample(
        self,
        questions: Sequence[_QuestionInput],
        sampling: Mapping[str, Any],
        lens: int | None,
        progress: _Progress,
    ) -> list[Reply]: ...
    def decode(
        self,
        question: _QuestionInput,
        latents: Sequence[NDArray[np.float32]],
        sampling: Mapping[str, Any],
    ) -> Reply: ...
    def hidden_states(
        self,
        trajectory: tuple[str, NDArray[np.float32] | None, Sequence[int]],
        layers: Sequence[int],
        logits: bool,
    ) -> tuple[
        list[NDArray[np.float32]], NDArray[np.float32] | None, tuple[int, int, int, int]
    ]: ...
    def loglikelihoods(
        self, pairs: Sequence[tuple[str, str]], progress: _Progress
    ) -> list[tuple[float, bool]]: ...
    def records(
        self, evaluation: Evaluation, seed: int, questions: Sequence[_QuestionTuple]
    ) -> list[bytes]: ...

@final
class HttpScorer:
    """An HTTP endpoint that scores trajectories: ``scorer=HttpScorer(url)`` of ``evaluate``.

    A reward endpoint gets ``{"question", "answers"}`` and returns ``{"rewards"}``, or ``{"data"}``
    with an ``index`` and a ``score`` each. A URL that ends in ``/chat/completions`` is a language
    model that grades each answer from 0 to 10; it needs ``model``. ``timeout`` is in seconds, and
    ``concurrency`` is the number of requests to a chat endpoint that run at a time.
    """

    def __new__(
        cls,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        concurrency: int = 8,
    ) -> HttpScorer: ...

@final
class Evaluation:
    skipped: list[int]
    def __new__(
        cls, engine: Engine, arguments: Mapping[str, Any], sampling: Mapping[str, Any]
    ) -> Evaluation: ...
    def run(self, engine: Engine, progress: _Progress) -> Path: ...
    def open(self, engine: Engine) -> tuple[Path, int, int]: ...
    def missing(self) -> list[tuple[int, list[_QuestionTuple]]]: ...
    def add(self, record: bytes) -> None: ...
    def finish(self, engine: Engine) -> Path: ...

@final
class Annotation:
    skipped: list[int]
    def __new__(
        cls, engine: Engine, arguments: Mapping[str, Any], sampling: Mapping[str, Any]
    ) -> Annotation: ...
    def run(self, engine: Engine, progress: _Progress) -> Path: ...
    def open(self, engine: Engine) -> tuple[Path, str, list[int], int]: ...
    def questions_of(self, shard: int) -> list[_QuestionTuple]: ...
    def shard(
        self, engine: Engine, index: str, questions: Sequence[_QuestionTuple]
    ) -> bytes: ...
    def write(self, shard: int, bytes: bytes) -> None: ...

def aggregate(
    candidates: Mapping[str, Any], rule: str, options: Mapping[str, Any]
) -> int | None: ...
def sampling_fields() -> list[str]: ...
def run_command_line(argv: Sequence[str]) -> int: ...
def votes(candidates: Mapping[str, Any]) -> list[_Vote]: ...
def register_sampler(
    name: str,
    function: Callable[[NDArray[np.float32], NDArray[np.uint64]], Any],
) -> None: ...
def rules() -> list[str]: ...
def register_rule(
    name: str,
    function: Callable[[list[Candidate]], str | int | Candidate | None],
    label: str | None,
    describe: str,
    needs: Sequence[str],
) -> None: ...
def fetch(
    models: Sequence[str],
    base: str | None,
    data: str | None,
    progress: Callable[[str, int, int], object],
) -> None: ...
def check_reward_model(name: str) -> str: ...
def convert(
    inputs: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    base: str | None,
    lora_alpha: float | None,
    overwrite: bool,
) -> str: ...
def parse_questions(name: str, text: str, fields: _FieldTuple) -> list[_QuestionTuple]: ...
def read_questions(
    data: str, fields: _FieldTuple, limit: int | None, default_count: int
) -> list[_QuestionTuple]: ...
def run_json(path: str | PathLike[str]) -> tuple[str, str]: ...
def run_table(path: str | PathLike[str], width: int, all_rules: bool) -> str: ...
def rescore_run(path: str | PathLike[str], rules: Sequence[str]) -> None: ...
def write_report(
    paths: Sequence[str | PathLike[str]], out: str | PathLike[str]
) -> Path: ...
def run_columns(path: str | PathLike[str]) -> dict[str, Any]: ...
def run_figures(
    paths: Sequence[str | PathLike[str]], partial: bool
) -> list[tuple[str, str]]: ...
def training_figures(paths: Sequence[str | PathLike[str]]) -> list[tuple[str, str]]: ...
def annotation_columns(path: str | PathLike[str]) -> tuple[str, dict[str, Any]]: ...
def needs_rewards(metric: str) -> bool: ...
def sweep(
    engine: Engine,
    evaluation: Evaluation,
    arguments: Mapping[str, Any],
    evaluate: Callable[[Path, dict[str, Any]], object],
    note: Callable[[str], object],
) -> Path: ...
def ablate(
    engine: Engine, arguments: Mapping[str, Any], sampling: Mapping[str, Any]
) -> str: ...
def train_reasoner(
    arguments: Mapping[str, Any],
    examples: Sequence[tuple[str, list[str], str]] | None,
    held_out: Sequence[tuple[str, list[str], str]] | None,
    progress: Callable[[str], object] | None,
) -> str: ...
def train_reward(
    arguments: Mapping[str, Any], progress: Callable[[str], object] | None
) -> str: ...
def train_probe(
    engine: Engine,
    out: str,
    questions: Sequence[_QuestionTuple],
    sampling: Mapping[str, Any],
    options: str,
    overwrite: bool,
    progress: Callable[[str], object] | None,
) -> str: ...
def calibrate(
    runs: Sequence[str | PathLike[str]],
    measure: Sequence[str | PathLike[str]],
    signals: Sequence[str] | None,
) -> str: ...
def train_rl(
    arguments: Mapping[str, Any],
    questions: list[tuple[str, list[str], str]] | None,
    held_out: list[tuple[str, list[str], str]] | None,
    progress: Callable[[str], object] | None,
) -> str: ...
def training_options() -> tuple[str, str, str]: ...
