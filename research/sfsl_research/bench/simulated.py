"""A simulated cohort for one round at the paper's sizes: its model, its clients' rows and their updates."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Indices
from sfsl.crypto.secret import Randomness, Secret, SystemRandomness
from sfsl.errors import InputError
from sfsl.privacy import PRESETS, IndexPrivacy, Perturber, Tables
from sfsl.rounds import Download, RoundClient, RoundParams, RoundPolicy, ScoreBins, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.params import ANYTHING
from sfsl.secagg import Client, Policy, SessionParams, default_threshold
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
from sfsl.union import UnionParams, planned_capacity
from sfsl_research.bench.union import simulated_sets

CLIP = 1.0
# A client has 301 items of 117 categories in the paper. It turns to a few categories, some of them more
# popular than others; items that it shares with others bring some more. These two make it 117, and the
# categories that a client asks for at cpp2..cpp4 as many as with ``sfsl.data.synthetic``, within 5 %.
CATEGORIES_PER_GOOD = 117 / 301
_INTERESTS, _EVENNESS = 0.9, 0.7
_MAX_SAMPLES = 1000
# Clients accept what this process offers them; a deployed one has a policy of its own.
_GENEROUS = 2**32


@dataclass(frozen=True)
class Sizes:
    """Defaults are the paper's. ``unique`` is the share of the union that only one client has."""

    clients: int = 100
    rows: int = 143_534
    set_size: int = 301
    unique: float = 0.867
    categories: int = 4_815
    width: int = 18
    dense: int = 64_327

    def model(self) -> ModelSpec:
        return ModelSpec(
            tables=(
                Table(name="goods", rows=self.rows, width=self.width),
                Table(
                    name="category", rows=self.categories, width=self.width, kind="derived", source="goods"
                ),
                Table(name="user", rows=49_023, width=self.width, kind="personal"),
            ),
            dense=self.dense,
        )


class Answers:
    """Randomized response without the durable state of a deployed client, whose two writes are not in."""

    def __init__(self, perturber: Perturber) -> None:
        self._perturber = perturber

    def expose(self, round_id: bytes) -> Mapping[str, Indices]:
        return self._perturber.union_input()

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> Mapping[str, Bits]:
        return self._perturber.answer(unions, randomness)


class SimulatedCohort:
    """Who takes part, with which rows; keys and masks come from the operating system."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        privacy: str,
        min_contributors: int = 1,
        precision: str = "float32",
        bins: int = 256,
        encoding: str = "auto",
        seed: int = 0,
    ) -> None:
        self._rng = rng = np.random.default_rng(seed)
        self._privacy = preset(privacy)
        self.real = simulated_sets(rng, sizes.clients, sizes.rows, sizes.set_size, sizes.unique)
        self.model = sizes.model()
        self.maps = RowMaps(self.model, {"category": _CategoryOf(rng, self.real, sizes.categories)})
        self.randomness = SystemRandomness()
        self.params = RoundParams(
            number=1,
            model=self.model,
            union=self._union(sizes, encoding),
            update=_update(sizes.clients),
            min_contributors=min_contributors,
            training={"rate": 1.0},
            precision=precision,  # type: ignore[arg-type]  # checked there
            scores=ScoreBins(bins=bins) if bins else None,
        )
        self.session = SessionParams(
            round_id=self.randomness.bytes(16),
            clients=sizes.clients,
            threshold=default_threshold(sizes.clients),
            neighbours=None,
            active=False,
            sums=self.params.sums(),
        )

    def _union(self, sizes: Sizes, encoding: str) -> UnionParams:
        capacity = planned_capacity(sizes.rows, sizes.clients, sizes.set_size)
        return UnionParams.plan(encoding, sizes.rows, capacity, self.randomness.bytes(32))

    def store(self) -> MemoryStore:
        spec = StoreSpec(model=self.model, seed=self.randomness.bytes(32))
        return MemoryStore(spec, np.zeros(self.model.dense, np.float32))

    def client(self, name: str, kind: type[Client] = Client) -> tuple[Client, RoundClient]:
        policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=_GENEROUS)
        session = kind(name, policy, self.randomness, sums=2)
        tables = Tables(shared=("goods",), personal=("user",))
        key = Secret(self.randomness.bytes(32))
        answers = Answers(Perturber(key, self._privacy, tables, {"goods": self.real[name]}))
        terms = RoundPolicy(session=policy, max_clip=CLIP, max_rows=_GENEROUS, limits=ANYTHING)
        return session, RoundClient(session, Own(answers, self.model, self.maps, terms, self.randomness))

    def derived(self, name: str) -> RowSet:
        """The categories of the client's own items."""
        return self.maps.with_derived({"goods": RowSet(self.real[name])})["category"]

    def trained(self, name: str, download: Download) -> Trained:
        """An update of the client's succinct rows: any numbers within the clip, any counts from 1."""
        rng, bins = self._rng, self.params.bins
        goods = RowSet(self.real[name]).common(download.asked["goods"])
        succinct = self.maps.with_derived({"goods": goods})
        rows = {
            table.name: TrainedRows(
                succinct[table.name],
                rng.uniform(-CLIP, CLIP, (len(succinct[table.name]), table.width)),
                rng.integers(1, 9, len(succinct[table.name])),
            )
            for table in self.model.summed
        }
        scores = (rng.integers(0, 9, bins), rng.integers(0, 9, bins))
        dense = rng.uniform(-CLIP, CLIP, self.model.dense)
        return Trained(dense, int(rng.integers(1, _MAX_SAMPLES)), rows, scores)

    def vanishing(self, share: float) -> frozenset[str]:
        if not 0 <= share < 1:
            raise InputError(f"--dropout {share} is not a fraction below 1")
        names = sorted(self.real)
        return frozenset(self._rng.choice(names, round(share * len(names)), replace=False).tolist())


class _CategoryOf:
    """The public map from items to categories. It knows the items that somebody has, whatever the number of
    rows in the table, and takes any other for the next of these."""

    def __init__(self, rng: np.random.Generator, real: Mapping[str, Indices], categories: int) -> None:
        owners = np.repeat(np.arange(len(real)), [len(rows) for rows in real.values()])
        self._goods, first = np.unique(np.concatenate([*real.values()]), return_index=True)
        owner = owners[first]
        count = max(1, round(_INTERESTS * CATEGORIES_PER_GOOD * len(owners) / len(real)))
        popularity = rng.exponential(size=categories) ** _EVENNESS
        interests = rng.choice(categories, (len(real), count), p=popularity / popularity.sum())
        reach = np.cumsum(rng.exponential(size=interests.shape), axis=1)
        place = rng.random(len(owner)) * reach[owner, -1]
        self._categories = interests[owner, (reach[owner] < place[:, None]).sum(axis=1)]

    def __call__(self, rows: Indices) -> Indices:
        at = np.minimum(np.searchsorted(self._goods, rows), len(self._goods) - 1)
        categories: Indices = self._categories[at]
        return categories


def preset(name: str) -> IndexPrivacy:
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def _update(cohort: int) -> UpdateParams:
    """As ``sfsl run`` has it: owner weights for rows, samples for the dense part."""
    rows, dense = (
        Quantization.finest("z32", cohort=cohort, clip=CLIP, max_weight=weight)
        for weight in (1, _MAX_SAMPLES)
    )
    return UpdateParams(rows=rows, dense=dense, averaging=Averaging())
