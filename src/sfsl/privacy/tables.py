"""Which tables are answered for, which follow from others, and which never leave (spec privacy 3.4)."""

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from sfsl.arrays import Indices, whole_numbers
from sfsl.errors import InputError, ParameterError


@dataclass(frozen=True)
class Tables:
    """The tables of a model, by what a client may say about them.

    ``shared``: the client answers, with randomized response, which rows it has. ``derived``: never
    answered on their own, since a second answer to a dependent question would undo the first; their rows
    follow from shared ones by a public map (``submodel.RowMaps``).
    ``personal``: rows of this client alone; nothing about them ever leaves the device.
    """

    shared: tuple[str, ...]
    derived: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [*self.shared, *self.derived, *self.personal]
        if len(set(names)) != len(names):
            raise ParameterError(f"a table has one role only; of {', '.join(names)} some have two")
        if not self.shared:
            raise ParameterError("a model without a shared table has nothing to be private about")

    def per_shared_table(self, given: Mapping[str, ArrayLike], what: str) -> dict[str, Indices]:
        """Index sets, one for each shared table and for no other, in declared order."""
        for name in given:
            if name in self.personal:
                raise InputError(
                    f"{what} names table {name!r}, which is personal and never leaves the device"
                )
            if name in self.derived:
                raise InputError(
                    f"{what} names table {name!r}, which follows from another and is never answered for"
                )
            if name not in self.shared:
                raise InputError(f"{what} names table {name!r}, which this model does not have")
        missing = [name for name in self.shared if name not in given]
        if missing:
            raise InputError(f"{what} lacks table {missing[0]!r}")
        return {
            name: whole_numbers(given[name], f"{what}, table {name!r}: row numbers", flat=True)
            for name in self.shared
        }
