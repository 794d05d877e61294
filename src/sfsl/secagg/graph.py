"""What a session is planned with: whose masks meet, and how few may open a row.

On a sparse graph two things must hold whatever fraction of clients drops out or colludes with the
server: no client has ``threshold`` corrupt neighbours (they could open its secrets), and the honest
survivors stay connected (otherwise the server learns one sum per component). And for the sum to
come out, every client must keep ``threshold`` neighbours. ``plan_graph`` finds the smallest degree
for which all three fail with at most a given probability, and the threshold that goes with it.

The server sees a row's sum. With one contributor the sum *is* that client's row, and a row with c
requesters becomes such a row when c - 1 of them drop out after asking. So rows with fewer than
``min_contributors`` requesters are left out by everyone. With m, a row still hides each honest
requester if up to m - 2 of the others collude with the server.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.crypto.ring import Z64, MaskStream, Words
from sfsl.crypto.secret import Secret, digest
from sfsl.errors import ParameterError
from sfsl.secagg.messages import SessionParams

Peers = tuple[tuple[int, ...], ...]
DEFAULT_DROPOUT = 0.1
DEFAULT_BOUND = 0.05
# What a sparse graph withstands unless its caller says otherwise.
SPARSE_DROPOUT = 0.2
SPARSE_CORRUPTION = 0.1
SPARSE_FAILURE = 2.0**-40


def peers(params: SessionParams, root: bytes | None) -> Peers:
    """Each position's peers, ascending. On a sparse graph they follow from the round id and the roster."""
    if params.neighbours is None:
        everyone = range(params.clients)
        return tuple(tuple(k for k in everyone if k != i) for i in everyone)
    return random_cycles(params.clients, params.neighbours, seed_of(params.round_id, root or b""))


def peers_of(params: SessionParams, root: bytes, position: int) -> list[int]:
    """The peers of one position on a sparse graph, ascending, without computing those of the others."""
    assert params.neighbours is not None  # noqa: S101
    cycles, stream = params.neighbours // 2, MaskStream(Secret(seed_of(params.round_id, root)), Z64)
    words, found = Z64.zeros(params.clients), set[int]()
    for _ in range(cycles):
        stream.fill(words)
        found.update(around(words, position))
    return sorted(found - {position})


def seed_of(round_id: bytes, root: bytes) -> bytes:
    """What the cycles of a session are drawn from: whoever changes a member changes all of them."""
    return digest("graph", round_id, root)


def around(words: Words, own: int) -> tuple[int, int]:
    """Who stands before and after a position in a cycle in ascending order of words, ties by position."""
    ahead = words - words[own]  # wraps: how far up each one is on the circle of words
    if np.count_nonzero(ahead == 0) > 1:
        order = np.argsort(words, kind="stable")
        place = int(np.flatnonzero(order == own)[0])
        return int(order[place - 1]), int(order[(place + 1) % len(order)])
    before = len(words) - 1 - int(np.argmax(ahead[::-1]))
    return before, int(np.argmin(ahead - np.uint64(1)))  # its own distance, 0, becomes the greatest


def random_cycles(clients: int, neighbours: int, seed: bytes) -> Peers:
    """The union of ``neighbours / 2`` random cycles through all clients. Cycle c visits the positions in the
    order of their 64-bit words in a stream under the public seed, ties by position. Edges that occur
    twice count once, so a degree may fall a little short."""
    if neighbours % 2 or not 2 <= neighbours < clients:
        raise ParameterError(
            f"{neighbours} neighbours among {clients} clients: an even number below the cohort size is needed"
        )
    words = Z64.zeros(neighbours // 2 * clients)
    MaskStream(Secret(seed), Z64).fill(words)
    order = np.argsort(words.reshape(-1, clients), axis=1, kind="stable")
    ahead = np.roll(order, -1, axis=1)
    edges = np.unique(np.concatenate((order * clients + ahead, ahead * clients + order), axis=None))
    ends = np.searchsorted(edges, np.arange(1, clients) * clients)
    return tuple(tuple(near.tolist()) for near in np.split(edges % clients, ends))


@dataclass(frozen=True)
class GraphPlan:
    """A degree, its threshold, and bounds on what can go wrong."""

    neighbours: int
    threshold: int
    opened: float  # some client has `threshold` corrupt neighbours
    split: float  # the honest survivors are not connected
    stuck: float  # some client keeps fewer than `threshold` share holders
    survivors: int = 2  # the bounds hold while at least so many of the cohort are left


@lru_cache(maxsize=64)
def plan_graph(clients: int, *, dropout: float, corruption: float, failure: float) -> GraphPlan:
    """The smallest even degree with a threshold that keeps every failure below ``failure``."""
    if clients < 3:
        raise ParameterError(f"a sparse graph needs at least 3 clients, not {clients}")
    if not (0 <= dropout < 1 and 0 <= corruption < 1 and dropout + corruption < 1):
        raise ParameterError("dropout and corruption are fractions that add up to less than 1")
    if not 0 < failure < 1:
        raise ParameterError("failure is a probability between 0 and 1")
    dropped, corrupt = ceil(dropout * clients), ceil(corruption * clients)
    honest = clients - dropped - corrupt
    if honest < 2:
        raise ParameterError("fewer than two honest clients would be left")
    splits = _split_by_one_cycle(honest, clients - honest)
    # One step adds one cycle: exact distributions of distinct corrupt and of distinct lasting neighbours.
    bad = lasting = np.eye(1, clients)[0]  # none so far, for certain
    for cycles in range(1, (clients - 1) // 2 + 1):
        bad = _one_more_cycle(bad, clients - 1, corrupt)
        lasting = _one_more_cycle(lasting, clients - 1, clients - 1 - dropped)
        split = float(np.exp(min(0.0, np.logaddexp.reduce(splits[0] + cycles * splits[1]))))
        if split > failure:
            continue
        at_least = np.cumsum(bad[::-1])[::-1]
        for threshold in range(2, 2 * cycles + 1):
            opened = min(1.0, clients * float(at_least[threshold]))
            if opened <= failure:
                # A surviving client holds a share of its own seed; a dropped one does not count itself.
                stuck = min(1.0, clients * float(lasting[:threshold].sum()))
                if stuck <= failure:
                    return GraphPlan(2 * cycles, threshold, opened, split, stuck, clients - dropped)
                break
    raise ParameterError(
        f"no sparse graph on {clients} clients tolerates {dropout:.0%} dropouts and {corruption:.0%} corrupt "
        f"clients with failure {failure:g}; use the complete graph or tolerate less"
    )


def default_graph(
    clients: int,
    *,
    dropout: float = SPARSE_DROPOUT,
    corruption: float = SPARSE_CORRUPTION,
    failure: float = SPARSE_FAILURE,
) -> GraphPlan:
    """The graph for a cohort that is too large for a complete one. Its ``survivors`` are what to promise as
    ``least_survivors``: with fewer, the honest ones may fall apart into several sums."""
    return plan_graph(clients, dropout=dropout, corruption=corruption, failure=failure)


def _one_more_cycle(distribution: NDArray[np.float64], others: int, marked: int) -> NDArray[np.float64]:
    """Distinct marked neighbours after one more cycle, which adds a uniform pair of the others."""
    found = np.arange(len(distribution))
    new = np.clip(marked - found, 0, None).astype(np.float64)
    old = others - new
    pairs = others * (others - 1)
    after: NDArray[np.float64] = distribution * (old * (old - 1) / pairs)
    after[1:] += (distribution * (2 * new * old / pairs))[:-1]
    after[2:] += (distribution * (new * (new - 1) / pairs))[:-2]
    return after


def _split_by_one_cycle(honest: int, gone: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For s = 1 … honest/2: log of the number of s-sets, and log of the probability that one random
    cycle has no edge between a given s-set of the honest and the other honest clients.

    The ``gone`` clients cut the cycle into as many gaps; each gap must hold clients of one side only.
    With a gaps for the s-set: C(gone, a) C(s-1, a-1) ways to place it, and the other side fills the
    remaining gaps freely (stars and bars), out of C(honest, s) C(honest+gone-1, gone-1).
    """
    sizes = np.arange(1, honest // 2 + 1)
    ways = _log_choose(honest, sizes)
    logs = np.full(len(sizes), -np.inf)
    if gone < 2:
        return ways, logs
    total = _log_choose(honest + gone - 1, gone - 1)
    for place, size in enumerate(sizes.tolist()):
        gaps, rest = np.arange(1, min(size, gone - 1) + 1), honest - size
        terms = (
            _log_choose(gone, gaps)
            + _log_choose(size - 1, gaps - 1)
            + _log_choose(gone - gaps + rest - 1, rest)
        )
        logs[place] = np.logaddexp.reduce(terms) - ways[place] - total
    return ways, logs


def _log_choose(n: int | NDArray[np.int64], k: int | NDArray[np.int64]) -> NDArray[np.float64]:
    table = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, np.max(n) + 1)))))
    result: NDArray[np.float64] = table[n] - table[k] - table[n - k]
    return result


def opened_alone(requesters: ArrayLike, dropout: float) -> NDArray[np.float64]:
    """The probability per row with c requesters that exactly one of them uploads, c (1-d) d^(c-1)."""
    counts = np.asarray(requesters, np.float64)
    if not 0 <= dropout < 1:
        raise ParameterError(f"a dropout of {dropout} is not a fraction below 1")
    if counts.size and counts.min() < 0:
        raise ParameterError("a row cannot have fewer than 0 requesters")
    # d^(c-1) is 1 for c = 1 and 0 beyond when nobody drops; rows nobody asked for open nothing.
    alone: NDArray[np.float64] = counts * (1 - dropout) * np.power(dropout, np.maximum(counts - 1, 0))
    return alone


def default_min_contributors(
    requesters: ArrayLike, *, dropout: float = DEFAULT_DROPOUT, bound: float = DEFAULT_BOUND
) -> int:
    """The least m >= 2 for which at most ``bound`` rows are expected to be opened alone. ``requesters`` holds
    the number of requesters of each row, as counted or as planned for."""
    if not bound > 0:
        raise ParameterError(f"the bound on rows opened alone must be above 0, not {bound}")
    counts = np.asarray(requesters, np.int64).ravel()
    by_count = np.bincount(counts, weights=opened_alone(counts, dropout))
    # expected[m]: rows opened alone if rows with fewer than m requesters are left out
    expected = np.append(np.cumsum(by_count[::-1])[::-1], 0.0)
    return max(2, int(np.argmax(expected <= bound)))
