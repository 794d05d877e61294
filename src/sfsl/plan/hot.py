"""What rounds over hot rows will cost and what they can learn, before anything runs: epsilon, bytes, CPU,
which rows become hot, and whether the fleet is large enough for any of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.crypto.ring import Z32
from sfsl.crypto.secret import SHARE_BYTES, SystemRandomness
from sfsl.data.catalogue import CatalogueStatistics
from sfsl.errors import ParameterError
from sfsl.plan.plan import measure
from sfsl.plan.settings import bisect
from sfsl.privacy.accounting import epsilon_of, honest_survivors, multiplier, plan_noise
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.rounds.hot import LEAST_DEVIATIONS
from sfsl.rounds.params import HotRules
from sfsl.secagg.facade import cpu_seconds, mask_seconds
from sfsl.secagg.graph import default_graph
from sfsl.secagg.messages import MAX_COMPLETE, default_threshold
from sfsl.submodel import ModelSpec

# A model that learns at all takes about so many rounds.
FEWEST_ROUNDS = 40
# Noise of the mean of a round's updates, as a share of the longest that one client's may be. Above 1 noise is
# longer than any mean can be; from a half on little is learned from a round.
MOST_NOISE = 0.5
# Of what clients touch, so much at the least must be in hot rows.
LEAST_COVERED = 0.1
_KEYS = 200  # bytes of one client's keys in a roster
_BOX = 16 + 2 * SHARE_BYTES
_DRAWS = 1 << 16


@dataclass(frozen=True)
class Owners:
    """A table by how many of a fleet's clients have its rows: so many ``rows`` with so many ``owners``."""

    owners: Reals
    rows: Reals

    @property
    def touches(self) -> float:
        return float(self.owners @ self.rows)


def owners_known(known: CatalogueStatistics) -> dict[str, Owners]:
    """Return the owners that a catalogue counted."""
    found = {}
    for name, pairs in known.owners.items():
        owners, rows = np.array(pairs, np.float64).reshape(-1, 2).T
        found[name] = Owners(owners, rows)
    return found


def owners_assumed(rows: int, fleet: int, per_client: float) -> Owners:
    """Assume owners where nothing is known: as many as 1 / rank, of whoever is there."""
    weight, all_rows = 1 / np.arange(1, rows + 1), fleet * per_client
    # The most popular rows are capped by the fleet, so the rest has a little more.
    _, high = bisect(0.0, all_rows, 100, lambda one: bool(np.minimum(fleet, one * weight).sum() < all_rows))
    return Owners(np.minimum(fleet, high * weight), np.ones(rows))


@dataclass(frozen=True)
class HotPlan:
    """The prediction. ``rounds``: how many a fleet has budget for. ``owners_needed``: of a survey's clients,
    so many must have a row before it counts as hot. ``covered``: share of what clients touch that is in hot
    rows, by table. ``noise_share``: length of the noise in a mean update, as a share of the longest that a
    client's may be. ``problems`` say why the fleet is too small; none: it is not."""

    clients: int
    fleet: int
    epsilon: float
    delta: float
    participations: int
    rounds: int
    honest: int
    neighbours: int
    rho_survey: float
    rho_round: float
    epsilon_round: float
    owners_needed: float
    hot_rows: dict[str, float]
    covered: dict[str, float]
    words: int
    bytes_up: float
    bytes_down: float
    client_seconds: float
    noise_seconds: float
    server_seconds: float
    noise_share: float
    problems: tuple[str, ...]

    @property
    def large_enough(self) -> bool:
        return not self.problems


def plan_hot_rounds(
    model: ModelSpec,
    owners: Mapping[str, Owners],
    *,
    fleet: int,
    clients: int,
    per_client: float,
    epsilon: float,
    delta: float,
    participations: int,
    rules: HotRules,
    survey_share: float = 0.1,
    bins: int = 32,
    precision: str = "float16",
    dropout: float = 0.1,
) -> HotPlan:
    """Predict rounds of ``clients`` out of a ``fleet`` whose members have ``per_client`` rows each, with
    ``owners`` by shared table. Of derived tables all rows are taken to be hot that fit half of the room."""
    if not 2 <= clients <= fleet:
        raise ParameterError(f"{clients} clients a round out of a fleet of {fleet}: 2 at least, and no more")
    noise = plan_noise(epsilon, delta, participations, survey_share=survey_share)
    least, neighbours, threshold = shape(clients)
    honest = honest_survivors(least, clients, rules.corruption)
    lasting, exact = math.ceil((1 - dropout) * clients), math.isinf(epsilon)
    room = rules.words(model, bins, precision)
    # The survey: how many marks a row with so many owners gets, and how much noise is in that count.
    spread = 0.0 if exact else multiplier(noise.rho_survey) * math.sqrt(rules.marks * lasting / honest)
    surveyed, marked = min(fleet, rules.surveys * lasting), min(1.0, rules.marks / max(1.0, per_client))
    spread *= math.sqrt(rules.surveys)
    needed = max(1.0, LEAST_DEVIATIONS * spread)
    hot, covered, left = dict[str, float](), dict[str, float](), room
    for table in sorted(model.summed, key=lambda one: one.kind):
        if table.source is not None:
            hot[table.name] = float(min(table.rows, room // 2 // table.width))
            covered[table.name] = hot[table.name] / table.rows
        else:
            hot[table.name], covered[table.name] = _hot(
                owners[table.name], marked * surveyed / fleet, needed, spread, left / table.width
            )
        left -= int(hot[table.name] * table.width)
    words = int(model.dense + sum(hot[one.name] * one.width for one in model.summed) + 2 * bins + 1)
    share = noise_share(noise.rho_train, words, lasting, honest)
    rounds = fleet * participations // clients
    client, drawing, server = _seconds(words, clients, lasting, neighbours, threshold, noisy=not exact)
    bytes_up, bytes_down = hot_bytes(model, words - model.dense - 2 * bins - 1, bins, precision, neighbours)
    shared = [covered[table.name] for table in model.summed if table.source is None]
    return HotPlan(
        clients=clients,
        fleet=fleet,
        epsilon=epsilon,
        delta=delta,
        participations=participations,
        rounds=rounds,
        honest=honest,
        neighbours=neighbours,
        rho_survey=noise.rho_survey,
        rho_round=noise.rho_train,
        epsilon_round=epsilon_of(noise.rho_train, delta),
        owners_needed=needed,
        hot_rows=hot,
        covered=covered,
        words=words,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        client_seconds=client,
        noise_seconds=drawing,
        server_seconds=server,
        noise_share=share,
        problems=tuple(_problems(share, rounds, max(shared, default=1.0), clients)),
    )


def hot_bytes(
    model: ModelSpec, row_words: int, bins: int, precision: str, neighbours: int
) -> tuple[float, float]:
    """Return what a client sends and receives in a round that trains so many parameters of hot rows."""
    words, size = model.dense + row_words + 2 * bins + 1, np.dtype(precision).itemsize
    up = 4 * words + neighbours * (_BOX + SHARE_BYTES + 8) + _KEYS
    return up, 4 * model.dense + size * row_words + neighbours * (_KEYS + _BOX + 16)


def noise_share(rho: float, words: int, clients: int, honest: int) -> float:
    """Return how long the noise in the mean of so many vectors is, as a share of the longest one's length."""
    return 0.0 if math.isinf(rho) else multiplier(rho) * math.sqrt(clients / honest * words) / clients


def shape(clients: int) -> tuple[int, int, int]:
    """Return how many of a cohort must last, with how many each shares masks, and how many open a secret."""
    if clients <= MAX_COMPLETE:
        return default_threshold(clients), clients - 1, default_threshold(clients)
    graph = default_graph(clients)
    return graph.survivors, graph.neighbours, graph.threshold


def _hot(table: Owners, marks: float, needed: float, spread: float, room: float) -> tuple[float, float]:
    """Return how many rows are expected to be hot, and which share of all touches is in them. ``marks`` are
    those of a row in the surveys, for each of its owners."""
    expected = marks * table.owners
    # Counts scatter by chance and by noise; a normal distribution is near enough.
    scatter = np.sqrt(np.maximum(expected, 1e-9) + spread**2)
    chance = np.array([0.5 * math.erfc(one) for one in (needed - expected) / scatter / math.sqrt(2)])
    rows = chance * table.rows
    order = np.argsort(-expected, kind="stable")
    kept = np.clip(room - np.concatenate([[0.0], np.cumsum(rows[order])[:-1]]), 0, rows[order])
    return float(kept.sum()), float(kept @ table.owners[order]) / max(table.touches, 1e-9)


def _seconds(
    words: int, clients: int, lasting: int, neighbours: int, threshold: int, *, noisy: bool
) -> tuple[float, float, float]:
    speed, mask = measure(min(clients, neighbours + 1), min(threshold, neighbours + 1)), mask_seconds(Z32)
    draw = cpu_seconds(lambda: DiscreteGaussian(1000.0).draw(_DRAWS, SystemRandomness()), 1) / _DRAWS
    noise = draw * words if noisy else 0.0
    client = neighbours * (2 * speed.agreement + 2 * speed.seal + words * mask) + 2 * speed.share
    client += words * (mask + speed.quantize) + noise
    gone = clients - lasting
    server = clients * (2 * speed.agreement + 2 * neighbours * speed.item + speed.rebuild)
    server += lasting * words * (2 * mask + 4 * (speed.decode + speed.digest))
    server += gone * neighbours * (lasting / clients) * (speed.agreement + words * mask)
    return client, noise, server


def _problems(share: float, rounds: int, covered: float, clients: int) -> list[str]:
    """Say what keeps this from working, and what it would take."""
    found = []
    if share > MOST_NOISE:
        enough = math.ceil(clients * (share / MOST_NOISE))
        found.append(
            f"noise in a mean update is {share:.2g} times as long as a client's update may be, where "
            f"{MOST_NOISE:g} is bearable: take about {enough:,} clients a round, fewer participations, or a "
            "larger epsilon"
        )
    if rounds < FEWEST_ROUNDS:
        found.append(
            f"the budget is for {rounds:,} rounds, and learning takes {FEWEST_ROUNDS} or more: more users, "
            "more participations, or fewer clients a round"
        )
    if covered < LEAST_COVERED:
        found.append(
            f"hot rows cover {covered:.1%} of what clients touch: too few clients have a row in common. What "
            "helps is a larger survey (more clients, hot.surveys), or items of a coarser kind"
        )
    return found
