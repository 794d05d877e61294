"""Checksums that files carry inside themselves, where a reader that does not know them passes over them.

::

    a JSON object      a last member:      ,"checksum":"0123456789abcdef"}
    a JSON array       a last element:     ,"checksum:0123456789abcdef"]
    any other file     a last line:        # checksum 0123456789abcdef

The digits are the first of SHA-256 of all that stands before. A file without a checksum was written by an
older version and is taken as it is; one that is nearly a checksum is damage. It finds damage, not forgery.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from sfsl.errors import InputError

_DIGITS = 16
_OBJECT = (b',"checksum":"', b'"}')
_ARRAY = (b',"checksum:', b'"]')
_LAST_LINE = (b"\n# checksum ", b"\n")
_WHOLE_LINE = re.compile(rb"\n# checksum [0-9a-f]{16}\n")
TRAILER_BYTES = sum(map(len, _LAST_LINE)) + _DIGITS
_ALIKE = 4  # so many wrong bytes in its frame, and it is still a checksum, and damaged
_AT_ONCE = 1 << 20

Frame = tuple[bytes, bytes]


class _Damaged(Exception):
    """The checksum does not fit. Each reader says it in its own words."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a whole file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_json_sum(data: bytes) -> bytes:
    """Add a checksum to the text of a JSON object or array that is not empty."""
    text = data.rstrip()
    body, (head, tail) = text[:-1], _ARRAY if text.endswith(b"]") else _OBJECT
    return body + head + _sum(body) + tail + data[len(text) :]


def without_json_sum(data: bytes, where: str, advice: str = "restore it") -> bytes:
    """Return the text without its checksum, if it has one; raise ``InputError`` where it does not fit."""
    try:
        return _json_parts(data)[0]
    except _Damaged:
        raise InputError(f"{where} is damaged: its checksum does not fit; {advice}") from None


def json_lines(data: bytes) -> Iterator[bytes | None]:
    """Yield the JSON objects of a file of lines; None stands for each line that is damaged. Bytes behind the
    last line break are of a write that was cut short. In a file with checksums every line has one."""
    found: list[tuple[bytes, bool] | None] = []
    *lines, torn = data.split(b"\n")
    for line in lines:
        try:
            found.append(_json_parts(line))
        except _Damaged:
            found.append(None)
    with suppress(_Damaged):
        if _json_parts(torn[:-1])[1]:
            found.append(None)  # not cut short: it is its line break that is damaged
    summed = any(one is None or one[1] for one in found)
    for one in found:
        yield None if one is None or (summed and not one[1]) else one[0]


def with_last_line(data: bytes) -> bytes:
    """Add a checksum as a last line; to text it is a comment, and to most other formats nothing at all."""
    head, tail = _LAST_LINE
    return data + head + _sum(data) + tail


def without_last_line(data: bytes, where: str, advice: str = "restore it") -> bytes:
    """Return the data without its checksum, if it has one; raise ``InputError`` where it does not fit."""
    try:
        found = _digits(data[-TRAILER_BYTES:], _LAST_LINE)
        body = data if found is None else data[:-TRAILER_BYTES]
        if found is not None and found != _sum(body):
            raise _Damaged
    except _Damaged:
        raise InputError(f"{where} is damaged: its checksum does not fit; {advice}") from None
    return body


def without_last_lines(data: bytes, where: str, advice: str = "restore it") -> bytes:
    """Do the same for a file of several that were joined, as people join certificates to a chain."""
    ends = [found.end() for found in _WHOLE_LINE.finditer(data)]
    parts = zip([0, *ends], [*ends, len(data)], strict=True)
    return b"".join(without_last_line(data[start:end], where, advice) for start, end in parts)


def add_last_line(file: BinaryIO) -> None:
    """Add a checksum at the end of a file that is open for reading and writing, however large."""
    file.seek(0)
    digits = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]  # type: ignore[arg-type]
    head, tail = _LAST_LINE
    file.write(head + digits.encode() + tail)


def require_last_line(file: BinaryIO, where: str, advice: str = "restore it") -> None:
    """Check the whole of an open file against its last line, if that is a checksum; then it is at its start
    again."""
    size = file.seek(0, 2)
    file.seek(max(0, size - TRAILER_BYTES))
    try:
        found = _digits(file.read(), _LAST_LINE)
        file.seek(0)
        if found is not None and found != _file_sum(file, size - TRAILER_BYTES):
            raise _Damaged
    except _Damaged:
        raise InputError(f"{where} is damaged: its checksum does not fit; {advice}") from None
    file.seek(0)


def _file_sum(file: BinaryIO, size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (part := file.read(min(_AT_ONCE, size))):
        digest.update(part)
        size -= len(part)
    return digest.hexdigest()[:_DIGITS].encode()


def _json_parts(data: bytes) -> tuple[bytes, bool]:
    """Return a JSON text without its checksum, and whether it had one."""
    text = data.rstrip()
    for frame in (_OBJECT, _ARRAY):
        size = sum(map(len, frame)) + _DIGITS
        found = _digits(text[-size:], frame)
        if found is not None:
            body = text[:-size]
            if found != _sum(body):
                raise _Damaged
            return body + frame[1][-1:], True
    return data, False


def _digits(end: bytes, frame: Frame) -> bytes | None:
    """Return the digits that stand in a frame; None where there is no frame."""
    head, tail = frame
    if len(end) != len(head) + _DIGITS + len(tail):
        return None
    given = end[: len(head)] + end[len(head) + _DIGITS :]
    wrong = sum(one != due for one, due in zip(given, head + tail, strict=True))
    if wrong > _ALIKE:
        return None
    if wrong:
        raise _Damaged
    return end[len(head) : len(head) + _DIGITS]


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGITS].encode()
