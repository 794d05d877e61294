"""A small deployment in this process: a coordinator, and clients that run the real state machines."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clocks import PATIENCE
from cohort import CATEGORY_OF, DENSE, GOODS, MAPS, MODEL, WIDTH, AsIs
from sfsl.carriers.https.app import AppLimits, Server, create_app
from sfsl.carriers.https.coordinator import Coordinator, now_ms
from sfsl.crypto.secret import Identity, Secret, SystemRandomness
from sfsl.errors import RoundOver
from sfsl.rounds import RoundClient, RoundPolicy, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.params import ANYTHING, RoundRules
from sfsl.rounds.record import RoundRecord
from sfsl.secagg import Client, Policy
from sfsl.service.disk import DiskTrouble
from sfsl.service.driver import Service
from sfsl.service.members import ServiceSettings
from sfsl.service.messages import CODEC, CheckedIn, CheckIn
from sfsl.service.registry import Enrolment, Registry
from sfsl.service.signing import Verifier, client_id, sign_request
from sfsl.submodel import (
    Averaging,
    MemoryStore,
    Quantization,
    RowSet,
    RowStore,
    StoreSpec,
    TrainedRows,
    UpdateParams,
)
from sfsl.testing import SeededRandomness

LIMIT = 10**7
HOST, HOSTS = "server", ("server", "test", "localhost", "127.0.0.1")
MODEL_DIGEST = bytes(range(32))
NOW_MS = 1_800_000_000_000
HANDLERS = {
    "Invitation": "handle_invitation",
    "InboundShares": "handle_inbound",
    "Survivors": "handle_survivors",
    "UnmaskRequest": "handle_unmask",
    "Union": "handle_union",
}


def settings(**changes: Any) -> ServiceSettings:
    cohort = changes.get("cohort", 3)
    quantization = Quantization(ring="z32", cohort=cohort, clip=1.0, levels=1024, max_weight=50)
    update = UpdateParams(
        rows=quantization, dense=quantization, averaging=Averaging(weights="samples", kappa=1)
    )
    chosen: dict[str, Any] = {
        "update": update,
        "cohort": cohort,
        "min_cohort": cohort,
        "min_contributors": 1,
        "largest_set": 8,
        "training": lambda number: {"rate": 1.0 / number},
        "bins": 8,
        "check_in_seconds": 1000.0,
        "phase_seconds": 1000.0,
        "training_seconds": 1000.0,
        "poll_seconds": 5.0,
        "grace_seconds": 0.0,
        "period_days": 0,
    }
    chosen |= changes
    rules = {name: chosen.pop(name) for name in RoundRules.__dataclass_fields__ if name in chosen}
    return ServiceSettings(RoundRules(**rules), **chosen)


def new_store() -> MemoryStore:
    return MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), dense=np.arange(DENSE, dtype=np.float32))


class Deployment:
    """A registry, a store and a coordinator; opened again in the same folder it is the same deployment."""

    def __init__(
        self,
        folder: Path,
        store: RowStore | None = None,
        disk: DiskTrouble | None = None,
        *,
        goodbye_seconds: float = 0.0,
        **changes: Any,
    ) -> None:
        self.registry = Registry(folder / "registry.sqlite")
        self.store = store if store is not None else new_store()
        self.lines: list[RoundRecord] = []
        self.now_ms = NOW_MS
        self._ahead = 0.0
        self._looks = itertools.count()
        service = Service(
            settings(**changes),
            MODEL,
            MAPS,
            self.store,
            self.registry,
            model_digest=MODEL_DIGEST,
            record=self.lines.append,
            cpu=time.thread_time,
            clock=self.clock,
            today=lambda: self.now_ms,
        )
        self.coordinator = Coordinator(service, disk, goodbye_seconds=goodbye_seconds)
        self.check_ins = self.coordinator.check_ins

    def clock(self) -> float:
        """A microsecond further at each look, and otherwise where ``advance`` put it: a machine that is busy
        meets every deadline."""
        return self._ahead + 1e-6 * next(self._looks)

    def advance(self, seconds: float) -> None:
        """Time passes at once: no test waits for a deadline."""
        self._ahead += seconds
        self.check_ins.changed.set()

    def identity(self, number: int) -> Identity:
        """Of an enrolled client."""
        identity = Identity(Secret(bytes([number + 1]) * 32))
        self.registry.enrol(identity.public, NOW_MS)
        return identity

    def clients(self, count: int) -> "list[Guest]":
        pinned = None
        if self.coordinator.settings.rules.active:
            publics = [self.identity(number).public for number in range(count)]
            pinned = {client_id(public): public for public in publics}
        return [Guest(self, number, pinned) for number in range(count)]

    async def __aenter__(self) -> "Deployment":
        self.task = asyncio.create_task(self.coordinator.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self.coordinator.stop(), PATIENCE)
        await asyncio.gather(self.task, return_exceptions=True)
        self.registry.close()


class Guest:
    """One client. ``transform`` may replace an answer before it leaves, by the message it answers."""

    def __init__(self, world: Deployment, number: int, pinned: Mapping[str, bytes] | None = None) -> None:
        self.world = world
        self.number = number
        self.identity = world.identity(number)
        self.id = client_id(self.identity.public)
        self._pinned = pinned
        rng = np.random.default_rng(number)
        self.real = set(rng.choice(GOODS, 8, replace=False).tolist())
        self.fresh()

    def fresh(self) -> None:
        """New keys, as for every round."""
        policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=10**5)
        randomness = SeededRandomness(f"guest {self.number} {getattr(self, '_times', 0)}")
        self._times = getattr(self, "_times", 0) + 1
        session = Client(
            self.id,
            policy,
            randomness,
            sums=2,
            identity=self.identity if self._pinned else None,
            identities=self._pinned,
        )
        round_policy = RoundPolicy(session=policy, max_clip=2.0, max_rows=1000, limits=ANYTHING)
        self.machine = RoundClient(
            session, Own(AsIs(self.real, everything=True), MODEL, MAPS, round_policy, randomness)
        )
        self.message = CheckIn(MODEL_DIGEST, self.machine.create_keys())
        self.received = 0
        self.frames: list[bytes] = []
        self.answers: list[bytes] = []

    def check_in(self) -> CheckedIn:
        checked = self.world.check_ins.check_in(self.id, self.message)
        self.ticket = checked.ticket
        return checked

    async def next(self, seconds: float = PATIENCE) -> bytes | None:
        found = await self.world.check_ins.next(self.id, self.ticket, self.received, seconds)
        if found is None:
            return None
        self.received, frame = found
        self.frames.append(frame)
        return frame

    def answer_to(self, frame: bytes) -> bytes:
        message = CODEC.decode(frame, limit=LIMIT)
        handler = HANDLERS.get(type(message).__name__)
        if handler:
            answer = getattr(self.machine, handler)(message)
        else:
            answer = self.machine.create_update(self.train(self.machine.handle_submodel(message)))  # type: ignore[arg-type]
        return CODEC.encode(answer)

    async def answer(self, data: bytes, number: int | None = None) -> None:
        self.answers.append(data)
        await self.world.check_ins.answer(
            self.id, self.ticket, self.received if number is None else number, data
        )

    def train(self, download: Any) -> Trained:
        rng = np.random.default_rng(self.number)
        goods = RowSet.of(sorted(self.real)).common(download.asked["goods"])
        category = RowSet.of(CATEGORY_OF[goods.rows])
        rows = {}
        for table, own, width in (("goods", goods, WIDTH), ("category", category, 2)):
            rows[table] = TrainedRows(
                own, rng.integers(-100, 100, (len(own), width)) / 1024, rng.integers(1, 5, len(own))
            )
        self.dense = rng.integers(-100, 100, DENSE) / 1024
        return Trained(self.dense, 3, rows, (np.arange(8), np.ones(8, int)))

    async def until(self, number: int) -> bytes:
        """Answer everything before message ``number``, and return that message, not answered."""
        while True:
            while (frame := await self.next()) is None:
                pass
            if self.received == number:
                return frame
            await self.answer(self.answer_to(frame))

    async def play(self, *, leave_at: int = 0) -> RoundOver:
        """A whole round; how it ended. ``leave_at``: the message at which it checks in anew instead."""
        while True:
            try:
                frame = await self.next()
                if frame is None:
                    continue
                if self.received == leave_at:
                    ticket = self.ticket
                    self.fresh()
                    self.check_in()
                    await self.world.check_ins.next(self.id, ticket, leave_at, 0)
                    raise AssertionError("the old ticket still holds")
                await self.answer(self.answer_to(frame))
            except RoundOver as over:
                return over


class Wire:
    """A guest's requests over HTTP, signed. ``http`` is an ``httpx.AsyncClient`` at the server."""

    def __init__(self, guest: Guest, http: Any, deployment: bytes) -> None:
        self.guest = guest
        self.http = http
        self._deployment = deployment
        self._randomness = SystemRandomness()

    def headers(self, method: str, target: str, body: bytes = b"", now: int | None = None) -> dict[str, str]:
        return sign_request(
            self.guest.identity,
            deployment=self._deployment,
            host=HOST,
            method=method,
            target=target,
            body=body,
            now_ms=now_ms() if now is None else now,
            randomness=self._randomness,
        )

    async def send(self, method: str, target: str, body: bytes = b"", **options: Any) -> Any:
        headers = options.pop("headers", None) or self.headers(method, target, body)
        return await self.http.request(method, target, content=body, headers=headers, **options)

    async def check_in(self) -> Any:
        answer = await self.send("POST", "/v1/check-in", CODEC.encode(self.guest.message))
        if answer.status_code == 200:
            checked = CODEC.decode(answer.content, limit=LIMIT)
            assert isinstance(checked, CheckedIn)
            self.guest.ticket = checked.ticket
        return answer

    async def next(self) -> Any:
        guest = self.guest
        answer = await self.send("GET", f"/v1/next/{guest.ticket.hex()}?after={guest.received}")
        if answer.status_code == 200:
            guest.received = int(answer.headers["Sfsl-Sequence"])
        return answer

    async def answer(self, data: bytes, number: int | None = None) -> Any:
        guest = self.guest
        number = guest.received if number is None else number
        return await self.send("POST", f"/v1/answer/{guest.ticket.hex()}/{number}", data)

    async def play(self) -> Any:
        """A whole round; the JSON of its end."""
        await self.check_in()
        while True:
            answer = await self.next()
            if answer.status_code == 410:
                return answer.json()
            if answer.status_code == 200:
                taken = await self.answer(self.guest.answer_to(answer.content))
                assert taken.status_code == 204, taken.text


def serve(world: Deployment, limits: AppLimits | None = None, enrolment: Enrolment | None = None) -> Any:
    """The app around a deployment."""
    limits = limits or AppLimits()
    verifier = Verifier(world.registry.deployment, world.registry.public_key, hosts=HOSTS)
    server = Server(
        world.coordinator, verifier, enrolment or Enrolment.open(100), b"package", limits, time_ms=now_ms
    )
    return create_app(server, limits)
