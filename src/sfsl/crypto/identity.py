"""Long-term Ed25519 identities (spec 2.6)."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sfsl.crypto.secret import Randomness, Secret, frame
from sfsl.errors import AuthenticationFailed


class Identity:
    """Signs under a label, so that a signature for one purpose means nothing for another."""

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
