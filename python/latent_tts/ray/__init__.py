"""Ray: evaluations, annotations and sweeps over many processes and machines.

A driver opens the run directory or the annotations, sends questions to actors, and writes what comes
back in the order in which one process would have. On CPUs the samples and shards are those of one
process, byte for byte, whatever happens to the actors. See docs/cluster.md.

``python -m latent_tts.ray eval|annotate|sweep --help`` is the command.
"""

from __future__ import annotations

from ._jobs import Cluster, annotate, evaluate, sweep

__all__ = ["Cluster", "annotate", "evaluate", "sweep"]
