"""What the engine wants of a cluster."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ClusterSettings:
    """``address`` of a running cluster; empty: the one in RAY_ADDRESS, or one of our own, with
    ``memory_mb`` for data and messages under way, and ``cluster_cpus`` (0: those of this machine).

    ``workers``: 0 takes as many as there is room and work for. ``threads`` of a training step in a worker
    (0: torch's choice) must be those of the local engine for the same last bits. ``gpus``: "auto" divides
    the cluster's among the workers. ``seconds``: a worker that takes longer for one exchange is lost.
    """

    address: str = ""
    workers: int = 0
    cpus: int = 1
    gpus: float | Literal["auto"] = "auto"
    threads: int = 1
    seconds: float = 600.0
    memory_mb: int = 500
    cluster_cpus: int = 0
