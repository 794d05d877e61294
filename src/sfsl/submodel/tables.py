"""What a model is made of: tables of rows in declared order, and a dense rest (spec submodel 1)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sfsl.arrays import LARGEST_DOMAIN
from sfsl.codec import Checked
from sfsl.crypto.kdf import digest
from sfsl.errors import InputError, ParameterError

MAX_TABLES = 64

TableName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]


class Table(Checked, frozen=True):
    """One table of rows.

    ``shared``: clients answer, with randomized response, which rows they have. ``derived``: its rows
    follow from those of ``source`` by a public map. ``personal``: never leaves the device.

    ``initial``: rows begin uniform in ±initial; 0 begins at zero. A number of rows with room to grow
    costs nothing, since only rows ever touched are stored.

    >>> import sfsl
    >>> film = sfsl.Table(name="film", rows=2_000_000_000, width=16)
    >>> genre = sfsl.Table(name="genre", rows=30, width=4, kind="derived", source="film")
    >>> user = sfsl.Table(name="user", rows=1_000_000, width=8, kind="personal")
    """

    name: TableName
    rows: Annotated[int, Meta(ge=1)]
    width: Annotated[int, Meta(ge=1, le=2**20)]
    kind: Literal["shared", "derived", "personal"] = "shared"
    source: TableName | None = None
    initial: Annotated[float, Meta(ge=0, le=1e6)] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows > LARGEST_DOMAIN:
            raise ParameterError(f"table {self.name!r} has {self.rows} rows; at most 2^63 are possible")
        if (self.kind == "derived") != (self.source is not None):
            raise ParameterError(f"table {self.name!r}: derived tables, and only those, name a source")

    @property
    def words(self) -> int:
        """Words of one row in the sum: its parameters, then its weight (spec submodel 3)."""
        return self.width + 1


class ModelSpec(Checked, frozen=True):
    """The tables of a model and the number of parameters in its dense rest."""

    tables: Annotated[tuple[Table, ...], Meta(max_length=MAX_TABLES)]
    dense: Annotated[int, Meta(ge=0, le=2**40)]

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {table.name: table.kind for table in self.tables}
        if len(kinds) != len(self.tables):
            raise ParameterError(f"two tables of one model have the same name: {[*kinds]}")
        for table in self.tables:
            if table.source is not None and kinds.get(table.source) != "shared":
                raise ParameterError(
                    f"table {table.name!r} is derived from {table.source!r}, which is not a shared table"
                )

    @property
    def summed(self) -> tuple[Table, ...]:
        """The tables whose rows travel and are summed, in the order of the sum: all but the personal."""
        return tuple(table for table in self.tables if table.kind != "personal")

    @property
    def dense_words(self) -> int:
        """Words of the dense part in the sum: its parameters, then its weight."""
        return self.dense + 1

    def table(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise InputError(f"this model has no table {name!r}; it has {[table.name for table in self.tables]}")

    def fingerprint(self) -> bytes:
        """32 bytes, others for any other model. The maps of derived rows are not in it: catalogues grow."""
        return digest("model", canonical_json(self))


def canonical_json(spec: Checked) -> bytes:
    """One text for equal settings: a number given as 1 and as 1.0 must not make two models."""
    encoded = msgspec.json.encode(spec)
    return msgspec.json.encode(msgspec.json.decode(encoded, type=type(spec)))
