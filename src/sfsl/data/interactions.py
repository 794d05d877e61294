"""Interactions of many users with items, stored by column: no Python object per sample."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Bits, Indices, Reals
from sfsl.data.samples import NO_ROW, Column, Samples, tails
from sfsl.errors import InputError

# The last fifty clicks say what a user is after; longer histories cost time in proportion.
MAX_HISTORY = 50
# Users who clicked nearly everything may have fewer drawn items than others.
_ALIKE = 0.99
# The columns that hold rows, and of which table; those of categories stand in step with others.
TABLES = {"user": "user", "item": "item", "history": "item"}
CATEGORY_TABLES = {"item_category": "category", "history_category": "category"}
CATEGORY_FOLLOWS = {"item_category": "item", "history_category": "history"}


@dataclass(frozen=True, repr=False)
class Interactions:
    """Samples user after user, each user's in time order: those of user k are ``offsets[k]:offsets[k+1]``.

    Users and items are numbered from 0, which are their rows in the tables ``user`` and ``item``;
    ``users`` and ``items`` hold their names in the source. What a user has clicked is stored once, in
    ``clicks`` (those of user k: ``click_offsets[k]:click_offsets[k+1]``); the history of a sample is the
    part ``history_start:history_stop`` of its user's clicks. ``category_of`` is the public map from item
    to category. ``probability`` is the true chance of a click, where a generator knows it.
    """

    users: Column
    items: Column
    offsets: Indices
    item: NDArray[np.int32]
    label: NDArray[np.int8]
    time: Reals
    click_offsets: Indices
    clicks: NDArray[np.int32]
    history_start: NDArray[np.int32]
    history_stop: NDArray[np.int32]
    category_of: NDArray[np.int32] | None = None
    categories: Column | None = None
    probability: Reals | None = None

    def __len__(self) -> int:
        return len(self.item)

    def __repr__(self) -> str:
        return f"Interactions(<{len(self)} samples of {len(self.users)} users>)"

    @property
    def clients(self) -> Indices:
        """The users that have samples."""
        return np.flatnonzero(np.diff(self.offsets)).astype(np.int64)

    @property
    def drawn_beside(self) -> bool:
        """Whether what was not clicked was drawn beside what was, as ``with_negatives`` does: of every user
        there is the same whole number of it for each click, or of nearly every one."""
        sizes, clicks = np.diff(self.offsets), np.bincount(self.user, self.label == 1, len(self.users))
        each = round(len(self) / max(1.0, clicks.sum()))
        return each > 1 and bool((sizes == each * clicks)[sizes > 0].mean() >= _ALIKE)

    @property
    def user(self) -> Indices:
        """The user of each sample."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.offsets))

    def client(self, user: int, max_history: int = MAX_HISTORY) -> Samples:
        """All samples of one user."""
        if not 0 <= user < len(self.users):
            raise InputError(f"there is no user {user}; there are {len(self.users)}")
        return self.samples(np.arange(self.offsets[user], self.offsets[user + 1]), max_history)

    def samples(self, positions: ArrayLike, max_history: int = MAX_HISTORY) -> Samples:
        """Any samples, by their positions, with the last ``max_history`` items of each history."""
        chosen = np.asarray(positions, dtype=np.int64)
        user = np.searchsorted(self.offsets, chosen, side="right") - 1
        stop = self.history_stop[chosen].astype(np.int64)
        length = np.minimum(stop - self.history_start[chosen], max_history)
        columns: dict[str, Column] = {
            "user": user,
            "item": self.item[chosen].astype(np.int64),
            "history": tails(self.clicks, self.click_offsets[user] + stop, length),
            "label": self.label[chosen].astype(np.float32),
        }
        if self.category_of is not None:
            columns["item_category"] = self.category_of[columns["item"]].astype(np.int64)
            history = columns["history"]
            columns["history_category"] = np.where(history >= 0, self.category_of[history], NO_ROW)
            return Samples(columns, TABLES | CATEGORY_TABLES, CATEGORY_FOLLOWS)
        return Samples(columns, TABLES)

    def select(self, chosen: Bits) -> "Interactions":
        """Keep only the chosen samples. All users stay, so that their numbers do."""
        return self.at(chosen, np.concatenate([[0], np.cumsum(chosen)])[self.offsets])

    def at(self, chosen: Bits | Indices, offsets: Indices) -> "Interactions":
        """The samples at these places, user after user: ``offsets`` says where each user's begin now."""
        columns = ("item", "label", "time", "history_start", "history_stop", "probability")
        held: dict[str, Any] = {name: getattr(self, name) for name in columns}
        taken: dict[str, Any] = {name: one if one is None else one[chosen] for name, one in held.items()}
        return replace(self, offsets=offsets, **taken)

    def chunks(self, size: int = 4096, max_history: int = MAX_HISTORY) -> Iterator[Samples]:
        """All samples in turn, some at a time: histories filled up to equal length take room."""
        for start in range(0, len(self), size):
            yield self.samples(np.arange(start, min(start + size, len(self))), max_history)


def hold_out_last(interactions: Interactions, share: float = 0.2) -> tuple[Interactions, Interactions]:
    """Split off each user's last samples in time, rounded down: a user with four keeps them for training."""
    if not 0 < share < 1:
        raise InputError(f"a share of {share} cannot be held out; it must lie between 0 and 1")
    sizes = np.diff(interactions.offsets)
    last = interactions.offsets[1:] - np.floor(share * sizes + 1e-9).astype(np.int64)
    held = np.arange(len(interactions)) >= np.repeat(last, sizes)
    return interactions.select(~held), interactions.select(held)
