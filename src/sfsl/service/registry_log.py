"""What is in SQLite's log beside a registry, and would be passed over: SQLite reads it up to the first frame
whose checksum does not fit, and takes the rest for what a power cut left of an unfinished write. A flipped
bit would so quietly undo what was committed. (https://www.sqlite.org/fileformat2.html#walformat)
"""

import logging
import struct
from pathlib import Path

from sfsl.durable import system_errors_as
from sfsl.errors import StoreCorrupt, StoreError

log = logging.getLogger(__name__)

_MAGIC = 0x377F0682  # with the lowest bit set: checksums over big-endian words
_HEAD, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_SUMMED_HEAD, _SUMMED_FRAME = 24, 8  # bytes of them that their checksum is over
_PAGE_SIZE_AT, _SMALLEST_PAGE = slice(16, 18), 512


def require_log(path: Path) -> None:
    """Raise ``StoreCorrupt`` if the log of the registry at ``path`` has commits behind a damaged frame.
    Damage in the last one looks like a crash in the middle of a write: that is logged."""
    place = path.with_name(path.name + "-wal")
    with system_errors_as(StoreError, f"read {place}"):
        if not place.exists():
            return
        data = place.read_bytes()
        with path.open("rb") as file:
            size = int.from_bytes(file.read(_PAGE_SIZE_AT.stop)[_PAGE_SIZE_AT], "big")
    if len(data) < _HEAD.size or size < _SMALLEST_PAGE:
        return  # nothing was written yet, or SQLite will say what it is
    later = _passed_over(data, size)
    if any(later[:-1]):
        raise StoreCorrupt(f"{place} is damaged before its last commit. Restore a backup")
    if later:
        log.warning("%s ends with a write that a crash cut short, or that is damaged; it is left out", place)


def _passed_over(data: bytes, size: int) -> list[bool]:
    """Return, for each frame of this log behind those that SQLite reads, whether it ends a commit."""
    # The size of a page is the file's: the one in here may be what is damaged.
    magic, _, _, _, *salts = _HEAD.unpack_from(data)[:6]
    words = ">" if magic & 1 else "<"
    frames = range(_HEAD.size, len(data) - size - _FRAME.size + 1, _FRAME.size + size)
    fits, total = _fits(words, data[:_SUMMED_HEAD], data[_SUMMED_HEAD : _HEAD.size], (0, 0))
    fits = fits and magic & ~1 == _MAGIC
    later: list[bool] = []
    for start in frames:
        _, pages, *own = _FRAME.unpack_from(data, start)[:4]
        if fits and own == salts:
            body = (
                data[start : start + _SUMMED_FRAME] + data[start + _FRAME.size : start + _FRAME.size + size]
            )
            fits, total = _fits(words, body, data[start + 16 : start + _FRAME.size], total)
        else:
            fits = False
        if fits and pages:
            later = []
        elif own[0] == salts[0] or own[1] == salts[1]:  # others are of before the log began anew
            later.append(bool(pages))
    return later


def _fits(words: str, data: bytes, due: bytes, before: tuple[int, int]) -> tuple[bool, tuple[int, int]]:
    """Add SQLite's checksum of ``data`` to that before, and say whether it is the one that is due."""
    one, two = before
    values = struct.unpack(f"{words}{len(data) // 4}I", data)
    for first, second in zip(values[::2], values[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return struct.pack(">2I", one, two) == due, (one, two)
