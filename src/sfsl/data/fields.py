"""What a column says: ids, labels and times, of whole arrays at a time.

Every reader returns values and, as a mask, which of them it could not read. What is looked at one by one are
different values, not lines.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices, Reals
from sfsl.data.lines import LARGEST_ID, shown
from sfsl.data.samples import Column
from sfsl.data.table import LONGEST_VALUE
from sfsl.errors import InputError

Words = NDArray[np.bytes_]
# By kind of problem: at which places, and with which texts.
Wrong = dict[str, tuple[Indices, Words]]

# How other programs write that there is no value.
NOTHING = (b"", b"null", b"NULL", b"None", b"NaN", b"nan", b"<NA>", b"NaT", b"\\N")
_TRUTHS = {
    **dict.fromkeys((b"1", b"true", b"t", b"yes", b"y"), 1),
    **dict.fromkeys((b"0", b"false", b"f", b"no", b"n"), 0),
}
_NUMERIC = np.zeros(256, bool)
_NUMERIC[[*b"0123456789+-.eE\0"]] = True
_DATED = np.zeros(256, bool)
_DATED[[*b"0123456789-:.T \0"]] = True
_EPOCH = np.datetime64(0, "us")


def words_of(values: Column) -> Words:
    """Values as texts in UTF-8; an empty one where there is no value."""
    match values.dtype.kind:
        case "S":
            return values
        case "U":
            return np.char.encode(values, "utf-8")
        case "b":
            return np.where(values, b"1", b"0")
        case "i" | "u":
            return values.astype(np.bytes_)
        case "M":
            return np.where(np.isnat(values), b"", np.datetime_as_string(values).astype(np.bytes_))
        case "f" if np.equal(values, np.floor(values)).all() and (np.abs(values) < 2**53).all():
            return values.astype(np.int64).astype(np.bytes_)
    if set(map(type, values)) <= {str}:
        return np.char.encode(values.astype(np.str_), "utf-8")
    return np.array([_as_text(one).encode() for one in values.tolist()], np.bytes_)


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(int(value))
        case float() if (
            math.isfinite(value) and value.is_integer()
        ):  # 12.0 in a column with gaps is the id 12
            return str(int(value))
        case datetime() | date():
            return value.isoformat()
    return str(value).strip()


def bytes_of(words: Words) -> NDArray[np.uint8]:
    """The bytes of texts, one text a row, filled up with zeros."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), words.dtype.itemsize)


def whole_numbers(values: Column) -> Indices:
    """Ids that are numbers; -1 for any other. One with zeros before it is a text: 007 is not 7."""
    if values.dtype.kind in "iu":
        fits = (values >= 0) & (values <= LARGEST_ID)
        return np.asarray(np.where(fits, values, 0).astype(np.int64) - ~fits)
    letters = bytes_of(words_of(values))
    length = (letters != 0).sum(axis=1)
    number, right = np.zeros(len(letters), np.uint64), (length > 0) & (length < 20)
    right &= (length == 1) | (letters[:, 0] != ord("0"))
    for place in range(min(letters.shape[1], 19)):
        inside, digit = place < length, letters[:, place] - np.uint8(ord("0"))
        right &= ~inside | (digit < 10)
        number = np.where(inside & (digit < 10), number * np.uint64(10) + digit, number)
    right &= number <= LARGEST_ID
    return np.asarray(np.where(right, number, 0).astype(np.int64) - ~right)


def reals(values: Column) -> Reals:
    """Finite numbers; NaN for anything else."""
    if values.dtype.kind in "biuf":
        found = values.astype(np.float64)
    else:
        words = words_of(values)
        likely = _NUMERIC[bytes_of(words)].all(axis=1)
        found = np.full(len(words), math.nan)
        found[likely] = _cast(words[likely], np.float64, math.nan)
    return np.where(np.isfinite(found), found, math.nan)


def _cast(words: Words, kind: Any, missing: Any) -> NDArray[Any]:
    """Texts as numbers or dates, all at once; where one of them is none, one by one."""
    try:
        return words.astype(kind)
    except ValueError:
        pass

    def one(word: bytes) -> Any:
        try:
            return np.array(word).astype(kind)[()]
        except ValueError:
            return missing

    different, which = np.unique(words, return_inverse=True)
    return np.array([one(word) for word in different.tolist()], kind)[which]


def times(values: Column) -> Reals:
    """Numbers as they are, dates of ISO 8601 in seconds since 1970, as UTC where no zone is named; NaN for
    anything else."""
    if values.dtype.kind == "M":
        return _seconds(values)
    found = reals(values)
    if not (odd := np.isnan(found)).any() or values.dtype.kind in "biuf":
        return found
    words = words_of(values[odd])
    found[odd] = _iso_seconds(words)
    return found


def _iso_seconds(words: Words) -> Reals:
    letters = bytes_of(words).copy()
    letters = np.pad(letters, ((0, 0), (0, max(0, 11 - letters.shape[1]))))
    length, rows = (letters != 0).sum(axis=1), np.arange(len(letters))
    # A zone stands at the end: Z, or hours and minutes from UTC.
    zulu = letters[rows, np.maximum(length - 1, 0)] == ord("Z")
    letters[rows[zulu], length[zulu] - 1] = 0
    behind = letters[rows[:, None], np.maximum(length[:, None] - np.arange(6, 0, -1), 0)]
    sign = np.where(behind[:, 0] == ord("+"), 1, np.where(behind[:, 0] == ord("-"), -1, 0))
    digits = behind[:, [1, 2, 4, 5]].astype(np.int64) - ord("0")
    zoned = (
        (length > 16) & (sign != 0) & (behind[:, 3] == ord(":")) & ((digits >= 0) & (digits < 10)).all(axis=1)
    )
    offset = sign * (digits @ np.array([36_000, 3_600, 600, 60]))
    for place in range(1, 7):
        letters[rows[zoned], length[zoned] - place] = 0
    likely = _DATED[letters].all(axis=1) & (letters[:, 4] == ord("-")) & (letters[:, 7] == ord("-"))
    found = np.full(len(words), math.nan)
    whole = letters.reshape(-1).view(f"S{letters.shape[1]}")
    found[likely] = _seconds(_cast(whole[likely], "M8[us]", np.datetime64("NaT")))
    return found - np.where(zoned, offset, 0)


def _seconds(moments: NDArray[Any]) -> Reals:
    nothing = np.isnat(moments)
    passed = (moments.astype("M8[us]") - _EPOCH).astype(np.int64) / 1e6
    return np.where(nothing, math.nan, passed)


def truths(values: Column) -> NDArray[np.int8]:
    """1 for a click, 0 for none, -1 for what is neither."""
    return _each(values, _truth)


def _truth(word: bytes) -> int:
    known = _TRUTHS.get(word.lower())
    if known is not None:
        return known
    number = _number(word)
    return int(number) if number in (0.0, 1.0) else -1


def _number(word: bytes) -> float:
    return float(reals(np.array([word]))[0])


def _each(values: Column, judge: Callable[[bytes], int]) -> NDArray[np.int8]:
    """What is judged of each different value."""
    different, which = np.unique(words_of(values), return_inverse=True)
    return np.array([judge(word) for word in different.tolist()], np.int8)[which]


EVERY = "all"  # the rule by which each line is a click
_RULE = re.compile(r"\s*([^<>=!]+?)\s*(>=|<=|==|!=|=|<|>)\s*([^<>=!].*?)\s*")
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": lambda one, other: one >= other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    "<": lambda one, other: one < other,
    "=": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
}


@dataclass(frozen=True)
class LabelRule:
    """Which lines are clicks: those whose ``column`` compares so with ``value``. Without a comparison, the
    column itself says so, as 0 and 1 or false and true; without a column, each line is a click."""

    column: str = ""
    compared: str = ""
    value: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a rule: ``rating>=4``, ``behavior=buy``, ``liked``, ``all``."""
        if text.strip() == EVERY:
            return cls()
        if found := _RULE.fullmatch(text):
            rule = cls(found[1], "=" if found[2] == "==" else found[2], found[3].strip("\"'"))
            if rule.compared not in ("=", "!=") and math.isnan(_number(rule.value.encode())):
                raise InputError(
                    f"the label rule {shown(text)} compares with {shown(rule.value)}, which is no number; "
                    "write it like rating>=4, or behavior=buy"
                )
            return rule
        if not text.strip() or re.search("[<>=!]", text):
            raise InputError(
                f"{shown(text)} is no label rule; write it like rating>=4 or behavior=buy, a column of 0 and "
                f"1 by its name, or {EVERY} where each line is a click"
            )
        return cls(text.strip())

    def __call__(self, values: Column) -> NDArray[np.int8]:
        """1 for a click, 0 for none, -1 for what cannot be compared."""
        if not self.compared:
            return truths(values)
        compare, limit = _COMPARED[self.compared], _number(self.value.encode())

        def judge(word: bytes) -> int:
            if word in NOTHING:
                return -1
            if not math.isnan(limit):
                number = _number(word)
                if not math.isnan(number):
                    return int(compare(number, limit))
                return -1 if self.compared not in ("=", "!=") else int(self.compared == "!=")
            return int(compare(word.decode(errors="replace"), self.value))

        return _each(values, judge)

    @property
    def problem(self) -> str:
        """What is wrong with a value that it cannot read."""
        if not self.compared:
            return "label is not 0 or 1"
        return f"{self.column} is empty" if self.compared in ("=", "!=") else f"{self.column} is not a number"


class IdColumn:
    """Ids as they come, block after block. Whether they are numbers or texts shows when all are there."""

    def __init__(self, what: str, *, text: bool = False) -> None:
        self.what, self._text = what, text
        self._numbers: list[Indices] = []
        # Of what is no number: the places in a block, the different texts, and which of them is where.
        self._odd: list[tuple[Indices, Words, Indices]] = []

    def add(self, values: Column) -> None:
        numbers = whole_numbers(values)
        odd = np.flatnonzero(numbers < 0)
        words, which = np.unique(words_of(values[odd]), return_inverse=True)
        self._numbers.append(numbers)
        self._odd.append((odd, words, which.astype(np.int32)))

    def finish(self) -> tuple[Indices, Column | None, Wrong]:
        """Return the ids, the names of which they are places (None: they are numbers themselves), and what is
        wrong: by kind of problem, at which places and with which texts. Both are -1 at such places."""
        sizes = [len(one) for one in self._numbers]
        places = _joined([start + odd for start, (odd, _, _) in zip(_starts(sizes), self._odd, strict=True)])
        every = np.concatenate([np.zeros(0, "S1"), *(words for _, words, _ in self._odd)])
        words, merged = np.unique(every, return_inverse=True)
        starts = _starts([len(one) for _, one, _ in self._odd])
        which = _joined([merged[start + one] for start, (_, _, one) in zip(starts, self._odd, strict=True)])
        numbers, kinds = _joined(self._numbers), [_kind(word) for word in words.tolist()]
        count = np.bincount(which, minlength=len(words))
        texts = int(count[[kind == _TEXT for kind in kinds]].sum())
        there = len(numbers) - int(count[[kind == _EMPTY for kind in kinds]].sum())
        if self._text or texts > MOST_ODD * there:
            return self._as_names(numbers, words, places, which)
        # Columns with gaps are often written as 12.0; it is the id 12.
        wholes = [kind == _WHOLE for kind in kinds]
        own = [_whole(word) if whole else -1 for word, whole in zip(words.tolist(), wholes, strict=True)]
        numbers[places] = np.array(own, np.int64)[which]
        plain = {_WHOLE: "", _EMPTY: _EMPTY, _NEGATIVE: _NEGATIVE}
        problems = [plain.get(kind, _BROKEN) for kind in kinds]
        return numbers, None, self._located(problems, words, places, which)

    def _as_names(
        self, numbers: Indices, words: Words, places: Indices, which: Indices
    ) -> tuple[Indices, Column | None, Wrong]:
        problems = [_not_a_name(word, self._text) for word in words.tolist()]
        usable = np.array([not problem for problem in problems], bool)
        # What looks like a number is a name as well.
        digits, digit = np.unique(numbers[numbers >= 0], return_inverse=True)
        names, order = np.unique(
            np.concatenate([words[usable], digits.astype(np.bytes_)]), return_inverse=True
        )
        own = np.full(len(words), -1, np.int64)
        own[usable] = order[: int(usable.sum())]
        ids = np.full(len(numbers), -1, np.int64)
        ids[numbers >= 0] = order[int(usable.sum()) :][digit]
        ids[places] = own[which]
        return ids, np.char.decode(names, "utf-8"), self._located(problems, words, places, which)

    def _located(self, problems: Sequence[str], words: Words, places: Indices, which: Indices) -> Wrong:
        found = {}
        for problem in dict.fromkeys(filter(None, problems)):
            hit = np.array([one == problem for one in problems])[which]
            found[f"{self.what} {problem}"] = places[hit], words[which[hit]]
        return found


# Ids are texts where more of them than this are neither numbers nor what was meant to be one.
MOST_ODD = 0.05
_EMPTY, _NEGATIVE, _BROKEN = "is empty", "is negative or too large", "is not a whole number"
_WHOLE, _FRACTION, _TEXT = "whole", "fraction", "text"
_KINDS = {
    _WHOLE: re.compile(rb"(0|[1-9][0-9]{0,17})\.0+"),
    _NEGATIVE: re.compile(rb"-[0-9]+(\.0+)?|[1-9][0-9]*"),
    _FRACTION: re.compile(rb"[-+]?[0-9]*\.[0-9]+([eE][-+]?[0-9]+)?"),
}


def _kind(word: bytes) -> str:
    """What an id looks like that is not simply a number."""
    if word in NOTHING:
        return _EMPTY
    return next((kind for kind, looks in _KINDS.items() if looks.fullmatch(word)), _TEXT)


def _whole(word: bytes) -> int:
    return int(word.split(b".")[0])


def _not_a_name(word: bytes, forced: bool) -> str:
    """What is wrong with a name, nothing if it is one. Beside texts, a fraction is hardly an id."""
    if word in NOTHING:
        return _EMPTY
    if _KINDS[_FRACTION].fullmatch(word) and not forced:
        return _BROKEN
    if len(word) > LONGEST_VALUE:
        return f"has more than {LONGEST_VALUE} bytes"
    try:
        text = word.decode()
    except UnicodeDecodeError:
        return "is not in UTF-8"
    return "" if text.isprintable() and text == text.strip() else "has characters that cannot be printed"


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _starts(sizes: Sequence[int]) -> Indices:
    return np.cumsum([0, *sizes])[:-1]


def shown_word(word: bytes) -> str:
    """A value as it stands in a message."""
    return shown(word.decode(errors="replace"))
