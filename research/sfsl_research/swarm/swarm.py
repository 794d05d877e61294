"""Many real clients from one process, for load and chaos tests of a deployment.

Each has its own identity, keys and connections, and speaks over real sockets. What a device does by
chance follows from a seed, so that a round can be compared with the local engine's; so do its answers,
which have no durable ledger here: a swarm is made of simulated devices, never of people.
"""

import asyncio
import math
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import httpx
import numpy as np

from sfsl.client.device import Device, DeviceTrainer
from sfsl.client.events import Backoff, Event
from sfsl.client.following import fetch_model
from sfsl.client.home import PersonalRows
from sfsl.client.link import Link
from sfsl.client.participant import Attempt, Participant, Settings, Work
from sfsl.client.round import ClientModel, Memory
from sfsl.crypto.secret import Identity, SystemRandomness
from sfsl.errors import AuthenticationFailed, SfslError
from sfsl.privacy import IndexPrivacy
from sfsl.rounds.exchanges import HOT, SUBMODELS
from sfsl.service.signing import client_id
from sfsl.simulate.chance import Chance
from sfsl.training import LocalSettings
from sfsl_research.swarm.faults import FaultyTransport, NetworkFaults, Traffic, Vanished
from sfsl_research.swarm.members import TOLERANT, SimulatedMemory

# Which exchanges a round had, by how many they were.
_ORDERS = {len(order): order for kind in (SUBMODELS, HOT) for order in map(kind.order, (False, True))}
_ID = re.compile("[0-9a-f]{32}")  # in a text that is to be counted


@dataclass(frozen=True)
class SwarmSettings:
    """``rounds``: after so many have ended, everyone stops; None: when cancelled. ``every``: rounds after
    which permanent answers are drawn anew; 0: never. ``row_seed`` makes personal rows begin as a store
    with that seed has them."""

    rounds: int | None
    every: int
    row_seed: bytes
    local: LocalSettings
    faults: NetworkFaults = field(default_factory=NetworkFaults)
    pause_s: float = 0.2
    longest_pause_s: float = 5.0
    workers: int = 2


@dataclass
class Exchange:
    """What one exchange took. ``at``: when the first client had its message. ``slowest``: the most CPU
    seconds that a client's answer took; ``all``: those of all clients together."""

    at: float = math.inf
    slowest: float = 0.0
    all: float = 0.0

    def add(self, work: Work) -> None:
        self.at = min(self.at, work.at)
        self.slowest = max(self.slowest, work.seconds)
        self.all += work.seconds


@dataclass
class SwarmReport:
    """``ended``: rounds by number and how they ended. ``attempts``: check-ins by how they ended.
    ``errors``: what clients met and said, by kind. ``failed``: clients that had to give up, and why.
    ``whole``: committed rounds that a client went through. ``work``: committed rounds by number, their
    exchanges in order and then their end. ``vanished``: when a client went away by plan. ``paused``: from
    when until when it paused after a round that it did not go through."""

    ended: dict[int, str] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    whole: Counter[str] = field(default_factory=Counter)
    work: dict[int, list[Exchange]] = field(default_factory=dict)
    vanished: dict[str, list[float]] = field(default_factory=dict)
    paused: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def note_work(self, attempt: Attempt, now: float) -> None:
        """Of a client that went through a committed round."""
        steps = (*attempt.work, Work(now, 0.0))
        known = self.work.setdefault(attempt.round or 0, [Exchange() for _ in steps])
        for exchange, work in zip(known, steps, strict=True):
            exchange.add(work)

    def exchanges(self) -> dict[str, dict[str, float]]:
        """Seconds of a committed round by exchange, means over rounds: until the next message is there, the
        slowest client's own computing, the difference, which is the protocol's and the machine's, and what
        all clients computed together."""
        found: dict[str, list[tuple[float, float, float]]] = {}
        for steps in self.work.values():
            names = _ORDERS[len(steps) - 1]
            for name, (one, after) in zip(names, pairwise(steps), strict=True):
                found.setdefault(name, []).append((after.at - one.at, one.slowest, one.all))
        means = {name: [float(one) for one in np.mean(some, axis=0)] for name, some in found.items()}
        return {
            name: {"wall": wall, "slowest": slowest, "overhead": wall - slowest, "all": all_}
            for name, (wall, slowest, all_) in means.items()
        }

    def latencies(self) -> dict[str, dict[str, float]]:
        """Seconds by kind of request: how many, and percentiles."""
        return {
            kind: {"requests": len(taken)}
            | dict(zip(("p50", "p95", "p99"), map(float, np.percentile(taken, [50, 95, 99])), strict=True))
            for kind, taken in sorted(self.traffic.seconds.items())
        }


class Swarm:
    """``devices`` by name; ``identities`` and ``privacy`` under the same names. ``memories`` gives each its
    own, such as a durable one; else they are simulated."""

    def __init__(
        self,
        server: str,
        model: ClientModel,
        devices: Mapping[str, Device],
        identities: Mapping[str, Identity],
        privacy: Mapping[str, IndexPrivacy],
        chance: Chance,
        settings: SwarmSettings,
        *,
        tls: ssl.SSLContext | None = None,
        plain: bool = False,
        network: Callable[[], httpx.AsyncBaseTransport] | None = None,
        seen: Callable[[str, Event], None] = lambda name, event: None,
        memories: Callable[[str], Memory] | None = None,
    ) -> None:
        self._server, self._plain, self._tls = server, plain, tls
        self._model, self._devices, self._identities, self._privacy = model, devices, identities, privacy
        self._chance, self._settings = chance, settings
        self._network = network or self._sockets
        self._seen = seen
        self._memories = memories or self._simulated
        self._randomness = SystemRandomness()
        # In active mode a cohort is of this swarm alone: it knows nobody else's key.
        self._roster = {client_id(one.public): one.public for one in identities.values()}
        self.report = SwarmReport()

    async def run(self) -> SwarmReport:
        """Until the rounds are done, or all clients gave up, or this is cancelled."""
        self._done = asyncio.Event()
        # Calls of one module replace its weights for their time: training is for one thread.
        with ThreadPoolExecutor(self._settings.workers) as workers, ThreadPoolExecutor(1) as training:
            members = [
                asyncio.create_task(self._member(name, workers, training)) for name in self._identities
            ]
            over = [asyncio.create_task(one) for one in (self._done.wait(), _all(members))]
            try:
                await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*members, *over):
                    task.cancel()
                await asyncio.wait([*members, *over])
        for task in members:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return self.report

    async def _member(self, name: str, workers: Executor, training: Executor) -> None:
        """One client's life: a failure of its own stops it, and no other."""
        transport = FaultyTransport(self._network(), name, self._settings.faults, self.report.traffic)

        def notify(event: Event) -> None:
            if event.kind == "offline":
                self.report.errors[_ID.sub("…", event.text.split(";")[0])] += 1
            self._seen(name, event)

        async with Link(
            self._server,
            self._identities[name],
            tls=self._tls,
            plain=self._plain,
            backoff=Backoff(self._randomness, first=0.1, longest=5.0),
            randomness=self._randomness,
            transport=transport,
            notify=notify,
        ) as link:
            settings, device, memory = self._settings, self._devices[name], self._memories(name)
            participant = Participant(
                link=link,
                model=self._model,
                memory=memory,
                trainer=DeviceTrainer(
                    device, lambda number: self._chance.shuffle(name, number), settings.local
                ),
                personal=PersonalRows(self._model.spec, settings.row_seed),
                policy=TOLERANT,
                randomness=self._randomness,
                settings=Settings(pause_s=settings.pause_s, longest_pause_s=settings.longest_pause_s),
                notify=notify,
                identity=self._identities[name],
                purse=memory if isinstance(memory, SimulatedMemory) else None,
                worker=workers,
                training=training,
            )
            try:
                await self._take_part(name, participant)
            except SfslError as error:
                self.report.failed[name] = f"{type(error).__name__}: {error}"

    async def _take_part(self, name: str, participant: Participant) -> None:
        enrolled, idle, strange = False, 0, 0
        pause = Backoff(self._randomness, self._settings.pause_s, self._settings.longest_pause_s)
        while True:
            try:
                if not enrolled:
                    about = await participant.link.about()
                    participant.pinned = self._roster if about.active else None
                    if about.catalogue is not None:  # what rows are called is bound into the masks
                        named = (await fetch_model(participant.link, about)).client_model.names
                        participant.model = replace(participant.model, names=named)
                    await participant.enrol()
                    enrolled = True
                attempt = await participant.take_part()
            except Vanished:
                self.report.attempts["vanished"] += 1
                self.report.vanished.setdefault(name, []).append(time.time())
                continue
            except AuthenticationFailed:
                strange += 1
                if strange > 1:
                    raise
                enrolled = False
                continue
            self._note(name, attempt)
            strange = 0
            idle = 0 if attempt.whole else idle + 1
            if idle:
                delay, now = pause.delay(idle - 1), time.time()
                self.report.paused.setdefault(name, []).append((now, now + delay))
                await asyncio.sleep(delay)

    def _note(self, name: str, attempt: Attempt) -> None:
        report, wanted = self.report, self._settings.rounds
        report.attempts[attempt.outcome] += 1
        if attempt.outcome == "declined":
            report.declined[attempt.why] += 1
        if attempt.whole and attempt.outcome == "committed":
            report.whole[name] += 1
            report.note_work(attempt, time.perf_counter())
        if attempt.round is not None and attempt.outcome in ("committed", "aborted"):
            report.ended[attempt.round] = attempt.outcome
        if wanted is not None and len(report.ended) >= wanted:
            self._done.set()

    def _simulated(self, name: str) -> Memory:
        needed = self._devices[name].needed
        own = {table: needed[table] for table in self._model.tables.shared}
        return SimulatedMemory(self._chance, name, self._privacy[name], self._settings.every, own)

    def _sockets(self) -> httpx.AsyncBaseTransport:
        if self._tls is None:
            return httpx.AsyncHTTPTransport(trust_env=False)
        return httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False)


async def _all(tasks: Sequence[asyncio.Task[None]]) -> bool:
    """Until every one has ended, or one with an error that nobody foresaw."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    return True
