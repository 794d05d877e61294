"""Which tables a client answers for, and which rows of a union it asks for (spec privacy 3).

The paper (Algorithm 2) memoizes each permanent answer; here it is a function of a key, so that 32 bytes
replace the growing answer sets and a restart cannot forget one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Bits, Indices, ascends, whole_numbers
from sfsl.crypto.secret import Randomness, Secret, derive
from sfsl.errors import InputError, ParameterError
from sfsl.privacy.parameters import IndexPrivacy

Words = NDArray[np.uint64]

KEY_BYTES = 32
_WORD_VALUES = 2**64


@dataclass(frozen=True)
class Tables:
    """The tables of a model, by what a client may say about them (spec privacy 3.4).

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
        """Return checked index sets, one for each shared table and for no other, in declared order."""
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


@dataclass(frozen=True)
class Decoys:
    """Rows that a client adds to its input to the union, fixed for a period (spec privacy 3.5). ``draws``
    rows are drawn from each table's ``domain``; those with a permanent yes join, about draws * p2 of them."""

    draws: int
    domain: Mapping[str, int]

    def __post_init__(self) -> None:
        if self.draws < 0 or any(not 0 < rows < 2**63 for rows in self.domain.values()):
            raise ParameterError("decoys need a number of draws from 0 up and tables of at least one row")

    def rate(self, table: str) -> float:
        """The chance that a given row of the table is among the draws."""
        return 1 - (1 - 1 / self.domain[table]) ** self.draws

    def epsilon_owned(self, privacy: IndexPrivacy, table: str) -> float:
        """How much the whole perturbed set, once known, can speak for a row being real. Only in this
        direction: a row asked for again and again but never submitted is surely not real."""
        decoy = privacy.p2 * self.rate(table)
        if privacy.p1 == 0:
            return 0.0
        return max(0.0, math.log(privacy.p1 / decoy)) if decoy else math.inf


class Perturber:
    """Answers for one client in one period. The permanent answers are fixed by the key; what is fresh in each
    round comes in as an argument. Nothing here is durable: a deployed client goes through ``ClientState``,
    which sees to the ledger."""

    __slots__ = ("_key", "_privacy", "_real", "_tables")

    def __init__(
        self, key: Secret, privacy: IndexPrivacy, tables: Tables, real: Mapping[str, ArrayLike]
    ) -> None:
        if len(key) != KEY_BYTES:
            raise ParameterError(f"a period key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self._privacy = privacy
        self._tables = tables
        self._real = {
            name: np.unique(rows) for name, rows in tables.per_shared_table(real, "the real set").items()
        }

    def permanent(self, table: str, rows: Indices) -> Bits:
        """The period's answers for these rows of a shared table, the same whenever it is asked."""
        real = np.isin(rows, self._real[table])
        words = keyed_words(derive(self._key, "permanent-answers", table.encode()), rows)
        return np.where(real, _below(words, self._privacy.p1), _below(words, self._privacy.p2))

    def answer(self, unions: Mapping[str, ArrayLike], randomness: Randomness) -> dict[str, Bits]:
        """This round's answers: for each shared table a bitmap over its union, fresh in every call."""
        p3, p4 = self._privacy.p3, self._privacy.p4
        answers: dict[str, Bits] = {}
        for name, union in self.check_unions(unions).items():
            permanent = self.permanent(name, union)
            words = np.frombuffer(randomness.bytes(8 * len(permanent)), "<u8")
            answers[name] = np.where(permanent, _below(words, p3), _below(words, p4))
        return answers

    def check_unions(self, unions: Mapping[str, ArrayLike]) -> dict[str, Indices]:
        """Refuse a union that is empty, or that asks twice about one row, which would draw twice."""
        checked = self._tables.per_shared_table(unions, "the union")
        if not any(map(len, checked.values())):
            raise InputError("the union is empty: there is nothing to answer")
        for name, union in checked.items():
            if not ascends(union):
                raise InputError(f"the union of table {name!r} must be in ascending order, each row once")
        return checked

    def union_input(self, decoys: Decoys | None = None) -> dict[str, Indices]:
        """What this client submits to the union: its real rows, or with decoys a perturbed set. The perturbed
        set is the same in every round of a period: the real rows with a permanent yes, and of the rows drawn
        as decoys those with a permanent yes."""
        if decoys is None:
            return {name: rows.copy() for name, rows in self._real.items()}
        perturbed = {}
        for name, real in self._real.items():
            if name not in decoys.domain:
                raise InputError(f"decoys for table {name!r} need the number of its rows")
            numbers = np.arange(decoys.draws, dtype=np.int64)
            words = keyed_words(derive(self._key, "union-decoys", name.encode()), numbers)
            drawn = (words % np.uint64(decoys.domain[name])).astype(np.int64)
            candidates = np.union1d(real, drawn)
            perturbed[name] = candidates[self.permanent(name, candidates)]
        return perturbed

    def __repr__(self) -> str:
        return f"Perturber({self._privacy}, key and real set redacted)"


def keyed_words(key: Secret, numbers: Indices) -> Words:
    """One 64-bit word per number: the first half of AES-256 of the number as a block (spec privacy 3.1). Each
    block is encrypted on its own, which is what makes the words a function of the number alone."""
    blocks = np.zeros((len(numbers), 2), ">u8")
    blocks[:, 1] = numbers
    encryptor = Cipher(AES256(key.reveal()), ECB()).encryptor()  # noqa: S305 -- a PRF, not encryption
    sealed = np.frombuffer(encryptor.update(blocks.tobytes()), ">u8")
    return sealed[::2].astype(np.uint64)


def _below(words: Words, probability: float) -> Bits:
    """Whether each word falls below floor(probability * 2^64): exact for 0 and for 1 (spec privacy 3.2)."""
    threshold = int(probability * _WORD_VALUES)
    if threshold == _WORD_VALUES:
        return np.ones(len(words), np.bool_)
    return words < np.uint64(threshold)
