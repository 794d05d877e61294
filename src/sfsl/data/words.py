"""Words that roles say, as samples for a model of the next word."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices
from sfsl.data.assemble import require_usable
from sfsl.data.lines import LoadReport, numbered_lines, shown
from sfsl.data.samples import Column, Samples, tails
from sfsl.errors import InputError

# Letters, and apostrophes and hyphens between them.
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
CONTEXT = 10


class Role(msgspec.Struct, frozen=True):
    """A client: the words it speaks are its private indices."""

    play: str
    role: str
    lines: tuple[str, ...]


def words_of(lines: Sequence[str]) -> list[str]:
    """What these lines say, word by word, in small letters; punctuation and numbers are no words."""
    return [word for line in lines for word in _WORD.findall(line.lower())]


@dataclass(frozen=True, repr=False)
class NextWords:
    """One client's windows, as columns ``context``, ``target`` and ``label`` (1: it did come next).

    What a model of them needs beyond ``Samples``: how many words the client has, in the column ``known``;
    and counts that say what a softmax does, in which every sample moves the row of every word.
    """

    samples: Samples

    def __repr__(self) -> str:
        return f"NextWords(<{len(self)} samples>)"

    @property
    def tables(self) -> Mapping[str, str]:
        return self.samples.tables

    def __len__(self) -> int:
        return len(self.samples)

    def rows(self) -> dict[str, Indices]:
        return self.samples.rows()

    def keep(self, rows: Mapping[str, Indices]) -> "NextWords":
        return NextWords(self.samples.keep(rows))

    def counts(self, rows: Mapping[str, Indices]) -> dict[str, Indices]:
        return {table: np.full(len(some), len(self), np.int64) for table, some in rows.items()}

    def local_columns(self, rows: Mapping[str, Indices]) -> dict[str, Column]:
        known = np.full(len(self), len(rows.get("word", ())), np.int64)
        return self.samples.local_columns(rows) | {"known": known}


@dataclass(frozen=True, repr=False)
class Speech:
    """What each client said, word after word: that of client k is ``spoken[offsets[k]:offsets[k + 1]]``.

    A word is its row in the table ``word``; ``vocabulary`` has the words themselves, in order.
    """

    vocabulary: Sequence[str]
    offsets: Indices
    spoken: NDArray[np.int32]

    def __repr__(self) -> str:
        return f"Speech(<{len(self.spoken)} words of {len(self.offsets) - 1} clients>)"

    def windows(self, share: float, context: int = CONTEXT) -> tuple["Windows", "Windows"]:
        """All windows for training, but for the last ``share`` of each client's, which are for testing.

        For each word to be tested on there is one that did not come next: what the same client said half
        its testing part away. Both have the same words equally often, so that a score which knows no more
        than how common words are is worth an AUC of one half.
        """
        if not 0 < share < 1:
            raise InputError(f"a share of {share} cannot be held out; it must lie between 0 and 1")
        if context < 1:
            raise InputError("a context has at least one word")
        train, test, offered = [_NONE], [_NONE], [_NONE]
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            every = np.arange(start + 1, stop)  # the first word has none before it
            held = int(share * len(every) + 1e-9)
            train.append(every[: len(every) - held])
            tested = every[len(every) - held :]
            test += [tested, tested] if held > 1 else [tested]
            offered += [tested, np.roll(tested, held // 2)] if held > 1 else [tested]
        trained, at, other = map(np.concatenate, (train, test, offered))
        return Windows(self, trained, trained, context), Windows(self, at, other, context)


_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, repr=False)
class Windows:
    """Samples, client after client. That at place k has the words before ``at[k]``, and the word at
    ``offered[k]`` as what may come next: if it is another place, it did not.
    """

    speech: Speech
    at: Indices
    offered: Indices
    context: int

    def __len__(self) -> int:
        return len(self.at)

    def __repr__(self) -> str:
        return f"Windows(<{len(self)} samples>)"

    @property
    def clients(self) -> Indices:
        """The clients that have samples."""
        return np.flatnonzero(np.diff(self._offsets))

    def client(self, number: int) -> NextWords:
        return self.samples(np.arange(self._offsets[number], self._offsets[number + 1]))

    def samples(self, positions: ArrayLike) -> NextWords:
        """Any samples, by their places."""
        chosen = np.asarray(positions, dtype=np.int64)
        at, offered, spoken = self.at[chosen], self.offered[chosen], self.speech.spoken
        first = self.speech.offsets[np.searchsorted(self.speech.offsets, at, side="right") - 1]
        columns: dict[str, Column] = {
            "context": tails(spoken, at, np.minimum(at - first, self.context)),
            "target": spoken[offered].astype(np.int64),
            "label": (at == offered).astype(np.float32),
        }
        return NextWords(Samples(columns, {"context": "word", "target": "word"}))

    def column(self, name: str) -> Column | None:
        return {"target": self.speech.spoken[self.offered], "label": self.at == self.offered}.get(name)

    def owners(self) -> tuple[Sequence[object], Indices]:
        offsets = self.speech.offsets
        return range(len(offsets) - 1), np.searchsorted(offsets, self.at, side="right") - 1

    @cached_property
    def _offsets(self) -> Indices:
        return np.searchsorted(self.at, self.speech.offsets)


def speech_of(roles: Sequence[Role]) -> Speech:
    """Each role is a client. The vocabulary has every word that anyone says."""
    said = [words_of(role.lines) for role in roles]
    vocabulary, number = np.unique(
        np.array([word for one in said for word in one], dtype=np.str_), return_inverse=True
    )
    if not len(vocabulary):
        raise InputError("nobody in these roles says a word")
    return Speech(tuple(vocabulary.tolist()), np.cumsum([0, *map(len, said)]), number.astype(np.int32))


def load_shakespeare(path: str | Path) -> tuple[tuple[Role, ...], LoadReport]:
    report = LoadReport(str(path))
    decoder = msgspec.json.Decoder(Role)
    roles = []
    for number, line in numbered_lines(Path(path), report):
        try:
            role = decoder.decode(line)
        except msgspec.DecodeError as error:
            report.note("not a role", f"line {number}: {error}: {shown(line)}")
            continue
        if any(spoken.strip() for spoken in role.lines):
            roles.append(role)
        else:
            report.note("role without a line", f"line {number}: {shown(role.role)}")
    require_usable(report, roles)
    return tuple(roles), report
