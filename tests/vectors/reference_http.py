"""Signed requests a second time, written from docs/spec/network.md alone: plain, and without sfsl.

It is what ``http.json`` is checked against. Numbers in comments are sections of that page.
"""

import hashlib
import re
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def frame(label: str, *parts: bytes) -> bytes:
    """secure-aggregation 2.2."""
    whole = (b"sfsl/1 " + label.encode("ascii"), *parts)
    return b"".join(len(part).to_bytes(4, "big") + part for part in whole)


def public_key(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


# -- 1 -----------------------------------------------------------------------------------------------------


def client_id(public: bytes) -> str:
    return hashlib.sha256(frame("client id", public)).hexdigest()[:32]


def may_enrol(public: bytes) -> bool:
    """1.1, by the curve's own law: doubling three times must not end at the neutral point."""
    y, odd = int.from_bytes(public, "little") & (2**255 - 1), public[31] >> 7
    if y >= P:
        return False
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return True  # no point at all: nothing it signs verifies
    if x % 2 != odd:
        x = -x % P
    for _ in range(3):
        t = D * x * x * y * y % P
        x, y = 2 * x * y * pow(1 + t, -1, P) % P, (y * y + x * x) * pow(1 - t, -1, P) % P
    return (x, y) != (0, 1)


def identity_file(seed: bytes) -> str:
    """1.3."""
    checksum = hashlib.sha256(frame("identity file", seed)).hexdigest()[:16]
    return f"sfsl identity 1\n{seed.hex()}\n{checksum}\n"


# -- 2 -----------------------------------------------------------------------------------------------------


def to_sign(
    deployment: bytes, host: str, method: str, target: str, body: bytes, time_ms: int, nonce: bytes
) -> bytes:
    digest = hashlib.sha256(body).digest()
    line, time = (host.encode(), method.encode(), target.encode()), time_ms.to_bytes(8, "big")
    return frame("sign http request", deployment, *line, digest, time, nonce)


def headers(
    seed: bytes,
    deployment: bytes,
    host: str,
    method: str,
    target: str,
    body: bytes,
    time_ms: int,
    nonce: bytes,
) -> dict[str, str]:
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign(
        to_sign(deployment, host, method, target, body, time_ms, nonce)
    )
    return {
        "Sfsl-Client": client_id(public_key(seed)),
        "Sfsl-Host": host,
        "Sfsl-Time": str(time_ms),
        "Sfsl-Nonce": nonce.hex(),
        "Sfsl-Signature": signature.hex(),
    }


FORMS = {
    "Sfsl-Client": r"[0-9a-f]{32}",
    "Sfsl-Host": r"[a-z0-9._:-]{1,253}",
    "Sfsl-Time": r"0|[1-9][0-9]{0,14}",
    "Sfsl-Nonce": r"[0-9a-f]{32}",
    "Sfsl-Signature": r"[0-9a-f]{128}",
}


def verdict(
    keys: dict[str, bytes],
    hosts: list[str],
    window_ms: int,
    request: dict[str, Any],
    given: dict[str, str],
    now_ms: int,
) -> str:
    """2.3 without the memory: "taken", or why not."""
    for name, form in FORMS.items():
        if name not in given or not re.fullmatch(form, given[name]):
            return "malformed"
    host = given["Sfsl-Host"]
    if host not in hosts and "*." + host.partition(".")[2] not in hosts:
        return "signature"
    time = int(given["Sfsl-Time"])
    if abs(time - now_ms) > window_ms:
        return "clock"
    if given["Sfsl-Client"] not in keys:
        return "unknown"
    if not re.fullmatch("[A-Z]{1,16}", request["method"]) or not re.fullmatch(
        "/[!-~]{0,2047}", request["target"]
    ):
        return "malformed"
    message = to_sign(
        bytes.fromhex(request["deployment"]),
        host,
        request["method"],
        request["target"],
        bytes.fromhex(request["body"]),
        time,
        bytes.fromhex(given["Sfsl-Nonce"]),
    )
    try:
        Ed25519PublicKey.from_public_bytes(keys[given["Sfsl-Client"]]).verify(
            bytes.fromhex(given["Sfsl-Signature"]), message
        )
    except InvalidSignature:
        return "signature"
    return "taken"
