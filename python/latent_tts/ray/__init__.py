"""Evaluations, annotations and sweeps over many processes and machines with Ray.

A driver opens the run directory or the annotations, sends questions to actors, and writes their
results in the order of a single process. On CPUs the samples and shards are byte-identical to those
of a single process, even if actors fail. See docs/how-to/cluster.md.

The command is ``python -m latent_tts.ray eval|annotate|sweep``.
"""

from __future__ import annotations

from ._jobs import Cluster, annotate, evaluate, sweep

__all__ = ["Cluster", "annotate", "evaluate", "sweep"]
