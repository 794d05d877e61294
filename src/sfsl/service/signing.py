"""Signed requests: what a client signs, what a server accepts, and each only once (spec network 2).

A request names its client, the host that it is meant for, the time and a nonce; the signature covers these,
the deployment, the method, the target and the body. Nothing secret is in a header. ``Verifier`` takes a
request once. The host keeps a server from claiming another's deployment and passing requests on to it.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from sfsl.crypto.secret import Identity, Randomness, digest, verify
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    DecodeError,
    InputError,
    InvalidMessage,
    Oversize,
    ParameterError,
    Replayed,
    TooMany,
)

_PIECES = 8
_MOST_NONCES = 2_000_000  # of all clients, about 100 bytes each,
_BUSY_CLIENTS = 16  # or so many at the rate that each is promised, if that is more
CLIENT, HOST, TIME = "Sfsl-Client", "Sfsl-Host", "Sfsl-Time"
NONCE, SIGNATURE = "Sfsl-Nonce", "Sfsl-Signature"
LABEL = "http request"
DEPLOYMENT_BYTES = 16
NONCE_BYTES = 16
MOST_TARGET = 2048
MOST_HOST = 253
_METHOD = re.compile("[A-Z]{1,16}")
_TARGET = re.compile("/[!-~]*")
_HOST = re.compile("[a-z0-9._:-]+")
# The field of Ed25519, and the heights of the eight points of small order. Under such a key anyone can
# make signatures that verify.
_P = 2**255 - 19
_HEIGHT_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset((0, 1, _P - 1, _HEIGHT_8, _P - _HEIGHT_8))


def nonces_needed(rate: float, burst: int, window_ms: int, body_ms: int) -> int:
    """Return how many requests of one client are remembered at a time where it may send ``rate`` a second and
    ``burst`` at once: a clock that is ahead by the whole window makes its nonces last longest."""
    kept_ms = window_ms + body_ms
    lasts_ms = window_ms + kept_ms + 2 * _width(kept_ms)
    return burst + math.ceil(rate * lasts_ms / 1000)


def _width(kept_ms: int) -> int:
    return -(-kept_ms // _PIECES)


class Nonces:
    """Remembers (client, nonce) until ``kept_ms`` after the time that the request *claims*, which may lie
    ahead of when it came. Time is cut into pieces, forgotten one at a time. What is older than the last
    forgotten piece is refused whatever the clock says, so a clock that is set back makes no old nonce new."""

    def __init__(self, *, kept_ms: int, per_client: int, most_clients: int, most: int) -> None:
        if min(kept_ms, per_client, most_clients, most) < 1:
            raise ParameterError("the limits on remembered requests are 1 at the least")
        self._kept_ms, self._width_ms = kept_ms, _width(kept_ms)
        self._per_client, self._most_clients, self._most = per_client, most_clients, most
        self._pieces: dict[int, dict[str, set[bytes]]] = {}
        self._counts: dict[str, int] = {}
        self._total = 0
        self._forgotten = -1  # the latest piece that was forgotten

    def __len__(self) -> int:
        return self._total

    def require_new(self, client: str, nonce: bytes, time_ms: int, now_ms: int) -> None:
        """Raise unless this nonce is new and there is room to remember it."""
        self._forget(now_ms)
        piece = time_ms // self._width_ms
        if piece <= self._forgotten or time_ms < now_ms - self._kept_ms:
            raise Replayed(f"client {client} sent a request so old that it may be a copy; sign again")
        if nonce in self._pieces.get(piece, {}).get(client, ()):
            raise Replayed(f"client {client} sent a request that was taken before; a retry is signed again")
        if self._counts.get(client, 0) >= self._per_client:
            raise TooMany(
                f"client {client} sent {self._per_client} requests within {self._kept_ms / 1000:g} s; "
                "slow down",
                wait_ms=self._wait(client, now_ms),
            )
        full = client not in self._counts and len(self._counts) >= self._most_clients
        if full or self._total >= self._most:
            raise TooMany(
                f"{self._total} requests of {len(self._counts)} clients are remembered, and there is no room "
                "for more",
                wait_ms=self._wait(None, now_ms),
            )

    def remember(self, client: str, nonce: bytes, time_ms: int) -> None:
        """Take a nonce that ``require_new`` let pass."""
        self._pieces.setdefault(time_ms // self._width_ms, {}).setdefault(client, set()).add(nonce)
        self._counts[client] = self._counts.get(client, 0) + 1
        self._total += 1

    def _forget(self, now_ms: int) -> None:
        """Drop the pieces that lie wholly before what is kept."""
        last = (now_ms - self._kept_ms) // self._width_ms - 1
        for piece in [piece for piece in self._pieces if piece <= last]:
            for client, nonces in self._pieces.pop(piece).items():
                self._total -= len(nonces)
                self._counts[client] -= len(nonces)
                if not self._counts[client]:
                    del self._counts[client]
            self._forgotten = max(self._forgotten, piece)

    def _wait(self, client: str | None, now_ms: int) -> int:
        """Return the milliseconds until the first piece (of this client) is forgotten."""
        pieces = [piece for piece, taken in self._pieces.items() if client is None or client in taken]
        return max(1, (min(pieces) + 1) * self._width_ms + self._kept_ms - now_ms)


_FORMS = {
    CLIENT.lower(): (CLIENT, 32, re.compile("[0-9a-f]{32}")),
    HOST.lower(): (HOST, MOST_HOST, _HOST),
    TIME.lower(): (TIME, 15, re.compile("0|[1-9][0-9]{0,14}")),
    NONCE.lower(): (NONCE, 2 * NONCE_BYTES, re.compile("[0-9a-f]{32}")),
    SIGNATURE.lower(): (SIGNATURE, 128, re.compile("[0-9a-f]{128}")),
}


def client_id(public: bytes) -> str:
    """Return the name that a public key gives its client: nobody else can sign as it."""
    require_public(public)
    return digest("client id", public)[:16].hex()


def require_public(public: bytes) -> None:
    """Refuse a key that is no canonical Ed25519 public key, or one under which anyone can sign."""
    if len(public) != 32:
        raise InvalidMessage(f"an Ed25519 public key has 32 bytes, not {len(public)}")
    height = int.from_bytes(public, "little") & (2**255 - 1)
    if height >= _P or height in _SMALL_ORDER:
        raise InvalidMessage("an Ed25519 public key that is not canonical or of small order")


def host_name(text: str) -> str:
    """Return a host as it is signed: a name in small ASCII letters, or an address in its shortest form."""
    try:
        return ipaddress.ip_address(text).compressed
    except ValueError:
        pass
    try:
        name = text.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        name = ""
    if not (_HOST.fullmatch(name) and len(name) <= MOST_HOST):
        raise InputError(f"{text!r} is not the name or address of a host")
    return name


def sign_request(
    identity: Identity,
    *,
    deployment: bytes,
    host: str,
    method: str,
    target: str,
    body: bytes,
    now_ms: int,
    randomness: Randomness,
) -> dict[str, str]:
    """Return the headers of one request to ``host``, as the server's certificate names it. A retry is signed
    again: a nonce is taken once."""
    if len(deployment) != DEPLOYMENT_BYTES:
        raise InputError(f"a deployment id has {DEPLOYMENT_BYTES} bytes, not {len(deployment)}")
    if not 0 <= now_ms < 10**15:
        raise InputError(f"{now_ms} is not a time in milliseconds since 1970")
    if not _signable(method, target):
        raise InputError(
            f"a method is in capitals, and a target starts with / and has at most {MOST_TARGET} printable "
            "ASCII characters; percent-encode the others"
        )
    nonce, host = randomness.bytes(NONCE_BYTES), host_name(host)
    parts = _parts(deployment, host, method, target, sha256(body).digest(), now_ms, nonce)
    return {
        CLIENT: client_id(identity.public),
        HOST: host,
        TIME: str(now_ms),
        NONCE: nonce.hex(),
        SIGNATURE: identity.sign(LABEL, *parts).hex(),
    }


def _parts(
    deployment: bytes, host: str, method: str, target: str, body_sha256: bytes, time_ms: int, nonce: bytes
) -> tuple[bytes, ...]:
    line = (host.encode("ascii"), method.encode("ascii"), target.encode("ascii"))
    return deployment, *line, body_sha256, time_ms.to_bytes(8, "big"), nonce


def _signable(method: str, target: str) -> bool:
    return bool(_METHOD.fullmatch(method) and _TARGET.fullmatch(target)) and len(target) <= MOST_TARGET


@dataclass(frozen=True)
class Claim:
    """Holds what a request's headers say. Nobody has proved it yet."""

    client: str
    host: str
    time_ms: int
    nonce: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def parse_headers(headers: Mapping[str, str]) -> Claim:
    """Return the claim, or raise a ``DecodeError`` that quotes nothing of what was sent. Other headers are
    ignored."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if (known := _FORMS.get(name.lower())) is None:
            continue
        title, most, form = known
        if title in found:
            raise DecodeError(f"{title} is there twice")
        if len(value) > most:
            raise Oversize(f"{title} has {len(value)} characters where at most {most} are allowed")
        if not form.fullmatch(value):
            raise DecodeError(f"{title} is not in its canonical form")
        found[title] = value
    if missing := [title for title, _, _ in _FORMS.values() if title not in found]:
        raise DecodeError(f"the request is not signed: {', '.join(missing)} missing")
    return Claim(
        found[CLIENT],
        found[HOST],
        int(found[TIME]),
        bytes.fromhex(found[NONCE]),
        bytes.fromhex(found[SIGNATURE]),
    )


class Verifier:
    """Checks requests to one deployment and remembers which it has taken. Cheap checks come first, and a
    refused request leaves no trace. Not for use by two threads at once.

    ``public_key_of`` raises ``UnknownClient`` or ``Revoked``. ``hosts``: what this server is called, as its
    certificate has it, ``*.`` standing for one more label; a request that was signed for another host is
    passed on by someone, and refused. ``window_ms``: how far a request's clock may
    be off, either way, when its headers arrive. ``body_ms``: how long its body may take from then on.
    ``rate`` and ``burst``: what a client is promised, in requests a second and at once; there is room for all
    of it. ``not_before_ms``: when this process began; what was signed earlier may have been taken by the one
    before it, whose memory is gone. ``cover`` is told the time that a request claims before it is taken, and
    keeps it for the process after this one (``SigningClock``).
    """

    def __init__(
        self,
        deployment: bytes,
        public_key_of: Callable[[str], bytes],
        *,
        hosts: Collection[str],
        window_ms: int = 120_000,
        body_ms: int = 120_000,
        rate: float = 20.0,
        burst: int = 100,
        nonces_per_client: int | None = None,
        most_clients: int = 100_000,
        most_nonces: int | None = None,
        not_before_ms: int = 0,
        cover: Callable[[int], None] = lambda time_ms: None,
    ) -> None:
        if len(deployment) != DEPLOYMENT_BYTES:
            raise ParameterError(f"a deployment id has {DEPLOYMENT_BYTES} bytes, not {len(deployment)}")
        if window_ms < 1 or body_ms < 0:
            raise ParameterError("the time window has 1 ms at the least, and bodies 0 ms")
        self._deployment, self._public_key_of = deployment, public_key_of
        self._hosts = frozenset(
            f"*.{host_name(one[2:])}" if one.startswith("*.") else host_name(one) for one in hosts
        )
        self._window_ms, self._not_before_ms, self._cover = window_ms, not_before_ms, cover
        each = nonces_per_client
        if each is None:
            each = nonces_needed(rate, burst, window_ms, body_ms)
        # As long as a copy of a request could still pass: the window after its time, then its body.
        self._nonces = Nonces(
            kept_ms=window_ms + body_ms,
            per_client=each,
            most_clients=most_clients,
            most=max(_MOST_NONCES, _BUSY_CLIENTS * each) if most_nonces is None else most_nonces,
        )

    @property
    def remembered(self) -> int:
        """The number of nonces in memory."""
        return len(self._nonces)

    def check(
        self, headers: Mapping[str, str], method: str, target: str, body_sha256: bytes, now_ms: int
    ) -> str:
        """Return the client that signed exactly this request, for the first time; else raise."""
        claim = self.check_headers(headers, now_ms)
        return self.check_body(claim, method, target, body_sha256, now_ms)

    def check_headers(self, headers: Mapping[str, str], now_ms: int) -> Claim:
        """Refuse what can be refused before the body is read: form, time, client, rate, replay."""
        claim = parse_headers(headers)
        self._require_host(claim)
        self._require_time(claim, now_ms)
        self._public_key_of(claim.client)
        self._nonces.require_new(claim.client, claim.nonce, claim.time_ms, now_ms)
        return claim

    def check_body(
        self,
        claim: Claim,
        method: str,
        target: str,
        body_sha256: bytes,
        now_ms: int,
        admit: Callable[[str], None] = lambda client: None,
    ) -> str:
        """Check the rest, once the body is here. What may have changed meanwhile is checked again. ``admit``
        may refuse whoever signed it; what it refuses takes no room in memory."""
        public = self._public_key_of(claim.client)
        self._nonces.require_new(claim.client, claim.nonce, claim.time_ms, now_ms)
        self._require_signature(claim, public, method, target, body_sha256)
        admit(claim.client)
        self._cover(claim.time_ms)
        self._nonces.remember(claim.client, claim.nonce, claim.time_ms)
        return claim.client

    def check_enrolment(
        self,
        headers: Mapping[str, str],
        method: str,
        target: str,
        body_sha256: bytes,
        now_ms: int,
        public: bytes,
    ) -> str:
        """Return the id of someone who asks to be enrolled under ``public`` and holds its private key. Its
        nonce is not remembered: keys cost nothing, so anyone could fill the memory. Enrolling twice must
        therefore be the same as enrolling once."""
        claim = parse_headers(headers)
        self._require_host(claim)
        self._require_time(claim, now_ms)
        if client_id(public) != claim.client:
            raise AuthenticationFailed("this client's id does not follow from this public key")
        self._require_signature(claim, public, method, target, body_sha256)
        return claim.client

    def _require_host(self, claim: Claim) -> None:
        if self._hosts.isdisjoint((claim.host, "*." + claim.host.partition(".")[2])):
            own = ", ".join(sorted(self._hosts)[:3])
            raise AuthenticationFailed(
                f"signed for another host than this server's ({own}). Someone passes requests on, or its "
                "operator has to add the name to serve.hosts"
            )

    def _require_time(self, claim: Claim, now_ms: int) -> None:
        off = claim.time_ms - now_ms
        if abs(off) > self._window_ms:
            raise ClockSkew(
                f"the clock that signed this is {_seconds(off)} ours; at most "
                f"{self._window_ms / 1000:g} s are allowed. Correct the clock and sign again",
                off_ms=off,
            )
        if claim.time_ms < self._not_before_ms:
            said = f"signed before this server started, {_seconds(off)} our clock. Sign again"
            raise ClockSkew(said, off_ms=off)

    def _require_signature(
        self, claim: Claim, public: bytes, method: str, target: str, body_sha256: bytes
    ) -> None:
        if not _signable(method, target):
            raise DecodeError("a method or target that cannot be signed")
        parts = _parts(self._deployment, claim.host, method, target, body_sha256, claim.time_ms, claim.nonce)
        verify(public, claim.signature, LABEL, *parts)


def _seconds(off_ms: int) -> str:
    return f"{abs(off_ms) / 1000:.1f} s {'ahead of' if off_ms > 0 else 'behind'}"
