"""Everyone's samples in few flat arrays, with rows counted within each client: what a whole fleet trains on.

A client's samples name rows by their position among the client's own rows, which are listed once. So a
cohort is gathered by a handful of array operations, whatever its size, and the arrays can lie in files that
are mapped into memory and copied to a GPU as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Indices
from sfsl.data.interactions import CATEGORY_FOLLOWS, CATEGORY_TABLES, MAX_HISTORY, TABLES, Interactions


@dataclass(frozen=True, repr=False)
class Ragged:
    """Stretches of one flat array: that of place k is ``values[start[k]:stop[k]]``. They may overlap."""

    values: NDArray[Any]
    start: Indices
    stop: Indices


@dataclass(frozen=True, repr=False)
class CompactClients:
    """Samples client after client: those of client k are ``offsets[k]:offsets[k + 1]``.

    ``singles`` and ``sequences`` are the columns, of one value or one stretch per sample; ``tables`` says
    which of them hold positions among the client's rows, and of which table. ``rows[table]`` lists each
    client's rows, ascending. ``derived[table]``: for each row listed for the table's source, the position
    of what is derived from it among the client's rows of this table. ``follows``: columns that are not
    stored, because they are derived from another column, value by value. ``longest``: of the sequences, and
    at least 1.
    """

    offsets: Indices
    singles: Mapping[str, NDArray[Any]]
    sequences: Mapping[str, Ragged]
    rows: Mapping[str, Ragged]
    derived: Mapping[str, NDArray[Any]]
    tables: Mapping[str, str]
    follows: Mapping[str, str]
    longest: int

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"CompactClients(<{int(self.offsets[-1])} samples of {len(self)} clients>)"

    @cached_property
    def samples(self) -> Indices:
        """How many each client has."""
        return np.diff(self.offsets)


def compact(data: Interactions, max_history: int = MAX_HISTORY) -> CompactClients:
    """The samples of all users; those without any stay, so that a user's number is its client's."""
    users, user = len(data.users), data.user
    stop = data.click_offsets[user] + data.history_stop
    start = np.maximum(stop - max_history, data.click_offsets[user] + data.history_start)
    clicker = np.repeat(np.arange(users), np.diff(data.click_offsets))
    seen = _covered(start, stop, len(data.clicks))
    # Each pair of a user and an item, once, in order of user and item: the rows of each user.
    item = _keys(user, data.item, len(data.items))
    click = _keys(clicker, data.clicks, len(data.items))
    pairs = _once(np.concatenate([item, click[seen]]))
    rows, owner = (pairs % len(data.items)).astype(np.int32), pairs // len(data.items)
    first = np.searchsorted(owner, np.arange(users + 1))
    # Where nobody clicked there is a place all the same: a device looks somewhere, and leaves it out.
    history = np.append(np.where(seen, np.searchsorted(pairs, click) - first[clicker], 0), 0)
    listed = {
        "user": Ragged(np.arange(users, dtype=np.int32), np.arange(users), np.arange(1, users + 1)),
        "item": Ragged(rows, first[:-1], first[1:]),
    }
    derived, tables, follows = {}, TABLES, {}
    if data.category_of is not None and data.categories is not None:
        category = _keys(owner, data.category_of[rows], len(data.categories))
        known = _once(category)
        begin = np.searchsorted(known // len(data.categories), np.arange(users + 1))
        listed["category"] = Ragged((known % len(data.categories)).astype(np.int32), begin[:-1], begin[1:])
        derived["category"] = _small(np.searchsorted(known, category) - begin[owner])
        tables, follows = TABLES | CATEGORY_TABLES, CATEGORY_FOLLOWS
    return CompactClients(
        offsets=data.offsets,
        singles={
            "user": np.zeros(len(data), np.int16),
            "item": _small(np.searchsorted(pairs, item) - first[user]),
            "label": data.label.astype(np.float32),
        },
        sequences={"history": Ragged(_small(history), start, stop)},
        rows=listed,
        derived=derived,
        tables=tables,
        follows=follows,
        longest=max(1, int((stop - start).max(initial=0))),
    )


def _keys(user: Indices, row: NDArray[Any], rows: int) -> Indices:
    return np.asarray(user * np.int64(rows) + row)


def _once(keys: Indices) -> Indices:
    """Each key once, in order. ``np.unique`` hashes, which takes three times as long for ten million."""
    ordered = np.sort(keys)
    fresh = np.ones(len(ordered), bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[fresh])


def _covered(start: Indices, stop: Indices, length: int) -> Bits:
    """Which places lie in any of these stretches."""
    depth = np.zeros(length + 1, np.int64)
    np.add.at(depth, start, 1)
    np.add.at(depth, stop, -1)
    return np.cumsum(depth[:-1]) > 0


def _small(places: Indices) -> NDArray[Any]:
    """These places as int16 where that is enough: most clients have fewer than 32,768 rows."""
    return places.astype(np.int16 if places.max(initial=0) < 2**15 else np.int32)
