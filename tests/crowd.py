"""Participants of the small cohort's model, and a fake server for them."""

import asyncio
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from cohort import CATEGORY_OF, DENSE, MAPS, MODEL, WIDTH, Cohort
from fake_server import FakeServer
from sfsl.client import Backoff, ClientModel, DurableMemory, Event, Lesson, Link, Participant, PersonalRows
from sfsl.client.participant import Settings
from sfsl.crypto.secret import Identity
from sfsl.errors import Refused
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState
from sfsl.rounds import Download, RoundPolicy, Trained
from sfsl.rounds.params import ANYTHING
from sfsl.secagg import Policy
from sfsl.submodel import MemoryStore, RowSet, StoreSpec, TrainedRows
from sfsl.testing import SeededRandomness

DIGEST = bytes(range(32))
CLIENT_MODEL = ClientModel(DIGEST, MODEL, MAPS)
CALENDAR = Calendar(start=date(2026, 1, 1), days=30)
TODAY = date(2026, 11, 15)
POLICY = RoundPolicy(
    session=Policy(min_clients=3, min_threshold=2, min_contributors=1, max_words=10**5),
    max_clip=2.0,
    max_rows=1000,
    limits=ANYTHING,
)


class Counting:
    """Trains by moving every row it has by a number of its own."""

    def __init__(self, real: Any, move: float) -> None:
        self.real, self.move, self.seen = real, move, 0
        self.personal = {"user": np.array([3], np.int64)}

    def require(self, training: Mapping[str, float]) -> None:
        if training.keys() != {"rate"}:
            raise Refused("hyperparameters that this trainer does not take")

    def train(self, download: Download, personal: Mapping[str, Any], number: int) -> Lesson:
        self.seen += 1
        goods = RowSet.of(sorted(self.real)).common(download.asked["goods"])
        rows = {
            name: TrainedRows(own, np.full((len(own), width), self.move), np.ones(len(own), int))
            for name, own, width in (
                ("goods", goods, WIDTH),
                ("category", RowSet.of(CATEGORY_OF[goods.rows]).common(download.asked["category"]), 2),
            )
        }
        trained = Trained(np.full(DENSE, self.move), 1, rows, (np.ones(8, int), np.ones(8, int)))
        return Lesson(trained, {"user": (self.personal["user"], personal["user"] + np.float32(self.move))})


class Crowd:
    """``n`` participants with durable state under ``folder``, and a server for cohorts of that size."""

    def __init__(self, folder: Path, n: int = 3, **options: Any) -> None:
        cohort = Cohort(n)
        self.folder = folder
        self.server = FakeServer(
            n,
            lambda number: cohort.params,
            MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), dense=np.arange(DENSE, dtype=np.float32)),
            MAPS,
            model=DIGEST,
            **options,
        )
        self.params = cohort.params
        self.real = cohort.real
        self.randomness = SeededRandomness("crowd")
        self.identities = {name: Identity.generate(self.randomness) for name in cohort.names}
        self.names = cohort.names
        self.events: dict[str, list[Event]] = {name: [] for name in cohort.names}
        self.slept: dict[str, list[float]] = {name: [] for name in cohort.names}
        self.trainers = {
            name: Counting(self.real[name], (place + 1) / 1024) for place, name in enumerate(cohort.names)
        }

    def state(self, name: str, exposures: int = 1) -> ClientState:
        path, budget = self.folder / f"{name}.state", Budget(1000, 1000, exposures)
        if path.exists():
            return ClientState.open(path, client=name, budget=budget)
        return ClientState.create(path, client=name, calendar=CALENDAR, budget=budget)

    def link(self, name: str, *, transport: httpx.AsyncBaseTransport | None = None, **options: Any) -> Link:
        async def sleep(seconds: float) -> None:
            self.slept[name].append(seconds)
            await asyncio.sleep(0.005)

        return Link(
            "http://server",
            self.identities[name],
            plain=True,
            backoff=Backoff(self.randomness),
            randomness=self.randomness,
            transport=transport or self.server.transport,
            notify=self.events[name].append,
            sleep=sleep,
            **options,
        )

    def participant(
        self, name: str, *, exposures: int = 1, link: Link | None = None, **options: Any
    ) -> Participant:
        async def sleep(seconds: float) -> None:
            self.slept[name].append(seconds)
            await asyncio.sleep(0.005)

        real = {"goods": sorted(self.real[name])}
        memory = DurableMemory(
            self.state(name, exposures),
            PRESETS["cpp5"],
            CLIENT_MODEL.tables,
            real,
            today=lambda: TODAY,
            randomness=self.randomness,
        )
        given: dict[str, Any] = {
            "link": link or self.link(name),
            "model": CLIENT_MODEL,
            "memory": memory,
            "trainer": self.trainers[name],
            "personal": PersonalRows.open(self.folder / f"{name}.rows", MODEL, self.randomness),
            "policy": POLICY,
            "randomness": self.randomness,
            "notify": self.events[name].append,
            "settings": Settings(pause_s=0.01),
            "sleep": sleep,
            "now": lambda: datetime(2026, 11, 15, 12),
        }
        return Participant(**(given | options))

    def kinds(self, name: str) -> list[str]:
        return [event.kind for event in self.events[name]]


def close(*participants: Participant) -> None:
    """What a process holds while it lives: locks and files."""
    for one in participants:
        one.memory.state.close()  # type: ignore[attr-defined]
        one.personal.close()
