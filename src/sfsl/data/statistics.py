"""How large clients are, and how much they have in common."""

from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Indices
from sfsl.data.interactions import Interactions


@dataclass(frozen=True)
class Statistics:
    """Means per client; and over random cohorts, of the union of their items: its size, the share that
    exactly one client holds, and how many hold an item on average.
    """

    samples: float
    items: float
    categories: float | None
    union: float
    single: float
    owners: float


def describe(data: Interactions, *, cohort: int = 100, cohorts: int = 30, seed: int = 0) -> Statistics:
    """What data look like to a cohort of so many clients, from ``cohorts`` random ones."""
    held = [items_of(data, int(user)) for user in data.clients]
    rng = np.random.default_rng(seed)
    owners = [
        np.unique(np.concatenate([held[one] for one in chosen]), return_counts=True)[1]
        for _ in range(cohorts)
        for chosen in [rng.choice(len(held), min(cohort, len(held)), replace=False)]
    ]
    category_of, categories = data.category_of, None
    if category_of is not None:
        categories = float(np.mean([len(np.unique(category_of[one])) for one in held]))
    return Statistics(
        samples=len(data) / len(held),
        items=float(np.mean([len(one) for one in held])),
        categories=categories,
        union=float(np.mean([len(one) for one in owners])),
        single=float(np.mean([(one == 1).mean() for one in owners])),
        owners=float(np.mean([one.mean() for one in owners])),
    )


def items_of(data: Interactions, user: int) -> Indices:
    """The items a client's samples touch, histories of any length included, without laying these out."""
    own = slice(data.offsets[user], data.offsets[user + 1])
    clicks = data.clicks[data.click_offsets[user] : data.click_offsets[user + 1]]
    inside = clicks[data.history_start[own].min(initial=len(clicks)) : data.history_stop[own].max(initial=0)]
    return np.unique(np.concatenate([data.item[own], inside])).astype(np.int64)


def owned_items(data: Interactions) -> tuple[Indices, Indices]:
    """All pairs of a user and an item that ``items_of`` it names, each once: the users, and the items."""
    user, items = data.user, len(data.items)
    clicker = np.repeat(np.arange(len(data.users)), np.diff(data.click_offsets))
    depth = np.zeros(len(data.clicks) + 1, np.int64)  # how many samples have a click in their history
    np.add.at(depth, data.click_offsets[user] + data.history_start, 1)
    np.add.at(depth, data.click_offsets[user] + data.history_stop, -1)
    seen = np.cumsum(depth[:-1]) > 0
    pairs = np.unique(np.concatenate([user * items + data.item, clicker[seen] * items + data.clicks[seen]]))
    return pairs // items, pairs % items
