"""A small cohort with a model of its own, for tests of the round."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sfsl.crypto.secret import Identity
from sfsl.rounds import (
    IndexSpace,
    RoundClient,
    RoundParams,
    RoundPolicy,
    RoundServer,
    ScoreBins,
    Trained,
)
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC
from sfsl.rounds.params import ANYTHING
from sfsl.secagg import Client, Policy, SessionParams
from sfsl.submodel import (
    Averaging,
    MemoryStore,
    ModelSpec,
    Quantization,
    RowMaps,
    RowSet,
    StoreSpec,
    Table,
    TrainedRows,
    UpdateParams,
)
from sfsl.testing import SeededRandomness
from sfsl.union import UnionParams

GOODS, CATEGORIES, WIDTH, DENSE = 60, 6, 3, 4
MODEL = ModelSpec(
    tables=(
        Table(name="goods", rows=GOODS, width=WIDTH),
        Table(name="category", rows=CATEGORIES, width=2, kind="derived", source="goods"),
        Table(name="user", rows=10, width=2, kind="personal"),
    ),
    dense=DENSE,
)
CATEGORY_OF = np.arange(GOODS) % CATEGORIES
MAPS = RowMaps(MODEL, {"category": CATEGORY_OF})


class AsIs:
    """Answers without randomness: the real rows into the union, and a fixed rule for the request."""

    def __init__(self, real: Any, everything: bool) -> None:
        self.real = np.array(sorted(real), np.int64)
        self.everything = everything

    def expose(self, round_id: bytes) -> Mapping[str, Any]:
        return {"goods": self.real}

    def answer(self, round_id: bytes, unions: Mapping[str, Any], randomness: Any) -> Mapping[str, Any]:
        union = unions["goods"]
        return {"goods": np.ones(len(union), bool) if self.everything else np.isin(union, self.real)}


class Cohort:
    def __init__(
        self,
        n: int = 6,
        *,
        active: bool = False,
        everything: bool = True,
        least: int = 1,
        model: ModelSpec = MODEL,
        maps: RowMaps = MAPS,
    ) -> None:
        self.model, self.maps = model, maps
        self.randomness = SeededRandomness("round")
        rng = np.random.default_rng(4)
        self.names = [f"c{i}" for i in range(n)]
        self.real = {name: set(rng.choice(GOODS, 8, replace=False).tolist()) for name in self.names}
        quantization = Quantization(ring="z32", cohort=n, clip=1.0, levels=1024, max_weight=50)
        owners = Quantization(ring="z32", cohort=n, clip=1.0, levels=1024, max_weight=50)
        update = UpdateParams(
            rows=owners, dense=quantization, averaging=Averaging(weights="samples", kappa=1)
        )
        space = IndexSpace(model)
        union = UnionParams(domain=space.domain, encoding="sketch", capacity=60, seed=bytes(32))
        self.params = RoundParams(
            number=1,
            model=model,
            union=union,
            update=update,
            min_contributors=least,
            training={"rate": 1.0},
            scores=ScoreBins(bins=8),
        )
        self.session = SessionParams(
            round_id=b"round-0000000001",
            clients=n,
            threshold=2 * n // 3 + 1,
            neighbours=None,
            active=active,
            sums=self.params.sums(),
        )
        identities = {name: Identity.generate(self.randomness) for name in self.names} if active else {}
        self.pinned = {name: one.public for name, one in identities.items()} if active else None
        session_policy = Policy(min_clients=3, min_threshold=2, min_contributors=least, max_words=10**5)
        self.policy = RoundPolicy(session=session_policy, max_clip=2.0, max_rows=1000, limits=ANYTHING)
        self.answers: dict[str, Any] = {name: AsIs(self.real[name], everything) for name in self.names}
        self.sessions = {
            name: Client(
                name,
                session_policy,
                self.randomness,
                sums=2,
                identity=identities.get(name),
                identities=self.pinned,
            )
            for name in self.names
        }
        self.downloads: dict[str, Any] = {}
        self.trained: dict[str, Trained] = {}
        self.store = MemoryStore(
            StoreSpec(model=model, seed=bytes(32)), dense=np.arange(model.dense, dtype=np.float32)
        )

    def train(self, name: str, download: Any) -> Trained:
        """Deltas that are whole multiples of the unit, so that nothing is rounded."""
        rng = np.random.default_rng(int(name[1:]))
        goods = RowSet.of(sorted(self.real[name])).common(download.asked["goods"])
        category = RowSet.of(CATEGORY_OF[goods.rows])
        rows = {}
        for table, own, width in (("goods", goods, WIDTH), ("category", category, 2)):
            deltas = rng.integers(-100, 100, (len(own), width)) / 1024
            counts = rng.integers(1, 5, len(own))
            rows[table] = TrainedRows(own, deltas, counts)
        scores = (np.arange(8), np.ones(8, int))
        return Trained(rng.integers(-100, 100, DENSE) / 1024, 3, rows, scores)

    def run(self, drop: Mapping[str, set[str]] | None = None) -> Any:
        return Stepper(self, drop or {}).finish()


class Stepper:
    """Takes a cohort through a round, one exchange at a time."""

    def __init__(self, cohort: Cohort, drop: Mapping[str, set[str]] | None = None) -> None:
        self.cohort = cohort
        self.clients = {
            name: RoundClient(
                cohort.sessions[name],
                Own(cohort.answers[name], cohort.model, cohort.maps, cohort.policy, cohort.randomness),
            )
            for name in cohort.names
        }
        keys = [client.create_keys() for client in self.clients.values()]
        self.server = RoundServer(
            cohort.session, cohort.params, keys, cohort.store, cohort.maps, cohort.pinned
        )
        self.outbound: dict[str, Any] = dict(self.server.invitations())
        self._drop = drop or {}
        self._gone: set[str] = set()
        opening = [("survivors", "handle_survivors")] if cohort.pinned else []
        self._steps = [
            ("invitation", "handle_invitation"),
            ("inbound", "handle_inbound"),
            *opening,
            ("unmask-union", "handle_unmask"),
            ("union", "handle_union"),
            ("submodel", ""),
            *opening,
            ("unmask-update", "handle_unmask"),
        ]

    def until(self, step: str) -> "Stepper":
        """Up to the moment at which the server's message of this name is on the way."""
        while self._steps[0][0] != step:
            self._exchange()
        return self

    def finish(self) -> Any:
        while self._steps:
            self._exchange()
        return self.server.outcome

    def _exchange(self) -> None:
        step, method = self._steps.pop(0)
        self._gone |= self._drop.get(step, set())
        for name, message in self.outbound.items():
            if name not in self._gone:
                received = CODEC.decode(CODEC.encode(message), limit=10**7)
                answer = (
                    getattr(self.clients[name], method)(received) if method else self._train(name, received)
                )
                self.server.receive(name, CODEC.decode(CODEC.encode(answer), limit=10**7))
        self.outbound = dict(self.server.close_phase())

    def _train(self, name: str, message: Any) -> Any:
        download = self.clients[name].handle_submodel(message)
        trained = self.cohort.train(name, download)
        self.cohort.downloads[name], self.cohort.trained[name] = download, trained
        return self.clients[name].create_update(trained)
