"""A Ray cluster for tests: a head and worker nodes, each a tree of processes of its own on loopback.

Nothing of it outlives the ``with`` block, and nothing is written outside of one temporary folder.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_AGENT_PORT = 52365  # Ray's dashboard_agent_http
_START_SECONDS = 180
_STORE = 100 << 20
_HOST = "127.0.0."


class Cluster:
    """The head has no CPUs, so that clients live on worker nodes only. Each node has an address of its own
    on loopback, which is how a driver tells the head's from the others."""

    def __init__(self, *cpus: int) -> None:
        """``cpus`` of each worker node."""
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets live in it
        self._started = 1  # of 127.0.0.1 Ray believes that it means the machine's address on its network
        self._port = _free_port()
        self.address = f"{_HOST}2:{self._port}"
        self._running: list[subprocess.Popen[bytes]] = []
        self.nodes: list[subprocess.Popen[bytes]] = []
        try:
            own = ["--head", f"--port={self._port}", "--num-cpus=0", "--include-dashboard=false"]
            own += [f"--temp-dir={self._folder}", f"--ray-client-server-port={_free_port()}"]
            self._await(self._start(own))
            for one in cpus:
                self.add_node(one)
        except BaseException:
            self.close()
            raise

    def add_node(self, cpus: int) -> subprocess.Popen[bytes]:
        """One after another: two that start at once may take each other's ports, and give up."""
        made = self._start([f"--address={self.address}", f"--num-cpus={cpus}"])
        self._await(made)
        self.nodes.append(made)
        return made

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """All of its processes at once, with no chance to say anything."""
        for process in [*_below(node.pid), node.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        node.wait(timeout=10)
        self.nodes.remove(node)

    def processes(self, node: subprocess.Popen[bytes]) -> list[int]:
        return _below(node.pid)

    def close(self) -> None:
        for node in reversed(self._running):
            for process in [*_below(node.pid), node.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            node.wait(timeout=10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, options: list[str]) -> subprocess.Popen[bytes]:
        self._started += 1
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus=0"]
        command += [f"--node-ip-address={_HOST}{self._started}", f"--object-store-memory={_STORE}", *options]
        environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        with open(self._log(self._started), "wb") as log:
            made = subprocess.Popen(  # noqa: S603
                command,
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append(made)
        return made

    def _log(self, number: int) -> Path:
        return self._folder / f"node-{number}.log"

    def _await(self, node: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        log = self._log(self._running.index(node) + 2)
        while "Ray runtime started" not in log.read_text():
            if time.monotonic() > deadline or node.poll() is not None:
                raise TimeoutError(f"a node did not start: {log.read_text()[-500:]}")
            time.sleep(0.1)


def _below(parent: int) -> list[int]:
    """All descendants, the farthest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found: list[int] = []

    def walk(process: int) -> None:
        for child in children.get(process, []):
            walk(child)
            found.append(child)

    walk(parent)
    return found


def _free_port() -> int:
    """Return a port that is free and is not the one that Ray gives its own agent, whoever asks for which."""
    while True:
        with socket.socket() as one:
            one.bind((f"{_HOST}2", 0))
            found = int(one.getsockname()[1])
        if found != _AGENT_PORT:
            return found
