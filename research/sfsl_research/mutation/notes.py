"""Notes that the gate keeps between runs, each a line with a checksum. ``sfsl.durable`` has no part in it: it
may be what is mutated, and nothing of ``sfsl`` is imported where the gate runs."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DIGITS = 16


def sealed(note: object) -> bytes:
    text = json.dumps(note).encode()
    return _sum(text) + b" " + text + b"\n"


def read_notes(path: Path) -> Iterator[Any]:
    """Yield the notes that are whole; what they would have said is found out again."""
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        digits, _, text = line.partition(b" ")
        if digits == _sum(text):
            yield json.loads(text)


def add_note(path: Path, note: object) -> None:
    """Add one behind whatever an earlier run left of its last."""
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write(sealed(note))


def replace_notes(path: Path, note: object) -> None:
    """Let this be the only one, whole or not at all."""
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(sealed(note))
    aside.replace(path)


def _sum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_DIGITS].encode()
