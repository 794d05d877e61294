"""A small cohort of rounds over hot rows, with the model of ``cohort``: surveys, and rounds that train."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cohort import CATEGORIES, CATEGORY_OF, DENSE, GOODS, MAPS, MODEL, WIDTH
from sfsl.crypto.secret import Identity
from sfsl.rounds import RoundPolicy, Trained
from sfsl.rounds.client import Download, Own
from sfsl.rounds.exchanges import CODEC, Exchange, course_of
from sfsl.rounds.hot import HotSet, HotState
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.hot_server import HotRound, HotServer, plan_hot
from sfsl.rounds.params import ANYTHING, ExactLimits, HotLimits, HotRules, RoundRules, plan_session
from sfsl.secagg import Policy
from sfsl.submodel import Averaging, MemoryStore, Quantization, RowSet, StoreSpec, TrainedRows, UpdateParams
from sfsl.testing import SeededRandomness

LIMIT = 10**7
BINS = 8
# Of 60 goods 20 are hot, and of 6 categories 4.
HOT_GOODS, HOT_CATEGORIES = np.arange(0, GOODS, 3), np.arange(4)
HOT = HotSet.of(
    1,
    100,
    {"goods": HOT_GOODS, "category": HOT_CATEGORIES},
    {"goods": np.linspace(50, 5, len(HOT_GOODS)), "category": np.full(len(HOT_CATEGORIES), 80.0)},
)


def rules(**changes: Any) -> RoundRules:
    """Rules of the round; what ``HotRules`` has goes there."""
    hot: dict[str, Any] = {
        "rho": math.inf,
        "survey_rho": math.inf,
        "marks": 5,
        "corruption": 0.0,
        "clip": 1.0,
    }
    rest: dict[str, Any] = {"bins": BINS, "precision": "float32"}
    for name, value in changes.items():
        (hot if name in HotRules.__dataclass_fields__ else rest)[name] = value
    quantization = Quantization(ring="z32", cohort=1000, clip=1.0, levels=1024, max_weight=50)
    update = UpdateParams(
        rows=quantization, dense=quantization, averaging=Averaging(weights="samples", kappa=1)
    )
    return RoundRules(
        update=update,
        training=lambda number: {"rate": 1.0 / number},
        min_contributors=1,
        hot=HotRules(**hot),
        **rest,
    )


def new_store() -> MemoryStore:
    return MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), dense=np.arange(DENSE, dtype=np.float32))


def plan(kind: str = "train", clients: int = 6, **changes: Any) -> HotRound:
    state = HotState() if kind == "survey" else HotState(surveys=1, surveyed=100, hot=HOT.encode())
    return plan_hot(rules(**changes), MODEL, new_store(), clients=clients, state=state)


class Purse:
    """Remembers what was spent, in memory; ``fails`` says no to everything."""

    def __init__(self, goods: Sequence[int], fails: bool = False) -> None:
        self.goods, self.fails = np.array(sorted(goods), np.int64), fails
        self.spent: dict[bytes, float] = {}

    def spend(self, round_id: bytes, rho: float) -> None:
        if self.fails:
            raise OSError("no room on this disk")
        self.spent[round_id] = self.spent.get(round_id, 0.0) + rho

    def owned(self) -> Mapping[str, Any]:
        return {"goods": self.goods}


def train(number: int, real: Sequence[int], download: Download, scale: float = 0.1) -> Trained:
    """What a client learned of those of its rows that are hot."""
    rng = np.random.default_rng(number)
    mine = np.array(sorted(real), np.int64)
    rows = {}
    for table, own, width in (("goods", mine, WIDTH), ("category", np.unique(CATEGORY_OF[mine]), 2)):
        kept = RowSet(own[download.asked[table].holds(own)])
        rows[table] = TrainedRows(kept, rng.normal(0, scale, (len(kept), width)), np.ones(len(kept), int))
    scores = None if download.scores is None else (np.arange(BINS), np.ones(BINS, int))
    return Trained(rng.normal(0, scale, DENSE), 3, rows, scores)


class HotCohort:
    """Takes clients through one round, exchange by exchange. ``drop``: who is gone from which exchange on;
    ``meddle`` may replace what a client is sent, ``real`` says who has which goods."""

    def __init__(
        self,
        n: int = 6,
        kind: str = "train",
        *,
        active: bool = False,
        seed: str = "hot",
        real: Mapping[str, Sequence[int]] | None = None,
        limits: HotLimits | None = None,
        exact: ExactLimits = ANYTHING,
        drop: Mapping[str, set[str]] | None = None,
        meddle: Callable[[str, str, Any], Any] | None = None,
        planned: HotRound | None = None,
        **changes: Any,
    ) -> None:
        self.randomness = SeededRandomness(seed)
        self.plan = planned or plan(kind, n, active=active, **changes)
        self.params, self.course = self.plan.params, course_of(self.plan.params)
        self.names = [f"c{i:03d}" for i in range(n)]
        rng = np.random.default_rng(4)
        self.real = real or {name: rng.choice(GOODS, 8, replace=False).tolist() for name in self.names}
        self.session = plan_session(self.plan.rules, self.params, clients=n, round_id=b"round-0000000001")
        self.policy = RoundPolicy(
            session=Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=10**5),
            max_clip=2.0,
            max_rows=1000,
            hot=limits or HotLimits(max_rho=math.inf, corruption=0.0),
            limits=exact,
        )
        identities = {name: Identity.generate(self.randomness) for name in self.names} if active else {}
        self.pinned = {name: one.public for name, one in identities.items()} if active else None
        self.purses = {name: Purse(self.real[name]) for name in self.names}
        self.clients = {
            name: HotClient.join(
                name,
                Own(
                    self.purses[name],
                    MODEL,
                    MAPS,
                    self.policy,
                    self.randomness,
                    identity=identities.get(name),
                    identities=self.pinned,
                ),
            )
            for name in self.names
        }
        self.keys = {name: client.create_keys() for name, client in self.clients.items()}
        self.store = new_store()
        self.server = HotServer(
            self.session, self.plan, list(self.keys.values()), self.store, MAPS, self.pinned
        )
        self.outbound: dict[str, Any] = dict(self.server.invitations())
        self.order = list(self.course.order(active))
        self.trained: dict[str, Trained] = {}
        self.sent: dict[str, list[bytes]] = {name: [] for name in self.names}
        self.current = ""  # who is at work
        self._drop, self._meddle, self._gone = drop or {}, meddle, set[str]()

    def until(self, exchange: str) -> "HotCohort":
        """Up to the moment at which the server's message of this exchange is on the way."""
        while self.order[0] != exchange:
            self.exchange()
        return self

    def finish(self) -> Any:
        while self.order:
            self.exchange()
        return self.server.outcome

    def exchange(self) -> None:
        exchange = self.order.pop(0)
        self._gone |= self._drop.get(exchange, set())
        for name, message in self.outbound.items():
            if name not in self._gone:
                given = message if self._meddle is None else self._meddle(exchange, name, message)
                data = CODEC.encode(self.answer(name, exchange, given))
                self.sent[name].append(data)
                self.server.receive(name, CODEC.decode(data, limit=LIMIT))
        self.outbound = dict(self.server.close_phase())

    def answer(self, name: str, exchange: str, message: Any) -> Any:
        received, client = CODEC.decode(CODEC.encode(message), limit=LIMIT), self.clients[name]
        self.current = name
        step = self.course.step(Exchange(exchange))
        if step.handler != "handle_model":
            return getattr(client, step.handler)(received)
        download = client.handle_model(received, self.plan.published)  # type: ignore[arg-type]
        self.trained[name] = train(self.names.index(name), self.real[name], download)
        return client.create_update(self.trained[name])


__all__ = ["CATEGORIES", "HOT", "HotCohort", "Purse", "new_store", "plan", "rules", "train"]
