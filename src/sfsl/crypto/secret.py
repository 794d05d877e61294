"""Secrets and where they come from: randomness, secrets that are never shown, keys derived under labels."""

import hashlib
import os
from typing import NoReturn, Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class Randomness(Protocol):
    def bytes(self, count: int, /) -> bytes:
        """Return ``count`` fresh uniform bytes."""


class SystemRandomness:
    """The operating system's generator."""

    def bytes(self, count: int, /) -> bytes:
        return os.urandom(count)


class Secret:
    """Holds secret bytes; ``reveal()`` is the only way to them. Cannot be printed, compared or pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return "Secret(redacted)"

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("secrets are not compared; verify what was published instead")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not serialised")


_PREFIX = b"sfsl/1 "


def frame(label: str, *parts: bytes) -> bytes:
    """Join a label and parts so that no two different inputs give the same bytes."""
    head = _PREFIX + label.encode("ascii")
    return b"".join(len(part).to_bytes(4, "big") + part for part in (head, *parts))


def derive(secret: Secret, label: str, *context: bytes) -> Secret:
    """Derive a 32-byte key for one purpose and one context."""
    kdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=frame(label, *context))
    return Secret(kdf.derive(secret.reveal()))


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 of framed public (or high-entropy) parts."""
    return hashlib.sha256(frame(label, *parts)).digest()
