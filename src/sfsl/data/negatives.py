"""Negatives for data that record clicks only."""

from dataclasses import replace

import numpy as np

from sfsl.arrays import Indices
from sfsl.data.interactions import Interactions
from sfsl.errors import InputError

TRIES = 20


def with_negatives(interactions: Interactions, per_click: int = 1, *, seed: int) -> Interactions:
    """Put, beside each click, ``per_click`` items that the user never clicked, drawn uniformly.

    A negative stands at the time of its click and has the same history. In the rare case that a user
    has clicked nearly everything and nothing else is found, the draw stays as it is.
    """
    if per_click < 1:
        raise InputError(f"{per_click} negatives per click cannot be drawn; take at least 1")
    rng = np.random.default_rng(seed)
    click = np.flatnonzero(interactions.label == 1)
    beside = np.repeat(click, per_click)
    drawn = _not_clicked(interactions, interactions.user[beside], rng)
    # A stable sort by the sample they belong to puts negatives right behind their click.
    order = np.argsort(np.concatenate([np.arange(len(interactions)), beside]), kind="stable")
    source = np.concatenate([np.arange(len(interactions)), beside])[order]
    fresh = np.concatenate([np.zeros(len(interactions), dtype=bool), np.ones(len(beside), dtype=bool)])[order]
    item = interactions.item[source]
    item[fresh] = drawn
    label = interactions.label[source]
    label[fresh] = 0
    return replace(
        interactions,
        offsets=np.searchsorted(source, interactions.offsets).astype(np.int64),
        item=item,
        label=label,
        time=interactions.time[source],
        history_start=interactions.history_start[source],
        history_stop=interactions.history_stop[source],
        probability=None,
    )


def _not_clicked(interactions: Interactions, user: Indices, rng: np.random.Generator) -> Indices:
    items = len(interactions.items)
    clicked = interactions.label == 1
    known = np.unique(interactions.user[clicked] * items + interactions.item[clicked])
    drawn = rng.integers(0, items, len(user))
    for _ in range(TRIES):
        taken = np.isin(user * items + drawn, known)
        if not taken.any():
            break
        drawn[taken] = rng.integers(0, items, int(taken.sum()))
    return drawn
