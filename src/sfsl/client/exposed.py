"""Which of a client's samples have been in exact sums, so that a new period brings new ones only (spec
privacy 2.1). Unions and sums of the same samples, opened again and again, name their owner."""

import hashlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sfsl.arrays import Bits
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness, digest
from sfsl.durable import DurableFile, RecordFormat
from sfsl.errors import StateError
from sfsl.privacy import ClientState

# Two samples with one digest cost one of them, and nothing else; 2^32 samples would be needed for that.
_DIGEST = 8
Digests = NDArray[np.uint64]


class _Record(Message, frozen=True, tag="exposed-samples"):
    """Digests under ``key`` of all samples of earlier periods that were exposed, ascending, and of those that
    ``period`` began with."""

    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    exposed: bytes
    period: int
    frozen: bytes


_FORMAT = RecordFormat(
    _Record,
    b"sfsl exposed\r\n\x1a\n",  # 16 bytes, as a client state has its own
    largest=1 << 30,
    what="a list of exposed samples",
    lost="Put it back; without it nobody knows which samples are new. If it is lost, move it away and allow "
    "old ones: --repeat-samples",
)


class ExposedSamples:
    """The file in which a client keeps what it has exposed, as keyed digests: nobody who has the file of one
    client can look for its samples in that of another. The state knows the file's digest, so that an older
    copy is noticed."""

    def __init__(self, path: Path, randomness: Randomness) -> None:
        self.path = path
        self._randomness = randomness

    def fresh(self, names: Sequence[bytes], state: ClientState, today: date, *, repeat: bool = False) -> Bits:
        """Say which samples, each called by what tells it from others, a period that lasts today may use:
        those that no earlier period has exposed, or with ``repeat`` all. What it begins with is noted
        durably."""
        with DurableFile(self.path) as file:
            kept = file.read(_FORMAT.largest) if file.exists() else None
            if kept is not None:
                record = _FORMAT.decode(kept, str(self.path))
                self._require_latest(kept, state)
            elif state.period is None or repeat:
                record = _Record(self._randomness.bytes(32), b"", -1, b"")
            else:
                raise StateError(
                    f"{self.path} is not there, and this client has taken part: nobody knows which samples "
                    "were exposed. Put it back, or allow old ones: --repeat-samples"
                )
            given, exposed = _digests(record.key, names), _read(record.exposed)
            if not state.going_on(today):
                # Its period was entered after these were frozen, and that is done by exposing them.
                if state.period is not None and state.period >= record.period:
                    exposed = np.union1d(exposed, _read(record.frozen))
                period, frozen = state.calendar.period(today), np.unique(given)
                after = _Record(record.key, exposed.tobytes(), period, frozen.tobytes())
                if after != record:
                    # A power cut in between leaves one of the two, and the state takes either.
                    before, kept = kept, _FORMAT.encode(after)
                    state.expect_exposed(*map(_digest, [kept] if before is None else [before, kept]))
                    file.replace(kept)
            if kept is not None:
                state.expect_exposed(_digest(kept))
        return np.ones(len(given), np.bool_) if repeat else ~np.isin(given, exposed)

    def _require_latest(self, kept: bytes, state: ClientState) -> None:
        """Refuse a copy that the state does not know. Of states of before it was kept, any is taken."""
        if state.exposed and _digest(kept) not in state.exposed:
            raise StateError(
                f"{self.path} is not the one that this client wrote last: an older copy would make new what "
                "was exposed. Put the last one back; if the state beside it is the older one, that. If it is "
                "lost, move this one away and allow old samples: --repeat-samples"
            )


def _digest(kept: bytes) -> bytes:
    return digest("exposed samples", kept)


def _digests(key: bytes, names: Sequence[bytes]) -> Digests:
    """Return a digest for each name; the second of two equal names has another than the first."""
    seen: dict[bytes, int] = {}
    found = bytearray()
    for name in names:
        seen[name] = count = seen.get(name, 0) + 1
        found += hashlib.blake2b(count.to_bytes(8, "big") + name, key=key, digest_size=_DIGEST).digest()
    return np.frombuffer(bytes(found), ">u8").astype("<u8")


def _read(digests: bytes) -> Digests:
    return np.frombuffer(digests[: len(digests) // _DIGEST * _DIGEST], "<u8")
