"""What a load test is made of: the server's process, clients that watch it, and the swarm's processes."""

import asyncio
import json
import multiprocessing
import os
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from sfsl.client.events import Backoff
from sfsl.client.link import Link, Over, trusted
from sfsl.client.participant import HOT
from sfsl.crypto.secret import Identity, SystemRandomness
from sfsl.rounds.exchanges import HotInvitation, Invitation
from sfsl.secagg import Client, Policy
from sfsl.service.messages import CODEC, CheckedIn, CheckIn, Decline, Enrol
from sfsl.service.signing import sign_request

PROBES = ("check-in", "healthz", "connect")
OWN = "own"
LOOK_SECONDS = 0.02
_GIVE_UP_SECONDS = 120.0  # for a process to start
_AT_ONCE = 50  # light clients of one process that arrive at a time
_ANY = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=2**32)


# -- the server's process ------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """Of a process so far: CPU seconds in all and of its first thread, which is the event loop's."""

    at: float
    cpu: float
    loop: float
    mib: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return cls(time.perf_counter(), _cpu(f"/proc/{pid}/stat"), _cpu(f"/proc/{pid}/task/{pid}/stat"), mib)


def _cpu(path: str) -> float:
    fields = Path(path).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Served:
    """One ``sfsl serve``."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, url: str) -> None:
        self.process, self.folder, self.url = process, folder, url
        self.ca = folder / "state/tls/authority.pem"

    def usage(self) -> Usage:
        return Usage.of(self.process.pid)

    @property
    def ended(self) -> int:
        """Rounds, the one that is held up among them."""
        path = self.folder / "state/metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def require_alive(self) -> None:
        if self.process.returncode is not None:
            raise RuntimeError(f"the server ended: {(self.folder / 'log.txt').read_text()[-2000:]}")


@asynccontextmanager
async def served(folder: Path, settings: str, cores: Sequence[int] = ()) -> AsyncIterator[Served]:
    """``cores``: those that its process may use; all of this one's where none are named."""
    folder.mkdir()
    (folder / "serve.toml").write_text(settings)
    command = [
        sys.executable,
        "-m",
        "sfsl",
        "serve",
        str(folder / "serve.toml"),
        "--out",
        str(folder / "state"),
    ]
    with open(folder / "log.txt", "w") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, preexec_fn=(lambda: only_on(cores)) if cores else None
        )
    try:
        made = Served(process, folder, "")
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            while "Join with:" not in (said := (folder / "log.txt").read_text()):
                made.require_alive()
                await asyncio.sleep(LOOK_SECONDS)
        made.url = said.partition("Serving at ")[2].split()[0]
        yield made
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def only_on(cores: Sequence[int]) -> None:
    """Keep this process, and what it starts from now on, to these cores."""
    os.sched_setaffinity(0, cores)


# -- clients of this process ---------------------------------------------------------------------


class Holder:
    """A client that checks in and lets its invitation lie; until ``release`` no other round begins. Sending
    the same check-in again gets the same answer, whatever became of it: that is the signed probe."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        source = SystemRandomness()
        self.link = Link(
            url, Identity.generate(source), tls=tls, randomness=source, backoff=Backoff(source, 0.1, 5.0)
        )
        self.body = b""
        self._ticket = b""
        self._round = b""

    async def check_in(self) -> None:
        about = await self.link.about()
        await self.link.enrol()
        sums = 1 if about.scheme == HOT else 2
        keys = Client(self.link.client, _ANY, SystemRandomness(), sums=sums).create_keys()
        self.body = CODEC.encode(CheckIn(bytes.fromhex(about.model), keys))
        self._ticket = (await self.link.check_in(self.body)).ticket

    async def hold(self) -> None:
        got = await self.link.next(self._ticket, 0, limit=1 << 20)
        if not isinstance(got, Invitation | HotInvitation):
            raise RuntimeError(f"the round could not be held up: {got}")
        self._round = got.roster.params.round_id

    async def release(self) -> Over | None:
        return await self.link.answer(self._ticket, 1, CODEC.encode(Decline(self._round)))


@dataclass
class Asked:
    kind: str
    at: float
    took: float | None = None
    failed: bool = False


class Probe:
    """Asks at fixed times, so that a server that is stuck is seen by all who would have come meanwhile.
    ``own``: how late this process was itself, which is in the others."""

    def __init__(self, holder: Holder, url: str, tls: ssl.SSLContext, every_seconds: float) -> None:
        self._holder, self._tls, self._every_seconds = holder, tls, every_seconds
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._health = f"{url}/healthz"
        self._http = httpx.AsyncClient(verify=tls, trust_env=False, timeout=None)  # noqa: S113
        self._asked: list[Asked] = []
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "check-in": self._check_in,
            "healthz": self._healthz,
            "connect": self._connect,
        }
        due = time.perf_counter()
        try:
            while True:
                for kind, way in ways.items():
                    task = asyncio.create_task(self._ask(kind, way))
                    self._open.add(task)
                    task.add_done_callback(self._open.discard)
                due += self._every_seconds
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                self._asked.append(Asked(OWN, due, time.perf_counter() - due))
        finally:
            for task in tuple(self._open):
                task.cancel()
            await self._http.aclose()

    async def _ask(self, kind: str, way: Callable[[], Awaitable[None]]) -> None:
        one = Asked(kind, time.perf_counter())
        self._asked.append(one)
        try:
            await way()
        except (OSError, httpx.HTTPError):
            one.failed = True
        one.took = time.perf_counter() - one.at

    async def _check_in(self) -> None:
        await self._holder.link.check_in(self._holder.body)

    async def _healthz(self) -> None:
        (await self._http.get(self._health)).raise_for_status()

    async def _connect(self) -> None:
        _, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        writer.close()

    def seen(self, since: float, until: float) -> dict[str, Any]:
        """Seconds by kind. Whoever still waits has waited until now at the least."""
        now, found = time.perf_counter(), {}
        for kind in (*PROBES, OWN):
            some = [one for one in self._asked if one.kind == kind and since <= one.at < until]
            took = [now - one.at if one.took is None else one.took for one in some]
            if took:
                p50, p99 = (float(value) for value in np.percentile(took, [50, 99]))
                failed = sum(one.failed for one in some)
                found[kind] = {"asked": len(took), "p50": p50, "p99": p99, "max": max(took), "failed": failed}
        return found


# -- the swarm's processes -----------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """``light``: clients that only wait, over bare sockets, so that many fit beside the server."""

    url: str
    ca: Path
    names: Sequence[str]
    light: bool = False


@dataclass
class Played:
    """What clients of one process met. ``computed``: CPU seconds of their answers by round and exchange.
    ``seconds``: how long requests took, by endpoint; of one that waited for nothing, beyond the wait."""

    errors: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    computed: dict[int, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def took(self, endpoint: str, seconds: Iterable[float]) -> None:
        self.seconds.setdefault(endpoint, []).extend(seconds)


class Waiter:
    """A client that enrols, checks in and waits, over one bare connection. What it costs this machine is a
    fraction of what a whole client does, and to the server it is the same."""

    def __init__(self, url: str, tls: ssl.SSLContext, poll_seconds: float, played: Played) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port
        self._tls, self._poll_seconds, self._played = tls, poll_seconds, played
        self._source = SystemRandomness()
        self._identity = Identity.generate(self._source)
        self._about: dict[str, Any] = {}
        self._ahead = 0.0

    async def run(self, came: Callable[[], None], room: asyncio.Semaphore) -> None:
        async with room:  # so many arrive at a time
            start = time.perf_counter()
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            self._played.took("connect", [time.perf_counter() - start])
            self._about = json.loads(await self._ask("about", "GET", "/v1/about"))
            self._ahead = self._about["time"] / 1000 - time.monotonic()
            public = CODEC.encode(Enrol(self._identity.public))
            client = json.loads(await self._ask("enrol", "POST", "/v1/enrol", public))["client"]
            sums = 1 if self._about["scheme"] == HOT else 2
            keys = Client(client, _ANY, self._source, sums=sums).create_keys()
            body = CODEC.encode(CheckIn(bytes.fromhex(self._about["model"]), keys))
            checked = CODEC.decode(await self._ask("check-in", "POST", "/v1/check-in", body), limit=1 << 16)
            if not isinstance(checked, CheckedIn):
                raise RuntimeError(f"{type(checked).__name__} in answer to a check-in")
            came()
        while True:
            await self._ask("next", "GET", f"/v1/next/{checked.ticket.hex()}?after=0")

    async def _ask(self, endpoint: str, method: str, target: str, body: bytes = b"") -> bytes:
        reader, writer = self._streams
        start = time.perf_counter()
        headers = {"Host": self._host, "Content-Length": str(len(body))}
        if self._about:
            headers |= sign_request(
                self._identity,
                deployment=bytes.fromhex(self._about["deployment"]),
                host=self._host,
                method=method,
                target=target,
                body=body,
                now_ms=round(1000 * (self._ahead + time.monotonic())),
                randomness=self._source,
            )
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status, length = int(head.split()[1]), head.partition("content-length:")[2].split()
        content = await reader.readexactly(int(length[0])) if length else b""
        waited = self._poll_seconds if endpoint == "next" and status == 204 else 0.0
        self._played.took(endpoint, [max(0.0, time.perf_counter() - start - waited)])
        if status not in (200, 204):
            self._played.errors[f"{endpoint}: {status}"] += 1
            raise RuntimeError(f"{endpoint} was answered with {status}: {content[:200]!r}")
        return content


def play(pipe: Connection, settings: Path) -> None:
    """A process of the swarm: does what it is told until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        asyncio.run(_play(pipe, settings))


async def _play(pipe: Connection, path: Path) -> None:
    import torch

    from sfsl.client.events import Event
    from sfsl.client.round import ClientModel
    from sfsl.crypto.secret import digest
    from sfsl.models.package import describe, package_digest
    from sfsl.run.fleet import build_fleet, client_privacy
    from sfsl.settings.serve import from_all_sections
    from sfsl.settings.toml import read_sections
    from sfsl.simulate.chance import Chance
    from sfsl.training import LocalSettings
    from sfsl_research.swarm.swarm import Swarm, SwarmSettings

    torch.set_num_threads(1)
    both = from_all_sections(read_sections(path))
    config, serve = both.run, both.serve
    fleet = build_fleet(config)
    task, users, training = fleet.task, sorted(fleet.devices), config.training
    model = ClientModel(package_digest(describe(task)), task.spec, task.row_maps)
    local = LocalSettings(
        training.batch_size, training.epochs, training.learning_rate, training.decay, training.clip
    )
    row_seed = digest("seed of a run", str(config.run.seed).encode())
    swarms: list[tuple[Swarm, asyncio.Task[Any]]] = []
    waiters: list[asyncio.Task[None]] = []
    lightly = Played()

    def wait(wanted: Join, poll_seconds: float) -> None:
        start, tls, took = time.perf_counter(), trusted(wanted.ca), list[float]()
        room, missing = asyncio.Semaphore(_AT_ONCE), len(wanted.names)

        def heard_of() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                pipe.send(took)

        async def arrive(waiter: Waiter) -> None:
            arrived = False

            def came() -> None:
                nonlocal arrived
                arrived = True
                took.append(time.perf_counter() - start)
                heard_of()

            try:
                await waiter.run(came, room)
            finally:
                if not arrived:  # it was refused, and nobody is to wait for it
                    heard_of()

        for _ in wanted.names:
            waiter = Waiter(wanted.url, tls, poll_seconds, lightly)
            waiters.append(asyncio.create_task(arrive(waiter)))

    def join(wanted: Join) -> None:
        start, took = time.perf_counter(), dict.fromkeys(wanted.names, 0.0)
        missing = set(wanted.names)

        def seen(name: str, event: Event) -> None:
            if event.kind == "checked-in" and name in missing:
                missing.remove(name)
                took[name] = time.perf_counter() - start
                if not missing:
                    pipe.send(list(took.values()))

        devices = {name: fleet.devices[users[int(name) % len(users)]] for name in wanted.names}
        swarm = Swarm(
            wanted.url,
            model,
            devices,
            {name: Identity.generate(SystemRandomness()) for name in wanted.names},
            client_privacy(config, wanted.names),
            Chance(task, devices, config.run.seed),
            SwarmSettings(rounds=None, every=0, row_seed=row_seed, local=local),
            tls=trusted(wanted.ca),
            seen=seen,
        )
        swarms.append((swarm, asyncio.create_task(swarm.run())))

    async def leave() -> Played:
        nonlocal lightly
        played, lightly = lightly, Played()
        for waiter in waiters:
            waiter.cancel()
        for ended in await asyncio.gather(*waiters, return_exceptions=True):
            if isinstance(ended, Exception):
                played.failed[str(len(played.failed))] = repr(ended)[:200]
        waiters.clear()
        for swarm, running in swarms:
            running.cancel()
            await asyncio.wait([running])
            report = swarm.report
            played.errors += report.errors
            played.failed |= report.failed
            played.outcomes += report.attempts
            for endpoint, seconds in report.traffic.seconds.items():
                played.took(endpoint, seconds)
            played.computed |= {
                number: [one.all for one in steps[:-1]] for number, steps in report.work.items()
            }
        swarms.clear()
        return played

    pipe.send("ready")
    while True:
        while not pipe.poll():
            await asyncio.sleep(LOOK_SECONDS)
        match pipe.recv():
            case Join(light=True) as wanted:
                wait(wanted, serve.poll_seconds)
            case Join() as wanted:
                join(wanted)
            case _:
                pipe.send(await leave())


class Swarming:
    """The swarm's processes: an equal part of the clients in each."""

    def __init__(self, count: int, settings: Path) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=play, args=(theirs, settings), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    async def ready(self) -> None:
        await self._told(self._pipes)

    async def join(self, server: Served, names: Sequence[str], *, light: bool = False) -> list[float]:
        """Until all have checked in; how long each took."""
        parts = [(pipe, names[place :: len(self._pipes)]) for place, pipe in enumerate(self._pipes)]
        busy = [(pipe, part) for pipe, part in parts if part]
        for pipe, part in busy:
            pipe.send(Join(server.url, server.ca, part, light))
        return [one for some in await self._told([pipe for pipe, _ in busy], server) for one in some]

    async def leave(self) -> list[Played]:
        for pipe in self._pipes:
            pipe.send(None)
        # A process that was told to join says so once more, if the last one to check in comes just now.
        return [one for one in await self._told(self._pipes, skip=list) if isinstance(one, Played)]

    def cpu(self) -> list[float]:
        return [_cpu(f"/proc/{process.pid}/stat") for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    async def _told(
        self, pipes: Iterable[Connection], server: Served | None = None, skip: type | None = None
    ) -> list[Any]:
        """One thing from each."""
        found = []
        for pipe in pipes:
            while True:
                while not pipe.poll():
                    if server is not None:
                        server.require_alive()
                    await asyncio.sleep(LOOK_SECONDS)
                got = pipe.recv()
                if skip is None or not isinstance(got, skip):
                    found.append(got)
                    break
        return found
