"""What a plan is made from: everything about a round that is known before it runs, and what clients need of
each table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sfsl.arrays import Counts, Reals
from sfsl.errors import ParameterError
from sfsl.privacy import PRESETS, IndexPrivacy, owner_distribution
from sfsl.rounds.exchanges import ORDER, Exchange
from sfsl.secagg import default_threshold
from sfsl.secagg.graph import DEFAULT_BOUND, DEFAULT_DROPOUT
from sfsl.secagg.messages import MAX_COMPLETE
from sfsl.submodel import ModelSpec, RowMaps

# Owners of a row that several clients have, on average: with 86.7 % of the union held by one client this
# gives the paper's 1.17 owners per row.
SEVERAL_OWNERS = 2.28
# Derived rows beyond this many are planned for by a sample of so many.
_SAMPLED = 200_000
# The exchanges whose answers the plan counts: shares, masked sets, requests, updates.
COUNTED = (Exchange.INVITATION, Exchange.INBOUND, Exchange.UNION, Exchange.SUBMODEL)


@dataclass(frozen=True)
class SharedLoad:
    """A shared table: rows a client has on average, and rows of the cohort's union by number of owners."""

    per_client: float
    owners: Reals

    @property
    def union(self) -> float:
        return float(self.owners[1:].sum())


@dataclass(frozen=True)
class DerivedLoad:
    """A derived table: rows a client has on average, and ``rows`` of the union that each follow from
    ``sources`` of the union's source rows."""

    per_client: float
    sources: Counts
    rows: Reals


Load = SharedLoad | DerivedLoad


def shared_load(
    clients: int, per_client: float, *, unique: float | None = None, union: float | None = None
) -> SharedLoad:
    """Estimate a load from the share of the union's rows that one client has, the union's size, or both. From
    the union's size alone, owners are taken to fall off geometrically; from the share alone, rows with
    several owners have as many as in the paper's data."""
    if not per_client > 0 or clients < 2:
        raise ParameterError("a plan needs at least 2 clients, and rows that a client has (--set-size)")
    if unique is None and union is None:
        raise ParameterError("give the share of the union with one owner (--unique) or its size (--union)")
    if unique is not None and not 0 <= unique <= 1:
        raise ParameterError(f"a share of {unique} rows with one owner is not between 0 and 1")
    held = clients * per_client
    if union is None:
        single = unique or 0.0
        mean = single + (1 - single) * min(SEVERAL_OWNERS, clients)
    elif per_client <= union <= held:
        mean = held / union
    else:
        raise ParameterError(
            f"{clients} clients with {per_client:g} rows each have a union of {per_client:g} to {held:g} "
            f"rows, not {union:g}"
        )
    shares = {clients: 1.0}
    if mean <= clients - 1:
        shares = owner_distribution(1 / mean if unique is None else unique, mean, clients)
    owners = np.zeros(clients + 1)
    owners[list(shares)] = list(shares.values())
    return SharedLoad(per_client, owners * held / mean)


def derived_load(
    rows: int, source: SharedLoad, *, per_client: float | None = None, union: float | None = None
) -> DerivedLoad:
    """Estimate how the union's source rows spread over the ``rows`` of a derived table.

    Sizes are taken to be exponential, as those of categories of items roughly are. ``per_client`` rows fewer
    than chance would give mean that a client's rows lie close together, and that the cohort has fewer
    derived rows in all. A ``union`` that is known (how many those are) takes the place of this estimate.
    """
    size = round(source.union)
    if rows < 1 or (union is not None and not 0 < union <= min(rows, size)):
        raise ParameterError(f"{rows} derived rows cannot have a union of {union} from {size} source rows")
    if per_client is not None and not 0 < per_client <= min(rows, source.per_client):
        raise ParameterError(
            f"{per_client:g} derived rows per client from {source.per_client:g} source rows, of {rows} in all"
        )
    groups = min(rows, _SAMPLED)
    exponential = -np.log1p(-(np.arange(groups) + 0.5) / groups)
    if union is None and per_client is not None:
        clients = len(source.owners) - 1
        union = min(size, rows / groups * _covered(exponential, per_client * groups / rows, clients))
    evenness = 1.0 if union is None else _fitted(exponential, size * groups / rows, union * groups / rows)
    share = exponential**evenness
    share /= share.sum()
    drawn = np.random.default_rng(0).multinomial(max(1, round(size * groups / rows)), share)
    sources, counts = np.unique(drawn[drawn > 0], return_counts=True)
    if per_client is None:
        with np.errstate(divide="ignore"):  # one client may have all there is
            missed = np.log(1 - min(1.0, source.per_client / size))
        per_client = rows / groups * float(np.sum(counts * -np.expm1(sources * missed)))
    # Scaled so that they follow from exactly the union's source rows, also where few were drawn.
    return DerivedLoad(per_client, sources.astype(np.int64), counts * size / float(counts @ sources))


def measured_loads(model: ModelSpec, maps: RowMaps, sets: Sequence[Mapping[str, Counts]]) -> dict[str, Load]:
    """Count the same figures in one cohort: ``sets`` holds each client's real rows by shared table."""
    if len(sets) < 2:
        raise ParameterError("a cohort to count in has at least 2 clients")
    loads: dict[str, Load] = {}
    unions = {}
    for table in model.tables:
        if table.kind == "shared":
            own = [np.unique(one[table.name]) for one in sets]
            unions[table.name], owners = np.unique(np.concatenate(own), return_counts=True)
            histogram = np.bincount(owners, minlength=len(sets) + 1).astype(np.float64)
            loads[table.name] = SharedLoad(float(np.mean([len(one) for one in own])), histogram)
    for table in model.tables:
        if table.source is not None:
            follow = [np.unique(maps.rows_of(table.name, one[table.source])) for one in sets]
            sizes = np.unique(maps.rows_of(table.name, unions[table.source]), return_counts=True)[1]
            sources, counts = np.unique(sizes, return_counts=True)
            mean = float(np.mean([len(one) for one in follow]))
            loads[table.name] = DerivedLoad(mean, sources, counts.astype(np.float64))
    return loads


def bisect(low: float, high: float, steps: int, too_low: Callable[[float], bool]) -> tuple[float, float]:
    """Halve an interval so many times around the place where ``too_low`` ends."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return low, high


def _covered(sizes: Reals, per_client: float, clients: int) -> float:
    """Return how many derived rows some client has, if each has ``per_client``, large ones more often."""
    rate = bisect(0.0, 1e9, 100, lambda rate: bool(-np.expm1(-rate * sizes).sum() < per_client))[1]
    return float(-np.expm1(-rate * sizes * clients).sum())


def _fitted(exponential: Reals, size: float, union: float) -> float:
    """Return the power of exponential sizes at which ``size`` source rows have ``union`` derived rows."""

    def even(power: float) -> bool:
        share = exponential**power
        return float(-np.expm1(-size * share / share.sum()).sum()) > union

    return sum(bisect(0.0, 8.0, 50, even)) / 2


@dataclass(frozen=True)
class PlanSettings:
    """All that a plan depends on; ``loads`` says what clients need of each shared and derived table.

    ``largest_set`` is the most rows that one client brings to the union, in all shared tables; the union is
    planned for so many from each, or for ``capacity``. ``min_contributors`` None is the least that keeps
    rows opened alone below ``bound`` at ``tolerated`` dropout. ``dropout`` is the share of clients that
    vanish before they answer an exchange.
    """

    clients: int
    model: ModelSpec
    loads: Mapping[str, Load]
    privacy: IndexPrivacy = PRESETS["cpp2"]
    dropout: Mapping[str, float] = field(default_factory=dict)
    min_contributors: int | None = None
    tolerated: float = DEFAULT_DROPOUT
    bound: float = DEFAULT_BOUND
    threshold: int | None = None
    largest_set: int | None = None
    capacity: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    ring: Literal["z32", "z64"] = "z32"
    id_length: int = 10

    def __post_init__(self) -> None:
        if not 2 <= self.clients <= MAX_COMPLETE:
            raise ParameterError(
                f"{self.clients} clients in a round; 2 to {MAX_COMPLETE} are possible, a larger fleet runs "
                "several cohorts side by side"
            )
        for table in self.model.summed:
            expected = SharedLoad if table.source is None else DerivedLoad
            if not isinstance(self.loads.get(table.name), expected):
                raise ParameterError(f"the plan needs to know what clients have of table {table.name!r}")
        for exchange, rate in self.dropout.items():
            if exchange not in ORDER or not 0 <= rate < 1:
                raise ParameterError(
                    f"a dropout of {rate} at {exchange!r}: shares are from 0 to below 1, the exchanges are "
                    f"{', '.join(ORDER)}"
                )
        if self.min_contributors is not None and self.min_contributors < 1:
            raise ParameterError("min_contributors is 1 (the paper) or more")
        if self.id_length < 1:
            raise ParameterError("a client's id has at least one letter")

    @property
    def needed(self) -> int:
        return self.threshold or default_threshold(self.clients)

    def shared(self, table: str) -> SharedLoad:
        load = self.loads[table]
        assert isinstance(load, SharedLoad)  # noqa: S101 - __post_init__ saw to it
        return load

    @property
    def set_size(self) -> float:
        """A client has so many rows of all shared tables, on average."""
        return sum(load.per_client for load in self.loads.values() if isinstance(load, SharedLoad))

    def heard(self) -> dict[str, int]:
        """Return how many clients are expected to answer each exchange."""
        left = float(self.clients)
        heard: dict[str, int] = {Exchange.CHECK_IN: self.clients}
        for exchange in ORDER:
            left *= 1 - self.dropout.get(exchange, 0.0)
            heard[exchange] = round(left)
        short = [exchange for exchange, count in heard.items() if count < self.needed]
        if short:
            raise ParameterError(
                f"{heard[short[0]]} clients are expected to answer {short[0]!r}, {self.needed} are needed: "
                "most rounds would abort. Plan with less dropout or a lower threshold"
            )
        return heard
