"""Authenticated sealing, bound to who says what to whom and when (spec 2.4)."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sfsl.crypto.kdf import frame
from sfsl.crypto.secret import Secret
from sfsl.errors import AuthenticationFailed

OVERHEAD = 16
# A channel key is directional and seals one box per round: the nonce never repeats under a key.
_NONCE = bytes(12)


def _header(kind: str, round_id: bytes, sender: int, receiver: int) -> bytes:
    return frame("seal " + kind, round_id, sender.to_bytes(4, "big"), receiver.to_bytes(4, "big"))


def seal(key: Secret, plaintext: bytes, kind: str, round_id: bytes, sender: int, receiver: int) -> bytes:
    header = _header(kind, round_id, sender, receiver)
    return AESGCM(key.reveal()).encrypt(_NONCE, plaintext, header)


def unseal(key: Secret, box: bytes, kind: str, round_id: bytes, sender: int, receiver: int) -> bytes:
    """Open a box, or raise: it was not sealed by this sender, for this receiver, in this round."""
    header = _header(kind, round_id, sender, receiver)
    try:
        return AESGCM(key.reveal()).decrypt(_NONCE, box, header)
    except InvalidTag:
        raise AuthenticationFailed(f"the box from client {sender} does not open") from None
