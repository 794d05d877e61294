"""Two small masked rounds on each carrier, started as a user starts them: by its command, or by its app.

Server and clients share this process, so that one hook sees both; on Ray the workers are processes of their
own, which write down what they see.
"""

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from sfsl.errors import InputError, SfslError
from sfsl.submodel import LmdbStore, MemoryStore
from sfsl_research.trace.calls import Calls, Recorder, hooked, second_round

CLIENTS, ROUNDS = 6, 2
_ITEMS = 80
_START_SECONDS = 120.0
# A folder in which processes that this one starts write what they saw, and whether the round is on.
FOLDER, ON = "SFSL_TRACE", "on"


def trace(carrier: str, folder: Path) -> Calls:
    """The second round of ``carrier``, with all its files in ``folder``, which is empty."""
    if carrier not in CARRIERS:
        raise InputError(f"no carrier {carrier!r}; there are {', '.join(CARRIERS)}")
    import torch

    torch.set_num_threads(1)
    recorder = Recorder()
    watched = second_round(recorder, [LmdbStore, MemoryStore], _marked(folder))
    with redirect_stdout(io.StringIO()), hooked(recorder), watched:
        CARRIERS[carrier](folder)
    for path in folder.glob("worker-*.json"):
        files, edges = json.loads(path.read_bytes())
        recorder.calls.files.update(files)
        recorder.calls.edges.update({(one, other): count for one, other, count in edges})
    if not recorder.calls.edges:
        raise InputError(f"no round of {carrier} was committed here; see what it printed")
    return recorder.calls


def _marked(folder: Path) -> Callable[[bool], None]:
    def mark(on: bool) -> None:
        (folder / ON).touch() if on else (folder / ON).unlink(missing_ok=True)

    return mark


def _run(folder: Path, *more: str) -> None:
    _sfsl(
        "run", "--out", str(folder / "run"), "--clients", str(CLIENTS), "--rounds", str(ROUNDS),
        "--privacy", "cpp2", "--set", "data.users=12", "--set", "data.scale=0.03",
        "--set", "run.evaluate_every=0", "--json", *more,
    )  # fmt: skip


def _ray(folder: Path) -> None:
    with _recording_workers(folder):
        _run(folder, "--set", "run.engine=ray", "--set", "ray.workers=1")


def _https(folder: Path) -> None:
    """``sfsl serve`` in this thread, and ``sfsl join`` in one thread for each client."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "serve.toml"
    config.write_text(
        "[data]\nusers = 12\nscale = 0.03\n"
        f'[round]\nscheme = "sfsl"\nclients = {CLIENTS}\nmin_contributors = 2\n'
        f'[serve]\nhost = "127.0.0.1"\nport = {port}\nstate = "{folder / "server"}"\nrounds = {ROUNDS}\n'
        f'min_cohort = {CLIENTS}\nlargest_set = 300\nenrolment = "open"\nperiod_days = 0\n'
    )
    joining = [threading.Thread(target=_join, args=(folder, port, place)) for place in range(CLIENTS)]
    for one in joining:
        one.start()
    _sfsl("serve", str(config))
    for one in joining:
        one.join()


def _join(folder: Path, port: int, place: int) -> None:
    rng, data = np.random.default_rng(place), folder / f"{place}.csv"
    lines = [f"{rng.integers(_ITEMS)},{rng.integers(2)},{moment}" for moment in range(30)]
    data.write_text("\n".join(["item,label,time", *lines]))
    deadline = time.monotonic() + _START_SECONDS
    while not _listens(port) and time.monotonic() < deadline:
        time.sleep(0.1)
    _sfsl(
        "join", "--server", f"https://127.0.0.1:{port}", "--ca", str(folder / "server/tls/authority.pem"),
        "--data", str(data), "--state", str(folder / f"client-{place}"),
        "--exposures", str(ROUNDS), "--rounds", str(ROUNDS), "--exact-sums", "--json",
        "--least-cohort", str(CLIENTS), "--least-contributors", "2",
    )  # fmt: skip


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _sfsl(*words: str) -> None:
    from sfsl.cli import app

    try:
        app(list(words), standalone_mode=False)
    except SfslError as error:
        raise InputError(f"sfsl {words[0]} failed: {error}") from error


def _flower(folder: Path) -> None:
    from sfsl_research.trace.federation import run_federation

    run_federation(folder, CLIENTS, ROUNDS)


CARRIERS: dict[str, Callable[[Path], None]] = {
    "local": _run,
    "https": _https,
    "flower": _flower,
    "ray": _ray,
}


# -- processes of their own --------------------------------------------------------------------------


@contextmanager
def _recording_workers(folder: Path) -> Iterator[None]:
    """Every worker that Ray starts calls ``record_worker`` first."""
    import ray

    start = ray.init
    environment = {
        "worker_process_setup_hook": f"{__name__}.record_worker",
        "env_vars": {FOLDER: str(folder)},
    }

    def init(**given: Any) -> Any:
        return start(**given, runtime_env=environment)

    with patch.object(ray, "init", init):
        yield


class _WorkerRecorder(Recorder):
    """Counts while the driver's mark is there, and writes down at once: Ray's workers end without a word."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._mark, self._path = str(folder / ON), folder / f"worker-{os.getpid()}.json"
        self._known = 0

    def hook(self, frame: Any, event: str, given: Any) -> None:
        self.counting = event == "call" and os.path.exists(self._mark)
        super().hook(frame, event, given)
        seen = len(self.calls.files) + len(self.calls.edges)
        if seen > self._known:
            self._known = seen
            edges = [[*edge, count] for edge, count in self.calls.edges.items()]
            self._path.write_text(json.dumps([self.calls.files, edges]))


def record_worker() -> None:
    """In a process that Ray has just started: it is seen to its end."""
    import sys

    recorder = _WorkerRecorder(Path(os.environ[FOLDER]))
    threading.setprofile(recorder.hook)
    sys.setprofile(recorder.hook)
