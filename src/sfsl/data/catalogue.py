"""What a model is about, in public: its tables, how many rows each has, what data call them, and how rows of
one follow from rows of another. There are no samples in it (spec catalogue).

A catalogue grows: rows are appended, and those that were there keep their numbers, their ids and their maps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices
from sfsl.crypto.secret import digest
from sfsl.data.interactions import Interactions
from sfsl.data.lines import BadField, number_id, text_id
from sfsl.data.statistics import owned_items
from sfsl.data.words import Speech
from sfsl.errors import InputError

MOST_ROWS = 2**62
ITEM, CATEGORY, WORD = "item", "category", "word"
_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}

Ids = NDArray[np.int64] | tuple[str, ...]


class CatalogueStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large clients are and how much they have in common, without any of them.

    ``rows``: shared rows of one client, a few quantiles and ``most``. ``owners``: by table, pairs of a
    number of owners from 1 up and how many rows have so many.
    """

    clients: int
    rows: dict[str, int]
    owners: dict[str, list[tuple[int, int]]]


class TableContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One table as it is written."""

    name: str
    rows: int
    ids: list[int | str] | None = None
    source: str | None = None
    map: list[int] | None = None


@dataclass(frozen=True, repr=False, eq=False)
class CatalogueTable:
    """``ids`` are what data call the rows, in their order: whole numbers, or any text; None: a row is called
    by its number. ``map`` has the row of this table that belongs to each row of ``source``."""

    name: str
    rows: int
    ids: Ids | None = None
    source: str | None = None
    map: NDArray[np.integer] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.rows < MOST_ROWS:
            raise InputError(f"table {self.name!r} has {self.rows} rows; from 1 to 2^62 - 1 are possible")
        if self.ids is not None and len(self.ids) != self.rows:
            raise InputError(f"table {self.name!r} has {self.rows} rows and {len(self.ids)} ids")
        if (self.source is None) != (self.map is None):
            raise InputError(f"table {self.name!r}: one that follows from another has a source and a map")
        if self.map is not None and not 0 <= self.map.min(initial=0) <= self.map.max(initial=0) < self.rows:
            raise InputError(f"the map of table {self.name!r} names rows that are not among its {self.rows}")

    def find(self, text: str) -> int:
        """The row that data call so. Raises ``BadField`` where there is none."""
        named: int | str = text_id(text, self.name) if self.textual else number_id(text, self.name)
        row = named if self.ids is None else self._places.get(named)
        if not isinstance(row, int) or row >= self.rows:
            raise BadField(f"{self.name} is not in the model", text)
        return row

    def name_of(self, row: int) -> str:
        return str(row if self.ids is None else self.ids[row])

    @property
    def textual(self) -> bool:
        return isinstance(self.ids, tuple)

    def names(self) -> list[Any]:
        """What data call the rows, where that is not their numbers as well."""
        ids = range(self.rows) if self.ids is None else self.ids
        return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)

    def first(self, rows: int, of_source: int | None) -> Self:
        """What it says of its first ``rows`` rows and of the first ``of_source`` rows of its source."""
        ids = None if self.ids is None else unless_plain(self.ids[:rows])
        return replace(self, rows=rows, ids=ids, map=None if self.map is None else self.map[:of_source])

    @property
    def content(self) -> TableContent:
        ids = None if self.ids is None else self.names()
        follows = None if self.map is None else self.map.tolist()
        return TableContent(self.name, self.rows, ids, self.source, follows)

    def __repr__(self) -> str:
        return f"CatalogueTable({self.name!r}, <{self.rows} rows>)"

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {name: row for row, name in enumerate(self.names())}


@dataclass(frozen=True, repr=False, eq=False)
class Catalogue:
    """What a model is about: its tables and what their rows are called. ``read_catalogue`` reads one.

    ``users`` is the number of rows of the table ``user``, which stays on the devices; 0 where the model has
    none. ``parent`` is the digest of the version that this one grew from.

    >>> import sfsl
    >>> first = sfsl.Catalogue.of_items(["hat", "scarf"])
    >>> second = first.grown(sfsl.Catalogue.of_items(["boot", "hat"]))
    >>> second.version, second.table("item").names()
    (2, ['hat', 'scarf', 'boot'])
    """

    tables: tuple[CatalogueTable, ...]
    users: int = 0
    version: int = 1
    parent: bytes | None = None
    statistics: CatalogueStatistics | None = None

    def __post_init__(self) -> None:
        rows: dict[str, int] = {}
        for table in self.tables:
            if table.name in rows or table.name == "user":
                raise InputError(f"a catalogue has one table {table.name!r} too many")
            if table.map is not None and rows.get(str(table.source)) != len(table.map):
                raise InputError(
                    f"the map of table {table.name!r} has {len(table.map)} rows, its source "
                    f"{table.source!r} has {rows.get(str(table.source), 'none before it')}"
                )
            rows[table.name] = table.rows
        if not rows or self.version < 1 or not 0 <= self.users < MOST_ROWS:
            raise InputError(
                f"a catalogue of {len(rows)} tables and {self.users} users, version {self.version}: at least "
                "one table, users from 0 and versions from 1 up"
            )
        if (self.version == 1) != (self.parent is None):
            raise InputError("every version of a catalogue but the first names the one it grew from")

    @classmethod
    def of(cls, data: Interactions, *, statistics: bool = False) -> Self:
        """The public side of these interactions; with ``statistics`` also what planning needs of them."""
        known = None
        if statistics:
            owner, item = owned_items(data)
            held = {ITEM: item}
            if data.category_of is not None and data.categories is not None:
                count = len(data.categories)
                held[CATEGORY] = np.unique(owner * count + data.category_of[item]) % count
            known = _statistics(np.bincount(owner, minlength=len(data.users))[data.clients], held)
        return cls.of_items(
            data.items, data.categories, data.category_of, users=len(data.users), statistics=known
        )

    @classmethod
    def of_items(
        cls,
        items: ArrayLike,
        categories: ArrayLike | None = None,
        category_of: NDArray[np.integer] | None = None,
        *,
        users: int = 1,
        statistics: CatalogueStatistics | None = None,
    ) -> Self:
        """Make that of a model of clicks, from the ids of items and categories in the order of their rows."""
        tables = [_named(ITEM, items)]
        if categories is not None and category_of is not None:
            tables.append(replace(_named(CATEGORY, categories), source=ITEM, map=np.asarray(category_of)))
        return cls(tuple(tables), users, statistics=statistics)

    @classmethod
    def of_words(cls, vocabulary: Iterable[str], speech: Speech | None = None) -> Self:
        """Make that of a model of words. ``speech``: what clients said in them, if planning should know."""
        words, known = tuple(vocabulary), None
        if speech is not None:
            count = len(speech.vocabulary)
            client = np.repeat(np.arange(len(speech.offsets) - 1), np.diff(speech.offsets))
            pairs = np.unique(client * np.int64(count) + speech.spoken)
            sizes = np.unique(pairs // count, return_counts=True)[1]
            known = _statistics(sizes, {WORD: pairs % count})
        return cls((CatalogueTable(WORD, len(words), words),), statistics=known)

    @classmethod
    def sized(cls, users: int = 0, /, **rows: int) -> Self:
        """Make one with tables of so many rows, which are called by their numbers."""
        return cls(tuple(CatalogueTable(name, count) for name, count in rows.items()), users)

    def __repr__(self) -> str:
        return f"Catalogue(version {self.version}, {', '.join(map(repr, self.tables))})"

    @cached_property
    def _by_name(self) -> dict[str, CatalogueTable]:
        return {table.name: table for table in self.tables}

    def table(self, name: str) -> CatalogueTable:
        if name not in self._by_name:
            raise InputError(f"this catalogue has no table {name!r}; it has {[*self._by_name]}")
        return self._by_name[name]

    def rows(self, name: str) -> int | None:
        """The number of rows of a table, None where there is no such table."""
        return self._by_name[name].rows if name in self._by_name else None

    @cached_property
    def contents(self) -> bytes:
        """32 bytes, others for any other tables; whichever version it is."""
        return digest("catalogue contents", msgspec.json.encode([table.content for table in self.tables]))

    def first(self, rows: Mapping[str, int]) -> Self:
        """What it says of the first rows of each table. Raises ``InputError`` where it does not have them."""
        for table in self.tables:
            if not 1 <= rows.get(table.name, 0) <= table.rows:
                raise InputError(f"table {table.name!r} has {table.rows} rows, not {rows.get(table.name)}")
        tables = (table.first(rows[table.name], rows.get(str(table.source))) for table in self.tables)
        return replace(self, tables=tuple(tables))

    def require_extends(self, old: "Catalogue") -> None:
        """Raise ``InputError`` unless everything that ``old`` says still holds here."""
        sizes = {table.name: table.rows for table in old.tables}
        if [*self._by_name] != [*sizes] or self.users < old.users:
            raise InputError(
                f"it has the tables {[*self._by_name]} and {self.users} users, the older one {[*sizes]} and "
                f"{old.users}"
            )
        try:
            same = self.first(sizes).contents == old.contents
        except InputError as error:
            raise InputError(f"rows of the older one are gone: {error}") from None
        if not same:
            raise InputError("rows of the older one have other ids or other maps here")

    def grown(self, data: "Catalogue") -> Self:
        """The next version: with the rows of ``data`` that are not here yet behind those that are.

        Its statistics are those of ``data`` where that has any, else these.
        """
        if [*self._by_name] != [*data._by_name]:
            raise InputError(
                f"the data have the tables {[*data._by_name]}, the catalogue {[*self._by_name]}: growth adds "
                "rows, not tables"
            )
        grown: dict[str, CatalogueTable] = {}
        for own, given in zip(self.tables, data.tables, strict=True):
            merged = _with_names(own, given)
            if own.source is not None:
                sources = self.table(own.source), data.table(own.source), grown[own.source]
                merged = replace(merged, source=own.source, map=_grown_map(own, given, merged, sources))
            grown[own.name] = merged
        if all(grown[table.name].rows == table.rows for table in self.tables):
            raise InputError("nothing in the data is new: the catalogue stays as it is")
        return replace(
            self,
            tables=tuple(grown.values()),
            users=max(self.users, data.users),
            version=self.version + 1,
            parent=self.digest,
            statistics=data.statistics or self.statistics,
        )

    @property
    def public(self) -> bytes:
        """The bytes that clients are given, from which its digest is taken: all but the statistics."""
        return msgspec.json.encode(self._written(None))

    @cached_property
    def digest(self) -> bytes:
        return catalogue_digest(self.public)

    @property
    def whole(self) -> bytes:
        """The bytes of its file."""
        return msgspec.json.encode(self._written(self.statistics))

    def _written(self, statistics: CatalogueStatistics | None) -> "CatalogueContent":
        parent = None if self.parent is None else self.parent.hex()
        tables = [table.content for table in self.tables]
        return CatalogueContent(FORMAT, self.version, parent, self.users, tables, statistics)


FORMAT = "sfsl catalogue 1"


class CatalogueContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A catalogue as it is written. ``catalogue_file`` reads it."""

    format: str
    version: int
    parent: str | None
    users: int
    tables: list[TableContent]
    statistics: CatalogueStatistics | None = None


def catalogue_digest(public: bytes) -> bytes:
    """The name of a catalogue, from what clients are given."""
    return digest("catalogue", public)


def _named(name: str, ids: ArrayLike) -> CatalogueTable:
    given = np.asarray(ids)
    kept = tuple(given.tolist()) if given.dtype.kind in "US" else given.astype(np.int64)
    return CatalogueTable(name, len(given), unless_plain(kept))


def unless_plain(ids: Ids) -> Ids | None:
    """None where rows are called by their numbers."""
    plain = not isinstance(ids, tuple) and np.array_equal(ids, np.arange(len(ids)))
    return None if plain else ids


def _with_names(own: CatalogueTable, given: CatalogueTable) -> CatalogueTable:
    """The rows of one table, and behind them those that only the other has; without a map."""
    if own.textual != given.textual:
        kinds = ["text" if table.textual else "whole numbers" for table in (own, given)]
        raise InputError(
            f"ids of table {own.name!r} are {kinds[0]} in the catalogue and {kinds[1]} in the data"
        )
    names = own.names()
    known = set(names)
    names += [name for name in given.names() if name not in known]
    ids: Ids = tuple(names) if own.textual else np.array(names, np.int64)
    return CatalogueTable(own.name, len(names), unless_plain(ids))


def _grown_map(
    own: CatalogueTable, given: CatalogueTable, merged: CatalogueTable, sources: Sequence[CatalogueTable]
) -> Indices:
    """The map of the grown table, from the source of each of the three. A row that the source had before must
    keep its row here."""
    old, theirs, new = (source.names() for source in sources)
    before, names = np.asarray(own.map, np.int64), merged.names()
    follows = np.array([merged._places[name] for name in given.names()])[np.asarray(given.map)]
    told = dict(zip(theirs, follows.tolist(), strict=True))
    changed = [row for row, name in enumerate(old) if told.get(name, before[row]) != before[row]]
    if changed:
        name, row = old[changed[0]], changed[0]
        raise InputError(
            f"{own.source} {name!r} has {own.name} {names[before[row]]!r} in the catalogue and "
            f"{names[told[name]]!r} in the data ({len(changed)} such rows): growth keeps old rows as they "
            f"are. Give it its old {own.name}, or a new id"
        )
    return np.concatenate([before, np.array([told[name] for name in new[len(old) :]], np.int64)])


def _statistics(sizes: Indices, held: Mapping[str, NDArray[Any]]) -> CatalogueStatistics:
    """What is said of clients with so many rows each. ``held``: the rows of each client in turn, by table."""
    at = np.quantile(sizes, list(_QUANTILES.values()), method="higher").astype(int).tolist()
    owners = {}
    for name, rows in held.items():
        counted = np.unique(np.unique(rows, return_counts=True)[1], return_counts=True)
        owners[name] = list(zip(*(one.tolist() for one in counted), strict=True))
    return CatalogueStatistics(len(sizes), dict(zip(_QUANTILES, at, strict=True)), owners)
