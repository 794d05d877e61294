"""Rounds of a simulated fleet in this process: real state machines, encoded messages, measured costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from sfsl.codec import Message
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.secret import Secret
from sfsl.engines.device import Device, SimulatedAnswers
from sfsl.engines.faults import FaultPlan
from sfsl.errors import Aborted, Declined, NotFinite, Refused
from sfsl.privacy import IndexPrivacy, Perturber, Tables
from sfsl.rounds import (
    Download,
    IndexSpace,
    RoundClient,
    RoundOutcome,
    RoundParams,
    RoundPolicy,
    RoundServer,
)
from sfsl.rounds.messages import CODEC, Submodel
from sfsl.secagg import Client, Policy, SessionParams, default_threshold
from sfsl.secagg.messages import Keys
from sfsl.secagg.meter import Meter
from sfsl.submodel import Commit, RowBlock, RowSet, RowStore, UpdateParams
from sfsl.training import ClientWork, LocalSettings, LocalUpdate, train_cohort
from sfsl.training.task import Task, Values
from sfsl.union import UnionParams, choose, planned_capacity

MESSAGE_LIMIT = 1 << 30
# A simulated client accepts what this process offers it; a deployed one has a policy of its own.
_GENEROUS = 2**32


@dataclass(frozen=True)
class RoundSettings:
    """What stays the same from round to round. ``privacy`` is each client's own choice."""

    update: UpdateParams
    local: LocalSettings
    privacy: Mapping[str, IndexPrivacy]
    min_contributors: int
    threshold: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    faults: FaultPlan = field(default_factory=FaultPlan)


@dataclass
class RoundReport:
    """What one round did and cost. ``aborted`` says why it did nothing, where it did nothing.

    ``commit`` is for the caller to make, also after an abort, where it only counts the round: a round is
    never repeated.
    Costs by exchange: bytes up and down and CPU seconds (without training) per client that answered, and
    the server's CPU seconds. ``training_seconds`` is wall time of the whole cohort.
    """

    number: int
    cohort: int
    commit: Commit
    aborted: str | None = None
    outcome: RoundOutcome | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    declined: dict[str, int] = field(default_factory=dict)
    diverged: int = 0
    samples: int = 0
    loss: float = float("nan")
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)
    client_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0


class LocalEngine:
    """Runs rounds of ``devices`` against one store, which keeps their personal rows too and is only read.

    ``randomness`` makes keys, masks and noise; ``seed`` makes what training shuffles. ``keys`` are those of
    the devices' permanent answers, where they must outlast this process.
    """

    def __init__(
        self,
        task: Task,
        devices: Mapping[str, Device],
        store: RowStore,
        settings: RoundSettings,
        randomness: Randomness,
        *,
        seed: int,
        keys: Mapping[str, Secret] | None = None,
    ) -> None:
        self.task = task
        self.devices = devices
        self.store = store
        self.settings = settings
        self._randomness = randomness
        self._seed = seed
        self._space = IndexSpace(task.spec)
        self._places = {name: place for place, name in enumerate(sorted(devices))}
        self._tables = Tables(shared=self._of("shared"), personal=self._of("personal"))
        self._keys = dict(keys or {})

    def run(self, cohort: Sequence[str]) -> RoundReport:
        """One round, up to the commit; or an abort, whose commit leaves the model as it is."""
        number = self.store.round + 1
        report = RoundReport(number, len(cohort), Commit(number, selection=self.store.selection))
        try:
            running = _Running(self, cohort, report)
            outcome = running.exchanges()
        except Aborted as reason:
            report.aborted = str(reason)
            return report
        report.commit = self._with_personal(outcome.applied.commit, running.learned)
        report.outcome = outcome
        return report

    def params(self, number: int, cohort: Sequence[str]) -> tuple[RoundParams, SessionParams]:
        settings, shared = self.settings, self._tables.shared
        sizes = (sum(len(self.devices[name].needed[table]) for table in shared) for name in cohort)
        capacity = planned_capacity(self._space.domain, len(cohort), max(1, *sizes))
        seed = self._randomness.bytes(32)
        chosen = choose(settings.encoding, self._space.domain, capacity, seed)
        union = UnionParams(
            domain=self._space.domain,
            encoding=chosen.name,  # type: ignore[arg-type]
            capacity=capacity,
            seed=seed,
        )
        params = RoundParams(
            number=number,
            model=self.task.spec,
            union=union,
            update=settings.update,
            min_contributors=settings.min_contributors,
            training={"rate": settings.local.rate(number - 1)},
            precision=settings.precision,
            bins=settings.bins,
        )
        session = SessionParams(
            round_id=self._randomness.bytes(16),
            clients=len(cohort),
            threshold=settings.threshold or default_threshold(len(cohort)),
            neighbours=None,
            active=False,
            sums=params.sums(),
        )
        return params, session

    def client(self, name: str) -> RoundClient:
        session_policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=_GENEROUS)
        policy = RoundPolicy(session=session_policy, max_clip=_GENEROUS, max_rows=_GENEROUS)
        session = Client(name, session_policy, self._randomness, sums=2)
        key = self._keys.setdefault(name, Secret(self._randomness.bytes(32)))
        real = {table: self.devices[name].needed[table] for table in self._tables.shared}
        answers = SimulatedAnswers(Perturber(key, self.settings.privacy[name], self._tables, real))
        return RoundClient(session, answers, self.task.spec, self.task.row_maps, policy, self._randomness)

    def personal(self, name: str) -> dict[str, Values]:
        needed = self.devices[name].needed
        return {
            table: self.store.read_rows(table, RowSet(needed[table])).values
            for table in self._tables.personal
        }

    def work(self, name: str, number: int, download: Download) -> ClientWork:
        seed = int(np.random.default_rng([self._seed, number, self._places[name]]).integers(2**31))
        return self.devices[name].work(download, self.personal(name), seed)

    def _of(self, kind: str) -> tuple[str, ...]:
        return tuple(table.name for table in self.task.tables if table.kind == kind)

    def _with_personal(self, commit: Commit, learned: Mapping[str, tuple[ClientWork, LocalUpdate]]) -> Commit:
        """Devices keep what they learned about themselves, whether or not their upload arrived."""
        tables = dict(commit.tables)
        for table in self._tables.personal:
            rows = np.concatenate(
                [np.zeros(0, np.int64), *(work.rows[table] for work, _ in learned.values())]
            )
            if not len(rows):
                continue
            moves = np.concatenate([update.rows[table] for _, update in learned.values()])
            order = np.argsort(rows)  # a personal row belongs to one client: each occurs once
            old = self.store.read_rows(table, RowSet(rows[order]))
            tables[table] = RowBlock(old.rows, old.values + moves[order], old.state)
        return replace(commit, tables=tables)


class _Running:
    """One round under way: who is still there, and the bill by exchange."""

    def __init__(self, engine: LocalEngine, cohort: Sequence[str], report: RoundReport) -> None:
        self._engine = engine
        self._report = report
        self._gone: set[str] = set()
        self.learned: dict[str, tuple[ClientWork, LocalUpdate]] = {}
        self._meter = meter = Meter(cohort, CODEC, MESSAGE_LIMIT)
        params, session = engine.params(report.number, cohort)
        self._clients = {name: meter.at_client(name, engine.client, name) for name in cohort}
        keys = [
            meter.up(name, Keys, meter.at_client(name, client.create_keys))
            for name, client in self._clients.items()
        ]
        maps = engine.task.row_maps
        self._server = meter.at_server(RoundServer, session, params, keys, engine.store, maps)
        self._bill("check-in", len(cohort))

    def exchanges(self) -> RoundOutcome:
        invitations = self._meter.at_server(self._server.invitations)
        inbound = self._exchange("invitation", invitations, RoundClient.handle_invitation)
        opening = self._exchange("inbound", inbound, RoundClient.handle_inbound)
        union = self._exchange("unmask-union", opening, RoundClient.handle_unmask)
        submodels = self._exchange("union", union, RoundClient.handle_union)
        opening = self._train("submodel", submodels)
        self._exchange("unmask-update", opening, RoundClient.handle_unmask)
        return self._server.outcome

    def _exchange(
        self, exchange: str, outbound: Mapping[str, Message], act: Callable[..., Message]
    ) -> Mapping[str, Message]:
        self._vanish(exchange, outbound)
        heard = 0
        for name, message in self._meter.down(outbound, Message, self._gone):
            heard += self._answer(name, act, self._clients[name], message)
        return self._close(exchange, heard)

    def _train(self, exchange: str, outbound: Mapping[str, Message]) -> Mapping[str, Message]:
        """Download, then train the whole cohort in one pass, then upload."""
        self._vanish(exchange, outbound)
        engine, number = self._engine, self._report.number
        downloads = {
            name: self._meter.at_client(name, self._clients[name].handle_submodel, message)
            for name, message in self._meter.down(outbound, Submodel, self._gone)
        }
        start = time.perf_counter()
        works = {name: engine.work(name, number, download) for name, download in downloads.items()}
        dense = next(iter(downloads.values())).dense if downloads else np.zeros(0, np.float32)
        settings = engine.settings.local
        updates = (
            train_cohort(engine.task, dense, list(works.values()), settings, round_number=number - 1)
            if works
            else []
        )
        self.learned = dict(zip(works, zip(works.values(), updates, strict=True), strict=True))
        trained = {
            name: engine.devices[name].trained(
                work, update, downloads[name], engine.personal(name), engine.settings.bins
            )
            for name, (work, update) in self.learned.items()
        }
        self._report.training_seconds = time.perf_counter() - start
        self._count(updates)
        heard = sum(
            self._answer(name, RoundClient.create_update, self._clients[name], one)
            for name, one in trained.items()
        )
        return self._close(exchange, heard)

    def _count(self, updates: Sequence[LocalUpdate]) -> None:
        report = self._report
        report.samples = sum(update.samples for update in updates)
        report.diverged = sum(update.diverged for update in updates)
        losses = [update.loss * update.samples for update in updates if update.samples]
        report.loss = sum(losses) / report.samples if report.samples else float("nan")

    def _vanish(self, exchange: str, outbound: Mapping[str, Message]) -> None:
        vanished = self._engine.settings.faults.vanish(self._report.number, exchange, outbound)
        self._report.dropped[exchange] = len(vanished)
        self._gone |= vanished

    def _answer(self, name: str, act: Callable[..., Message], *args: object) -> bool:
        """A client that declines, or whose update is not finite, is a dropout and is counted."""
        try:
            answer = self._meter.at_client(name, act, *args)
        except (Declined, Refused, NotFinite) as reason:
            kind = type(reason).__name__
            self._report.declined[kind] = self._report.declined.get(kind, 0) + 1
            self._gone.add(name)
            return False
        received = self._meter.up(name, Message, answer)
        self._meter.at_server(self._server.receive, name, received)
        return True

    def _close(self, exchange: str, heard: int) -> Mapping[str, Message]:
        try:
            return self._meter.at_server(self._server.close_phase)
        finally:
            self._bill(exchange, max(1, heard))

    def _bill(self, exchange: str, clients: int) -> None:
        cost, report = self._meter.take(), self._report
        report.bytes_up[exchange] = sum(cost.client_bytes_up.values()) / clients
        report.bytes_down[exchange] = sum(cost.client_bytes_down.values()) / clients
        report.client_seconds[exchange] = sum(cost.client_seconds.values()) / clients
        report.server_seconds[exchange] = cost.server_seconds
