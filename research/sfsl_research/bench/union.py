"""What a private set union costs, on sets with a given share of elements that only one client holds."""

import time
from statistics import median
from typing import Any

import numpy as np

from sfsl.arrays import Indices
from sfsl.errors import InputError
from sfsl.union import private_set_union

# Owners of an element that several clients hold, on average: with 86.7 % of the union held by one client
# this gives the paper's 1.17 owners per element.
SHARED_OWNERS = 2.28


def bench_union(
    clients: int,
    domain: int,
    set_size: int,
    unique: float,
    *,
    dropout: float = 0.0,
    encoding: str = "auto",
    capacity: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Run one union, check it against the plain union of the survivors, and report its cost."""
    if not 0 <= dropout < 1:
        raise InputError(f"--dropout {dropout} is not a fraction below 1")
    rng = np.random.default_rng(seed)
    sets = simulated_sets(rng, clients, domain, set_size, unique)
    dropped = rng.choice(sorted(sets), round(dropout * clients), replace=False).tolist()
    start = time.perf_counter()
    result = private_set_union(sets, domain=domain, encoding=encoding, capacity=capacity, dropped=dropped)
    wall = time.perf_counter() - start
    alive = sorted(result.survivors)
    held, owners = np.unique(np.concatenate([sets[name] for name in alive]), return_counts=True)
    missing = np.setdiff1d(held, result.indices)
    if len(missing):
        raise AssertionError(f"{len(missing)} indices are missing from the union")
    cost = result.cost
    up = round(float(np.mean([cost.client_bytes_up[name] for name in alive])))
    down = round(float(np.mean([cost.client_bytes_down[name] for name in alive])))
    return {
        "clients": clients,
        "domain": domain,
        "set_size": set_size,
        "unique": unique,
        "unique_measured": float(np.mean(owners == 1)),
        "owners_mean": float(np.mean(owners)),
        "dropout": dropout,
        "seed": seed,
        "encoding": result.encoding,
        "reason": result.reason,
        "capacity": result.capacity,
        "union_size": len(result.indices),
        "false_positives": len(result.indices) - len(held),
        "false_positives_expected": result.false_positives_expected,
        "client_bytes_up": up,
        "client_bytes_down": down,
        "client_mib": (up + down) / 2**20,
        "vector_bytes": result.vector_bytes,
        "union_bytes_per_index": result.packed_bytes / max(1, len(result.indices)),
        "client_seconds": median(cost.client_seconds[name] for name in alive),
        "server_seconds": cost.server_seconds,
        "protocol_seconds": wall,
    }


def simulated_sets(
    rng: np.random.Generator, clients: int, domain: int, set_size: int, unique: float
) -> dict[str, Indices]:
    """Sets of ``set_size`` indices, a share ``unique`` of whose union is held by one client only."""
    if clients < 2 or set_size < 1 or not 0 <= unique <= 1:
        raise InputError("at least 2 clients, sets of at least 1 index and a share in 0..1 are needed")
    incidences = clients * set_size
    union = round(incidences / (unique + (1 - unique) * SHARED_OWNERS))
    if union > domain:
        raise InputError(f"a union of {union} indices does not fit a domain of {domain}")
    alone = round(unique * union / clients)  # per client; the rest of each set is shared
    # Consecutive places in a row of random orders of the clients are different clients: they own an element.
    places = np.concatenate([rng.permutation(clients) for _ in range(set_size - alone)] or [np.zeros(0, int)])
    sizes = 2 + (rng.random(len(places)) < SHARED_OWNERS - 2)
    element = np.repeat(np.arange(len(sizes)), sizes)[: len(places)]
    count = int(element[-1]) + 1 if len(places) else 0
    indices = _distinct(rng, domain, count + clients * alone)
    shared, own = indices[:count], indices[count:].reshape(clients, alone)
    return {
        f"client-{number:05d}": np.unique(np.concatenate([own[number], shared[element[places == number]]]))
        for number in range(clients)
    }


def _distinct(rng: np.random.Generator, domain: int, count: int) -> Indices:
    """``count`` distinct random indices, without listing the domain."""
    if count > domain:
        raise InputError(f"{count} distinct indices do not fit a domain of {domain}")
    if domain <= 4 * count:
        return rng.permutation(domain)[:count].astype(np.int64)
    found = np.zeros(0, np.int64)
    while len(found) < count:
        more = rng.integers(0, domain, 2 * count, dtype=np.uint64).astype(np.int64)
        found = np.unique(np.concatenate([found, more]))
    return rng.permutation(found)[:count]
