"""From events to interactions: histories, and sampled negatives where only clicks are recorded."""

from collections.abc import Mapping, Sized
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Bits, Indices, Reals
from sfsl.data.interactions import Interactions
from sfsl.data.lines import LoadReport
from sfsl.data.samples import Column
from sfsl.errors import InputError


def assemble(
    user: ArrayLike,
    item: ArrayLike,
    label: ArrayLike,
    time: ArrayLike,
    category: ArrayLike | None = None,
    *,
    report: LoadReport | None = None,
    names: Mapping[str, Column] = MappingProxyType({}),
) -> Interactions:
    """Sort by user and time, number users, items and categories, and take earlier clicks as histories.

    Where ``names`` has those of a column, in their order, its values are places among them.
    """
    users, user_row = np.unique(np.asarray(user), return_inverse=True)
    items, item_row = np.unique(np.asarray(item), return_inverse=True)
    stamps, labels = np.asarray(time, dtype=np.float64), np.asarray(label)
    if not len(users) or not len(user_row) == len(item_row) == len(stamps) == len(labels):
        raise InputError("columns of one length are needed, with at least one sample")
    if not np.isin(labels, (0, 1)).all() or not np.isfinite(stamps).all():
        raise InputError("labels are 0 or 1, and times finite numbers")
    labels = labels.astype(np.int8)
    users = names["user"][users] if "user" in names else users
    items = names["item"][items] if "item" in names else items
    category_of, categories = None, None
    if category is not None:
        called = np.asarray(category)
        called = names["category"][called] if "category" in names else called
        category_of, categories = category_map(item_row, called, items, report)
    order = np.lexsort((stamps, user_row))
    user_row, item_row, labels, stamps = user_row[order], item_row[order], labels[order], stamps[order]
    clicked = labels == 1
    click_offsets = offsets_of(user_row[clicked], len(users))
    return Interactions(
        users=users,
        items=items,
        offsets=offsets_of(user_row, len(users)),
        item=item_row.astype(np.int32),
        label=labels,
        time=stamps,
        click_offsets=click_offsets,
        clicks=item_row[clicked].astype(np.int32),
        history_start=np.zeros(len(item_row), dtype=np.int32),
        history_stop=(clicks_before(user_row, stamps, clicked) - click_offsets[user_row]).astype(np.int32),
        category_of=category_of,
        categories=categories,
    )


def offsets_of(group: Indices, groups: int) -> Indices:
    """Where each group begins in an array sorted by group, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.bincount(group, minlength=groups))]).astype(np.int64)


def clicks_before(user: Indices, time: Reals, clicked: Bits) -> Indices:
    """How many clicks stand before each sample in an array sorted by user and time.

    Clicks at the very same moment do not count: they may be this sample's own, or the click that a
    sampled negative stands beside, and would give the label away.
    """
    before: Indices = np.cumsum(clicked) - clicked
    fresh = np.ones(len(user), dtype=bool)
    fresh[1:] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
    first_of_moment = np.maximum.accumulate(np.where(fresh, np.arange(len(user)), 0))
    return np.asarray(before[first_of_moment], dtype=np.int64)


def category_map(
    item_row: Indices, category: Column, items: Column, report: LoadReport | None
) -> tuple[NDArray[np.int32], Column]:
    """The public map; an item seen in several categories stays in the first."""
    categories, category_row = np.unique(category, return_inverse=True)
    _, first = np.unique(item_row, return_index=True)
    category_of = category_row[first].astype(np.int32)
    others = np.flatnonzero(category_of[item_row] != category_row)
    if report is not None and len(others):
        example = f"item {items[item_row[others[0]]]} in category {category[others[0]]} as well"
        report.note("item in several categories, the first one taken", example, len(others))
    return category_of, categories


def require_usable(report: LoadReport, samples: Sized) -> None:
    """Raise if nothing was usable, with the first reason; else note how much was."""
    report.samples = len(samples)
    if not len(samples):
        reason = next(iter(report.examples.values()), "it has no lines with samples")
        raise InputError(f"{report.source}: nothing in it can be used: {reason}")


TRIES = 20


def with_negatives(interactions: Interactions, per_click: int = 1, *, seed: int) -> Interactions:
    """Put, beside each click, ``per_click`` items that the user never clicked, drawn uniformly.

    A negative stands at the time of its click and has the same history. In the rare case that a user
    has clicked nearly everything and nothing else is found, the draw stays as it is.
    """
    if per_click < 1:
        raise InputError(f"{per_click} negatives per click cannot be drawn; take at least 1")
    rng = np.random.default_rng(seed)
    places = np.arange(len(interactions))
    beside = np.repeat(places[interactions.label == 1], per_click)
    # A stable sort by the sample they belong to puts negatives right behind their click.
    source = np.concatenate([places, beside])
    order = np.argsort(source, kind="stable")
    source, fresh = source[order], order >= len(interactions)
    both = interactions.at(source, np.searchsorted(source, interactions.offsets).astype(np.int64))
    both.item[fresh] = _not_clicked(interactions, interactions.user[beside], rng)
    both.label[fresh] = 0
    return replace(both, probability=None)


def _not_clicked(interactions: Interactions, user: Indices, rng: np.random.Generator) -> Indices:
    items, clicked = len(interactions.items), interactions.label == 1
    known = np.unique(interactions.user[clicked] * items + interactions.item[clicked])
    drawn = rng.integers(0, items, len(user))
    for _ in range(TRIES):
        taken = np.isin(user * items + drawn, known)
        if not taken.any():
            break
        drawn[taken] = rng.integers(0, items, int(taken.sum()))
    return drawn
