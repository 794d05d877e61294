"""Reaching a Ray cluster, or starting one on this machine, and what is in it."""

import logging
import os
import shutil
import socket
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray

from sfsl.errors import InputError


@dataclass(frozen=True)
class ClusterSettings:
    """Says which cluster: the ``address`` of a running one; empty: that in RAY_ADDRESS, or one of our own,
    with ``memory_mb`` for data and messages under way, and ``cluster_cpus`` (0: those of this machine).

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


_REACH_SECONDS = 10.0
_REMOVE_SECONDS = 10.0
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


class Connection:
    """Connects to the cluster that the settings name, while it is open. One of our own ends with it.

    A program that is connected to Ray already keeps its connection.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._folder: Path | None = None
        self._ours = not ray.is_initialized()
        if not self._ours:
            return
        address = address_of(settings)
        # A worker's own environment says whether it may report home; ours do not unless someone wants it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about settings of ours that a later Ray will read otherwise
                if address:
                    require_reachable(address)
                    ray.init(address=address, **_QUIET)
                else:
                    self._folder = Path(tempfile.mkdtemp(prefix="sfsl-ray-"))
                    ray.init(
                        address="local",
                        num_cpus=settings.cluster_cpus or None,
                        include_dashboard=False,
                        object_store_memory=settings.memory_mb << 20,
                        _temp_dir=str(self._folder),
                        **_QUIET,
                    )
        except InputError:
            raise
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            self.close()
            if address == "auto" and isinstance(error, ConnectionError):
                raise InputError(
                    "no Ray cluster runs on this machine; start one with: ray start --head, or leave "
                    "ray.address empty for one of the run's own"
                ) from None
            where = f"reach a Ray cluster at {address}" if address else "start a Ray cluster on this machine"
            raise InputError(f"cannot {where}: {str(error).strip().partition(chr(10))[0]}") from None

    def close(self) -> None:
        if self._ours:
            ray.shutdown()
        deadline = time.monotonic() + _REMOVE_SECONDS
        while self._folder is not None and self._folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self._folder, ignore_errors=True)  # Ray's processes may write there to the last
            time.sleep(0.1)


def address_of(settings: ClusterSettings) -> str:
    """Return the address of a cluster; it is empty where there is none: a cluster of our own."""
    return settings.address or os.environ.get("RAY_ADDRESS", "")


def require_reachable(address: str) -> None:
    """Raise where nobody listens: Ray itself tries for minutes."""
    if address.startswith("ray://"):
        raise InputError(
            f"{address} is for Ray's client, through which messages would pass twice; start the run on a "
            'node of the cluster, with ray.address = "auto"'
        )
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    if host in ("localhost", "127.0.0.1"):  # so Ray understands it
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one with: ray start --head, and give its "
            "address as ray.address or RAY_ADDRESS"
        ) from None


def nodes() -> list[dict[str, float]]:
    """Return what each node has, whoever uses it."""
    return [one["Resources"] for one in ray.nodes() if one["Alive"]]  # type: ignore[no-untyped-call]


def total(kind: str) -> float:
    return sum(one.get(kind, 0.0) for one in nodes())


def room(cpus: int, gpus: float) -> int:
    """Return how many workers of this size the nodes have room for, if nobody else uses them."""
    return sum(
        min(int(one.get("CPU", 0.0) // cpus), int(one.get("GPU", 0.0) / gpus + 1e-9) if gpus else 1 << 30)
        for one in nodes()
    )


def gpus_for_each(settings: ClusterSettings, workers: int) -> float:
    """Return whole GPUs where there are enough, else shares; Ray counts them in ten-thousandths."""
    if settings.gpus != "auto":
        return settings.gpus
    return min(1.0, int(10_000 * total("GPU") / max(1, workers)) / 10_000)
