"""Parallel test-time scaling for latent reasoning models.

A latent reasoner reasons in hidden states. This package samples N trajectories of such thoughts,
scores them with a latent reward model, and aggregates them into one answer. The engine is written
in Rust; the package includes a small reasoner and its reward model.

>>> import latent_tts
>>> reasoner = latent_tts.Reasoner.from_pretrained("embedded", device="cpu")
>>> solution = reasoner.solve(
...     "Olivia has 12 pens. Olivia buys 7 more pens. Olivia gives away 4 pens. "
...     "How many pens does Olivia have?", samples=8)
>>> solution.answer
'15'
"""

import logging
from importlib.metadata import version

from ._ablation import ablate
from ._annotations import Annotations
from ._convert import convert
from ._core import (
    DataError,
    DeviceError,
    EngineError,
    HttpScorer,
    LatentTTSError,
    ModelError,
    RunError,
)
from ._figures import Figure
from ._options import Sampling
from ._questions import Question, read_questions
from ._reasoner import Reasoner, RewardModel, Scorer
from ._run import RunDirectory, Sweep
from ._samplers import SamplerFunction, register_sampler
from ._selection import calibrate
from ._training import (
    Training,
    TrainingExample,
    train_reasoner,
    train_reward,
    train_rl,
    training_options,
)
from ._trajectories import HiddenStates, Solution, Trajectories, Trajectory
from ._voting import RULES, Candidate, RuleFunction, Vote, aggregate, register_rule, votes

__version__ = version("latent-tts")

__all__ = [
    "RULES",
    "Annotations",
    "Candidate",
    "DataError",
    "DeviceError",
    "EngineError",
    "Figure",
    "HiddenStates",
    "HttpScorer",
    "LatentTTSError",
    "ModelError",
    "Question",
    "Reasoner",
    "RewardModel",
    "RuleFunction",
    "RunDirectory",
    "RunError",
    "SamplerFunction",
    "Sampling",
    "Scorer",
    "Solution",
    "Sweep",
    "Training",
    "TrainingExample",
    "Trajectories",
    "Trajectory",
    "Vote",
    "ablate",
    "aggregate",
    "calibrate",
    "convert",
    "read_questions",
    "register_rule",
    "register_sampler",
    "train_reasoner",
    "train_reward",
    "train_rl",
    "training_options",
    "votes",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
