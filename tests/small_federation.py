"""A federation with the small cohort's model and durable clients, in this process."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from flwr.app import Message

from clocks import SteppingClock
from cohort import MAPS, MODEL, Cohort
from crowd import CALENDAR, CLIENT_MODEL, DIGEST, POLICY, TODAY, Counting
from deployment import new_store, settings
from federation import FIRST, LoopGrid
from sfsl.carriers.flower.apps import GridPost
from sfsl.carriers.flower.messages import read_roster
from sfsl.carriers.flower.node import Member, Node
from sfsl.carriers.flower.rounds import Rounds
from sfsl.client.hot import DurablePurse
from sfsl.client.round import DurableMemory
from sfsl.crypto.secret import SystemRandomness
from sfsl.privacy import PRESETS, Budget
from sfsl.rounds.params import HotLimits, HotRules
from sfsl.rounds.record import RoundRecord
from sfsl.service.driver import Service
from sfsl.service.registry import Registry

NODES = 4


class Small:
    """``grid`` is made with these members; ``run`` runs rounds until ``rounds`` are in the store: over hot
    rows where ``hot`` is given, of which members allow what is within ``limits`` and ``epsilon_hot``."""

    def __init__(
        self,
        folder: Path,
        *,
        exposures: int = 9,
        max_rows: int = 1000,
        roster: str = "",
        hot: HotRules | None = None,
        limits: HotLimits | None = None,
        epsilon_hot: float = 100.0,
    ) -> None:
        self.folder = folder
        self.real = {place: set(rows) for place, rows in enumerate(Cohort(NODES).real.values())}
        self.store = new_store()
        self.lines: list[RoundRecord] = []
        self.exposures, self.max_rows, self.roster = exposures, max_rows, roster
        self.hot, self.limits = hot, limits
        self.budget = Budget(100.0, 100.0, exposures, epsilon_hot=epsilon_hot, rho_per_round=1.0)

    @contextmanager
    def join(self, node: Node) -> Iterator[Member]:
        real, privacy = sorted(self.real[node.partition]), PRESETS["cpp2"]
        home, randomness = node.home, SystemRandomness()
        pinned = read_roster(Path(self.roster)) if self.roster else None
        with home.state(node.label, CALENDAR, self.budget) as state, home.personal(MODEL) as personal:
            yield Member(
                name=node.name,
                model=CLIENT_MODEL,
                memory=DurableMemory(
                    state,
                    privacy,
                    CLIENT_MODEL.tables,
                    {"goods": real},
                    today=lambda: TODAY,
                    randomness=randomness,
                ),
                trainer=Counting(real, (node.partition + 1) / 1024),
                personal=personal,
                policy=msgspec.structs.replace(POLICY, max_rows=self.max_rows, hot=self.limits),
                purse=DurablePurse(state, {"goods": real}) if self.limits else None,
                randomness=randomness,
                home=home,
                identity=home.identity() if self.roster else None,
                pinned=pinned,
            )

    def grid(self, kind: Callable[..., LoopGrid] = LoopGrid, **options: Any) -> LoopGrid:
        return kind(self.join, self.folder, NODES, **options)

    def run(self, grid: LoopGrid, rounds: int = 1, **changes: Any) -> None:
        chosen: dict[str, Any] = {"rounds": rounds, "min_cohort": 3, "largest_set": 60, "hot": self.hot}
        chosen |= {f"{name}_seconds": 0.3 for name in ("check_in", "phase", "training")}
        clock = SteppingClock()
        with Registry(self.folder / "registry.sqlite") as registry:
            service = Service(
                settings(cohort=NODES, active=bool(self.roster), **chosen | changes),
                MODEL,
                MAPS,
                self.store,
                registry,
                model_digest=DIGEST,
                record=self.lines.append,
                cpu=time.thread_time,
                clock=clock,
                today=lambda: time.time_ns() // 1_000_000,
                first_rest=math.inf,
            )
            Rounds(
                service,
                GridPost(grid, 0.05, clock=clock, sleep=clock.sleep),
                identities=read_roster(Path(self.roster)) if self.roster else None,
                wait_seconds=1.0,
                sleep=clock.sleep,
            ).run()

    def state_bytes(self, place: int) -> bytes:
        return (self.folder / f"node-{place}" / "state").read_bytes()


VICTIM = FIRST + 1


class Probed(LoopGrid):
    """``around`` is given each message to the victim, and a way to deliver any."""

    around: Callable[["Probed", Message], Message]

    def deliver(self, node: int, message: Message) -> Message:
        if node != VICTIM:
            return super().deliver(node, message)
        return self.around(self, message)

    def honest(self, message: Message) -> Message:
        return super().deliver(VICTIM, message)
