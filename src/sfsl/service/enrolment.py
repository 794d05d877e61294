"""Who may enrol: the keys on a list, or anyone up to a number (spec network 1).

A least cohort means nothing if someone can invent clients. **Open enrolment is an invitation to Sybils**:
whoever makes keys makes clients, and a server can then surround a victim with its own. It is for tests and
for closed networks. A list is worth as much as the care with which it is kept.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sfsl.errors import InputError, InvalidMessage, ParameterError, Refused, UnknownClient
from sfsl.service.signing import client_id, require_public

if TYPE_CHECKING:
    from sfsl.service.registry import Registry

_KEY = re.compile("[0-9a-fA-F]{64}")
_MOST_LINE = 4096


class Enrolment:
    """Made by ``Enrolment.listed`` or ``Enrolment.open``."""

    def __init__(self, mode: str, *, path: Path | None = None, most: int | None = None) -> None:
        self.mode = mode
        self._path = path
        self._most = most
        self._keys: frozenset[bytes] = frozenset()
        self._seen: tuple[int, ...] | None = None

    @classmethod
    def listed(cls, path: str | os.PathLike[str]) -> "Enrolment":
        """Mode "list": a file of public keys, one a line in hexadecimal, ``#`` starts a comment. It is read
        again when it changes. A key taken off it keeps who is enrolled already: revoke them."""
        rule = cls("list", path=Path(path))
        rule.read()  # what is wrong with it shows at the start
        return rule

    @classmethod
    def open(cls, most: int) -> "Enrolment":
        """Mode "open": anyone, until ``most`` clients are enrolled. See above: this means Sybils."""
        if most < 1:
            raise ParameterError(f"open enrolment for {most} clients admits nobody")
        return cls("open", most=most)

    def admit(self, registry: "Registry", public: bytes, now_ms: int) -> str:
        """Enrol this key and return its client's id, or say why not. Who is enrolled already stays so."""
        client = client_id(public)
        try:
            registry.public_key(client)
        except UnknownClient:
            self._require(registry, client, public)
        return registry.enrol(public, now_ms)

    def _require(self, registry: "Registry", client: str, public: bytes) -> None:
        if self._path is not None and bytes(public) not in self.read():
            raise Refused(
                f"client {client} is not on this server's list; ask its operator to add the public key"
            )
        if self._most is not None and registry.count() >= self._most:
            raise Refused(f"this server takes {self._most} clients and has them")

    def read(self) -> frozenset[bytes]:
        """The list, from the disk if it changed. A list with a mistake admits nobody."""
        if self._path is None:
            raise InputError('only mode "list" has a list of keys')
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if seen != self._seen:
                    self._seen = None
                    self._keys = frozenset(_keys(file, self._path))
                    self._seen = seen
        except OSError as error:
            self._seen = None
            raise InputError(f"cannot read the list of clients {self._path}: {error.strerror}") from None
        return self._keys


def _keys(file: BinaryIO, path: Path) -> Iterator[bytes]:
    number = 0
    while line := file.readline(_MOST_LINE):
        number += 1
        text = line.decode("utf-8", "replace").partition("#")[0].strip()
        if len(line) == _MOST_LINE and not line.endswith(b"\n"):
            raise InputError(f"{path}, line {number}: longer than {_MOST_LINE} bytes")
        if not text:
            continue
        if not _KEY.fullmatch(text):
            raise InputError(
                f"{path}, line {number}: a public key has 64 hexadecimal digits (sfsl keys show)"
            )
        key = bytes.fromhex(text)
        try:
            require_public(key)
        except InvalidMessage as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        yield key
