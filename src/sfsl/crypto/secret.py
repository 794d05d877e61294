"""Keys and secrets: drawn, derived, agreed, signed with, sealed for one other, shared among many.

Shares are Shamir's, of 32-byte secrets over the prime field of p = 2^256 + 297 (spec 2.7). The prime exceeds
2^256, so every 32-byte string is an element and no secret is folded.

The deterministic source for tests and vectors is in ``sfsl.testing``, which an import contract keeps
out of every other module of this package.
"""

import hashlib
import os
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NoReturn, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sfsl.errors import AuthenticationFailed, InvalidMessage, KeyMismatch, ParameterError

_PREFIX = b"sfsl/1 "
KEY_BYTES = 32
# Any scalar serves to find out whether a point has small order; this one is no one's key.
_PROBE = X25519PrivateKey.from_private_bytes(bytes(31) + b"\x40")
OVERHEAD = 16
# A channel key is directional and seals one box per round: the nonce never repeats under a key.
_NONCE = bytes(12)
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


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


class KeyPair:
    """An X25519 key pair. The private half leaves only through ``private`` (to be shared, spec 4.3)."""

    __slots__ = ("_key", "private", "public")

    def __init__(self, private: Secret) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private.reveal())
        self.private = private
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, randomness: Randomness) -> "KeyPair":
        return cls(Secret(randomness.bytes(KEY_BYTES)))

    def agree(self, peer_public: bytes) -> Secret:
        """The raw shared secret; an all-zero result (a small-order key) is an error."""
        return Secret(_exchange(self._key, peer_public))

    def __repr__(self) -> str:
        return "KeyPair(redacted)"


def require_contributory(public: bytes) -> None:
    """Refuse a public key of small order: agreeing with it would give everyone the same secret."""
    _exchange(_PROBE, public)


def require_canonical(public: bytes) -> None:
    """Refuse a second way to write a key: it would pass for another one, and never match the real one."""
    if int.from_bytes(public, "little") >= 2**255 - 19:
        raise AuthenticationFailed("a public key that is not in canonical form")


def _exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise AuthenticationFailed("a public key of small order or wrong length") from None


def channel_keys(own: KeyPair, peer: bytes, binding: bytes) -> tuple[Secret, Secret]:
    """The keys for sending and for receiving. They differ: no nonce is ever shared between the two ends."""
    shared = own.agree(peer)
    sending, receiving = (own.public, peer), (peer, own.public)
    return derive(shared, "channel", binding, *sending), derive(shared, "channel", binding, *receiving)


def pair_mask_key(own: KeyPair, peer: bytes, binding: bytes, context: bytes, low: int, high: int) -> Secret:
    """The key of the pair at roster positions ``low < high``: both ends derive the same key."""
    first, second = sorted((own.public, peer))
    places = low.to_bytes(4, "big") + high.to_bytes(4, "big")
    return derive(own.agree(peer), "pair-mask", binding, context, places, first, second)


def _header(kind: str, round_id: bytes, sender: int, receiver: int) -> bytes:
    return frame("seal " + kind, round_id, sender.to_bytes(4, "big"), receiver.to_bytes(4, "big"))


def seal(key: Secret, plaintext: bytes, kind: str, round_id: bytes, sender: int, receiver: int) -> bytes:
    return AESGCM(key.reveal()).encrypt(_NONCE, plaintext, _header(kind, round_id, sender, receiver))


def unseal(key: Secret, box: bytes, kind: str, round_id: bytes, sender: int, receiver: int) -> bytes:
    """Open a box, or raise: it was not sealed by this sender, for this receiver, in this round."""
    try:
        return AESGCM(key.reveal()).decrypt(_NONCE, box, _header(kind, round_id, sender, receiver))
    except InvalidTag:
        raise AuthenticationFailed(f"the box from client {sender} does not open") from None


class Identity:
    """A long-term Ed25519 identity (spec 2.6). It signs under a label, so that a signature for one purpose
    means nothing for another."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: Secret) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed.reveal())
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, randomness: Randomness) -> "Identity":
        return cls(Secret(randomness.bytes(32)))

    def sign(self, label: str, *parts: bytes) -> bytes:
        return self._key.sign(frame("sign " + label, *parts))

    def __repr__(self) -> str:
        return f"Identity({self.public.hex()})"


def verify(public: bytes, signature: bytes, label: str, *parts: bytes) -> None:
    """Raise unless ``public`` signed exactly these parts under this label."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, frame("sign " + label, *parts))
    except (InvalidSignature, ValueError):
        raise AuthenticationFailed(f"a signature over {label} does not verify") from None


def split(secret: Secret, threshold: int, points: Sequence[int], randomness: Randomness) -> list[bytes]:
    """One share per point; any ``threshold`` of them give the secret, fewer say nothing about it."""
    if len(secret) != SECRET_BYTES:
        raise ParameterError(f"a secret of {SECRET_BYTES} bytes is needed, not {len(secret)}")
    if not 2 <= threshold <= len(points):
        raise ParameterError(f"threshold {threshold} does not fit {len(points)} shares (2 at the least)")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ParameterError("share points must be distinct and in 1..p-1")
    # Highest power first, the secret last: Horner's order. Points are small, so one reduction at the
    # end costs less than one per step.
    coefficients = [
        *(_element(randomness) for _ in range(threshold - 1)),
        int.from_bytes(secret.reveal(), "big"),
    ]
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = value * point + coefficient
        shares.append((value % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def parse_share(share: bytes) -> int:
    """A share received from someone else as a field element."""
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise InvalidMessage("a share that is not an element of the sharing field")
    return value


class Interpolation:
    """Lagrange weights at zero for one set of points, computed once and used for every secret."""

    def __init__(self, points: Sequence[int]) -> None:
        if len(set(points)) != len(points):
            raise ParameterError("share points must be distinct")
        # Point x has the weight Π others / (other - x), that is Π points / (x Π (other - x)).
        product = prod(points)
        inverses = _inverses([x * prod([y - x for y in points if y != x]) % PRIME for x in points])
        self._weights = [product * inverse % PRIME for inverse in inverses]

    def secret(self, shares: Sequence[int]) -> Secret:
        """The secret behind the shares, in the order of the points."""
        return as_secret(sum(w * s for w, s in zip(self._weights, shares, strict=True)) % PRIME)


def as_secret(element: int) -> Secret:
    if element >> (8 * SECRET_BYTES):
        raise KeyMismatch("the shares do not belong to one secret")
    return Secret(element.to_bytes(SECRET_BYTES, "big"))


def _inverses(elements: Sequence[int]) -> list[int]:
    """The inverses of all elements from that of their product, which alone is slow to find."""
    before = list(accumulate(elements, lambda product, one: product * one % PRIME, initial=1))
    inverse, found = pow(before.pop(), -1, PRIME), list[int]()
    for one, product in zip(reversed(elements), reversed(before), strict=True):
        found.append(inverse * product % PRIME)
        inverse = inverse * one % PRIME
    return found[::-1]


def _element(randomness: Randomness) -> int:
    """A uniform field element: 33 bytes cut to 257 bits, redrawn until below the prime."""
    while True:
        value = int.from_bytes(randomness.bytes(SHARE_BYTES), "big") & ((1 << 257) - 1)
        if value < PRIME:
            return value
