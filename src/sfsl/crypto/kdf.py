"""One way to turn a secret into a key: HKDF-SHA256 under a domain-separating label (spec 2.2)."""

import hashlib

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sfsl.crypto.secret import Secret

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
