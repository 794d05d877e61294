"""What a network, a stranger or an enrolled client would try on signed requests and on the registry."""

import fcntl
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, remove

from clocks import PATIENCE
from sfsl.crypto.secret import Identity
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    DecodeError,
    InvalidMessage,
    Oversize,
    Replayed,
    Revoked,
    StoreCorrupt,
    StoreInUse,
    TooMany,
)
from sfsl.service import registry, signing
from sfsl.service.registry import Registry
from sfsl.service.signing import Verifier, client_id, sign_request
from sfsl.testing import SeededRandomness

NOW = 1_800_000_000_000
WINDOW, BODY_MS = 120_000, 60_000
DEPLOYMENT = bytes(range(16))
RANDOM = SeededRandomness("http attacks")
VICTIM, EVE = Identity.generate(RANDOM), Identity.generate(RANDOM)
KEYS = {client_id(one.public): one.public for one in (VICTIM, EVE)}
REVOKED: set[str] = set()
HOST = "sfsl.example.org"
TARGET, BODY = "/v1/rounds/7/masked?part=1", b"the victim's answer"

ATTACKS, attack = collector()


def key_of(client: str) -> bytes:
    if client in REVOKED:
        raise Revoked("withdrawn")
    return KEYS[client]


def server(deployment: bytes = DEPLOYMENT, **other: Any) -> Verifier:
    return Verifier(deployment, key_of, hosts=(HOST,), window_ms=WINDOW, body_ms=BODY_MS, **other)


def signed(
    now: int = NOW, identity: Identity = VICTIM, body: bytes = BODY, host: str = HOST
) -> dict[str, str]:
    return sign_request(
        identity,
        deployment=DEPLOYMENT,
        host=host,
        method="POST",
        target=TARGET,
        body=body,
        now_ms=now,
        randomness=RANDOM,
    )


def send(
    to: Verifier,
    headers: dict[str, str],
    now: int = NOW,
    method: str = "POST",
    target: str = TARGET,
    body: bytes = BODY,
) -> str:
    return to.check(headers, method, target, sha256(body).digest(), now)


def unsigned_parts(*left_out: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Weaken by leaving some of what a request says out of what is signed."""

    def weaken(patch: pytest.MonkeyPatch) -> None:
        real = signing._parts

        def fewer(*parts: Any) -> tuple[bytes, ...]:
            return tuple(b"" if place in left_out else part for place, part in enumerate(real(*parts)))

        patch.setattr(signing, "_parts", fewer)

    return weaken


# -- the network ----------------------------------------------------------------------------------------


@attack(refusal=Replayed, weaken=remove(signing.Nonces, "remember"))
def replay() -> bool:
    to, headers = server(), signed()
    send(to, headers)
    return bool(send(to, headers, NOW + 1000))


@attack(refusal=Replayed, weaken=remove(signing.Nonces, "remember"))
def replay_under_other_names_of_the_same_headers() -> bool:
    to, headers = server(), signed()
    send(to, headers)
    return bool(send(to, {name.upper(): value for name, value in headers.items()}))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(0))
def replay_at_another_deployment() -> bool:
    return bool(send(server(bytes(16)), signed()))


def unsigned_host(patch: pytest.MonkeyPatch) -> None:
    unsigned_parts(1)(patch)
    remove(Verifier, "_require_host")(patch)


@attack(refusal=AuthenticationFailed, weaken=remove(Verifier, "_require_host"))
def passed_on_by_a_server_that_claims_this_deployment() -> bool:
    """At first contact a client takes a deployment's id from whom it asks. Whoever says another's id gets
    requests signed for that deployment, and could pass them on to it."""
    return bool(send(server(), signed(host="evil.example")))


@attack(refusal=AuthenticationFailed, weaken=unsigned_host)
def passed_on_under_the_right_name() -> bool:
    return bool(send(server(), signed(host="evil.example") | {"Sfsl-Host": HOST}))


@attack(refusal=AuthenticationFailed, weaken=remove(Verifier, "_require_host"))
def an_enrolment_passed_on() -> bool:
    """The stranger's server enrols those who come to it at another deployment, without their knowledge."""
    sent = signed(identity=EVE, host="evil.example")
    return bool(server().check_enrolment(sent, "POST", TARGET, sha256(BODY).digest(), NOW, EVE.public))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(2))
def another_method() -> bool:
    return bool(send(server(), signed(), method="DELETE"))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(3))
def another_target() -> bool:
    return bool(send(server(), signed(), target="/v1/rounds/8/masked?part=1"))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(3))
def another_query() -> bool:
    return bool(send(server(), signed(), target="/v1/rounds/7/masked?part=2"))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(4))
def another_body() -> bool:
    return bool(send(server(), signed(), body=b"the attacker's answer"))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(5))
def an_old_request_with_a_new_time() -> bool:
    return bool(send(server(), signed(NOW - 10**7) | {"Sfsl-Time": str(NOW)}))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(6))
def a_taken_request_with_a_new_nonce() -> bool:
    to, headers = server(), signed()
    send(to, headers)
    return bool(send(to, headers | {"Sfsl-Nonce": "0" * 32}))


@attack(refusal=AuthenticationFailed, weaken=unsigned_parts(2, 3))
def the_border_between_method_and_target_moved() -> bool:
    """POST /v1… as POSTX 1…: without lengths in front of the parts both would be the same bytes."""
    headers = sign_request(
        VICTIM,
        deployment=DEPLOYMENT,
        host=HOST,
        method="GET",
        target="/A/B",
        body=BODY,
        now_ms=NOW,
        randomness=RANDOM,
    )
    return bool(send(server(), headers, method="GE", target="/T/A/B"))


@attack(refusal=ClockSkew, weaken=remove(Verifier, "_require_time"))
def a_request_kept_back() -> bool:
    return bool(send(server(), signed(NOW), NOW + WINDOW + 1))


@attack(refusal=ClockSkew, weaken=remove(Verifier, "_require_time"))
def a_request_signed_for_next_year() -> bool:
    """Got from a device whose clock was wrong, to be used whenever it suits."""
    return bool(send(server(), signed(NOW + 3 * 10**10)))


# -- old nonces -----------------------------------------------------------------------------------------


def forgets_by_arrival(patch: pytest.MonkeyPatch) -> None:
    """Weaken: forget a nonce a window after it came, not a window after its time."""
    real = signing.Nonces.require_new

    def hasty(self: signing.Nonces, client: str, nonce: bytes, time_ms: int, now_ms: int) -> None:
        self._clock = now_ms  # type: ignore[attr-defined]
        self._pieces = {
            piece: seen for piece, seen in self._pieces.items() if piece * self._width_ms > now_ms - WINDOW
        }
        real(self, client, nonce, time_ms, now_ms)

    def by_arrival(self: signing.Nonces, client: str, nonce: bytes, time_ms: int) -> None:
        arrived = self._clock // self._width_ms  # type: ignore[attr-defined]
        self._pieces.setdefault(arrived, {}).setdefault(client, set()).add(nonce)

    patch.setattr(signing.Nonces, "require_new", hasty)
    patch.setattr(signing.Nonces, "remember", by_arrival)


@attack(refusal=Replayed, weaken=forgets_by_arrival)
def a_fast_clocks_request_again_after_a_window() -> bool:
    """Its time lies a window ahead, so it stays valid for two."""
    to, headers = server(), signed(NOW + WINDOW)
    send(to, headers)
    for now in range(NOW, NOW + 2 * WINDOW, 10_000):
        send(to, signed(now, EVE), now)  # the server is busy and forgets what it may
    return bool(send(to, headers, NOW + 2 * WINDOW))


def forgets_without_a_trace(patch: pytest.MonkeyPatch) -> None:
    real = signing.Nonces._forget

    def forget(self: signing.Nonces, now_ms: int) -> None:
        real(self, now_ms)
        self._forgotten = -1

    patch.setattr(signing.Nonces, "_forget", forget)


@attack(refusal=Replayed, weaken=forgets_without_a_trace)
def the_servers_clock_is_set_back() -> bool:
    """An hour forward by mistake, and all is forgotten; then back, and the old request is in time again."""
    to, headers = server(), signed()
    send(to, headers)
    send(to, signed(NOW + 3_600_000, EVE), NOW + 3_600_000)
    return bool(send(to, headers, NOW + 10))


@attack(refusal=Replayed, weaken=lambda patch: patch.setattr(signing, "_PIECES", 1) or forgets_early(patch))
def nonce_reuse_at_the_very_edge() -> bool:
    """The last millisecond in which a copy may come, for every time within a window."""
    gained = 0
    for time in range(NOW - WINDOW, NOW + WINDOW + 1, 7919):
        to, headers = server(), signed(time)
        send(to, headers)
        last = time + WINDOW
        send(to, signed(last, EVE), last)
        try:
            gained += bool(send(to, headers, last))
        except Replayed as error:
            refused = error
    if not gained:
        raise refused
    return True


def forgets_early(patch: pytest.MonkeyPatch) -> None:
    real = signing.Nonces._forget
    patch.setattr(signing.Nonces, "_forget", lambda self, now_ms: real(self, now_ms + 2 * (WINDOW + BODY_MS)))
    patch.setattr(signing.Nonces, "_forgotten", property(lambda _: -1, lambda *_: None), raising=False)


@attack(refusal=Replayed, weaken=lambda patch: patch.setattr(signing.Nonces, "require_new", lambda *_: None))
def two_copies_whose_bodies_arrive_together() -> bool:
    to, headers = server(), signed()
    claims = [to.check_headers(headers, NOW) for _ in range(2)]
    taken = [to.check_body(claim, "POST", TARGET, sha256(BODY).digest(), NOW + 10) for claim in claims]
    return len(taken) == 2


@attack(
    refusal=ClockSkew,
    weaken=lambda patch: patch.setattr(
        Verifier, "_not_before_ms", property(lambda _: 0, lambda *_: None), raising=False
    ),
)
def replay_after_a_restart() -> bool:
    headers = signed(NOW - 1000)
    send(server(), headers, NOW - 900)
    return bool(send(server(not_before_ms=NOW), headers, NOW + 5))


# -- an enrolled client, and a stranger ---------------------------------------------------------------------


@attack(refusal=AuthenticationFailed, weaken=remove(signing, "verify"))
def acting_as_another_client() -> bool:
    forged = signed(identity=EVE) | {"Sfsl-Client": client_id(VICTIM.public)}
    return send(server(), forged) == client_id(VICTIM.public)


@attack(
    refusal=AuthenticationFailed, weaken=lambda patch: patch.setattr(signing, "client_id", lambda _: NAME)
)
def enrolling_ones_own_key_under_anothers_name() -> bool:
    """An id follows from its key, so there is nothing to take over."""
    forged = signed(identity=EVE) | {"Sfsl-Client": NAME}
    to = server()
    return to.check_enrolment(forged, "POST", TARGET, sha256(BODY).digest(), NOW, EVE.public) == NAME


NAME = client_id(VICTIM.public)


@attack(refusal=InvalidMessage, weaken=remove(signing, "require_public"))
def a_key_under_which_anyone_can_sign() -> bool:
    """The neutral point as public key: R = B, s = 1 verifies for every message."""
    neutral = (1).to_bytes(32, "little")
    base_point = bytes.fromhex("58" + "66" * 31)
    forged = {
        "Sfsl-Client": client_id(neutral),
        "Sfsl-Host": HOST,
        "Sfsl-Time": str(NOW),
        "Sfsl-Nonce": "ab" * 16,
        "Sfsl-Signature": (base_point + (1).to_bytes(32, "little")).hex(),
    }
    return bool(server().check_enrolment(forged, "POST", TARGET, sha256(b"any").digest(), NOW, neutral))


@attack(refusal=Revoked, weaken=lambda patch: patch.setattr(sys.modules[__name__], "REVOKED", frozenset()))
def a_revoked_client_goes_on() -> bool:
    revoked = client_id(EVE.public)
    if isinstance(REVOKED, set):
        REVOKED.add(revoked)
    try:
        return bool(send(server(), signed(identity=EVE)))
    finally:
        if isinstance(REVOKED, set):
            REVOKED.discard(revoked)


def remembers_before_it_verifies(patch: pytest.MonkeyPatch) -> None:
    def hasty(
        self: Verifier, claim: signing.Claim, method: str, target: str, body: bytes, now_ms: int
    ) -> str:
        self._nonces.require_new(claim.client, claim.nonce, claim.time_ms, now_ms)
        self._nonces.remember(claim.client, claim.nonce, claim.time_ms)
        self._require_signature(claim, key_of(claim.client), method, target, body)
        return claim.client

    patch.setattr(Verifier, "check_body", hasty)


@attack(refusal=None, weaken=remembers_before_it_verifies)
def a_stranger_fills_the_victims_memory() -> bool:
    """Forged requests in the victim's name, until its own are too many."""
    to = server(nonces_per_client=20)
    for number in range(30):
        try:
            send(to, signed(identity=EVE) | {"Sfsl-Client": NAME, "Sfsl-Nonce": f"{number:032x}"})
        except AuthenticationFailed:
            continue
        except TooMany:
            break
    try:
        return not send(to, signed())
    except TooMany:
        return True


@attack(refusal=None, weaken=remembers_before_it_verifies)
def a_stranger_burns_a_nonce_that_it_saw() -> bool:
    """The request overtaken by a copy with a broken signature: the real one must still be taken."""
    to, headers = server(), signed()
    with pytest.raises(AuthenticationFailed):
        send(to, headers | {"Sfsl-Signature": "0" * 128})
    try:
        return not send(to, headers)
    except Replayed:
        return True


def no_limit_per_client(patch: pytest.MonkeyPatch) -> None:
    real = signing.Nonces.__init__

    def unlimited(self: signing.Nonces, **limits: int) -> None:
        real(self, **(limits | {"per_client": 10**9}))

    patch.setattr(signing.Nonces, "__init__", unlimited)


@attack(refusal=TooMany, weaken=no_limit_per_client)
def an_enrolled_client_floods_the_memory() -> bool:
    to = server(nonces_per_client=50)
    for number in range(200):
        send(to, signed(NOW + number, EVE), NOW + number)
    return to.remembered > 50


@attack(refusal=None, weaken=no_limit_per_client)
def a_flooding_client_locks_the_others_out() -> bool:
    """It hits its own limit long before the one of all."""
    to = server(nonces_per_client=50, most_nonces=100)
    for _ in range(200):
        try:
            send(to, signed(identity=EVE))
        except TooMany:
            break
    try:
        return not send(to, signed())
    except TooMany:
        return True


@attack(refusal=None, weaken=lambda patch: patch.setattr(Verifier, "check_enrolment", remembering_enrolment))
def made_up_keys_fill_the_memory() -> bool:
    to = server(most_clients=10)
    source = SeededRandomness("sybils")
    for _ in range(20):
        sybil = Identity.generate(source)
        try:
            to.check_enrolment(
                signed(identity=sybil), "POST", TARGET, sha256(BODY).digest(), NOW, sybil.public
            )
        except TooMany:
            break
    return to.remembered > 0


def remembering_enrolment(self: Verifier, headers: dict[str, str], *rest: Any) -> str:
    claim = signing.parse_headers(headers)
    self._nonces.require_new(claim.client, claim.nonce, claim.time_ms, NOW)
    self._nonces.remember(claim.client, claim.nonce, claim.time_ms)
    return claim.client


# -- forms ------------------------------------------------------------------------------------------------


def lenient(patch: pytest.MonkeyPatch) -> None:
    """Weaken: take whatever Python's own parsers take."""

    class Anything:
        def fullmatch(self, _: str) -> bool:
            return True

    patch.setattr(
        signing,
        "_FORMS",
        {name: (title, 10**9, Anything()) for name, (title, _, _) in signing._FORMS.items()},
    )


@attack(refusal=DecodeError, weaken=lenient)
def the_same_nonce_in_other_digits() -> bool:
    """If the memory kept text, a nonce in capitals would be another one. Here: a second spelling passes."""
    to, headers = server(), signed()
    return bool(send(to, headers | {"Sfsl-Nonce": headers["Sfsl-Nonce"].upper()}))


@attack(refusal=DecodeError, weaken=lenient)
def a_time_in_other_digits() -> bool:
    headers = signed()
    return bool(send(server(), headers | {"Sfsl-Time": f" {headers['Sfsl-Time']}"}))


@attack(refusal=Oversize, weaken=lenient)
def a_time_that_takes_long_to_read() -> bool:
    """Refused by its length before anything looks at it; else it is a number, or all leading zeros."""
    headers = signed()
    return bool(send(server(), headers | {"Sfsl-Time": "0" * 4000 + headers["Sfsl-Time"]}))


def any_target(patch: pytest.MonkeyPatch) -> None:
    class Anything:
        def fullmatch(self, _: str) -> bool:
            return True

    patch.setattr(signing, "_TARGET", Anything())


@attack(refusal=DecodeError, weaken=any_target)
def a_target_with_a_header_in_it() -> bool:
    bad = "/v1/rounds HTTP/1.1\r\nSfsl-Client: x\r\n\r\n/"
    parts = signing._parts(DEPLOYMENT, HOST, "POST", bad, sha256(BODY).digest(), NOW, bytes(16))
    forged = {
        "Sfsl-Client": client_id(EVE.public),
        "Sfsl-Host": HOST,
        "Sfsl-Time": str(NOW),
        "Sfsl-Nonce": "00" * 16,
        "Sfsl-Signature": EVE.sign(signing.LABEL, *parts).hex(),
    }
    return bool(send(server(), forged, target=bad))


@attack(refusal=AuthenticationFailed, weaken=lambda patch: patch.setattr(signing, "LABEL", "request"))
def a_signature_made_for_another_purpose() -> bool:
    """A signed request for rows whose parts read like a request's: the label tells them apart."""
    parts = signing._parts(DEPLOYMENT, HOST, "POST", TARGET, sha256(BODY).digest(), NOW, bytes(16))
    headers = {
        "Sfsl-Client": NAME,
        "Sfsl-Host": HOST,
        "Sfsl-Time": str(NOW),
        "Sfsl-Nonce": "00" * 16,
        "Sfsl-Signature": VICTIM.sign("request", *parts).hex(),
    }
    return bool(send(server(), headers))


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_attack_is_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_attack_works_against_a_weakened_server(one: Attack) -> None:
    assert_gains_when_weakened(one)


@pytest.mark.parametrize(
    "bad", ["a\r\nSet-Cookie: x", "a\0b", "\r\n\r\n<script>", "%0d%0a", "{0}", "\x1b[2J"]
)
@pytest.mark.parametrize("name", ["Sfsl-Client", "Sfsl-Host", "Sfsl-Time", "Sfsl-Nonce", "Sfsl-Signature"])
def test_nothing_that_was_sent_is_quoted_back(name: str, bad: str) -> None:
    """Neither into an answer nor into a log."""
    with pytest.raises(DecodeError) as caught:
        send(server(), signed() | {name: bad})
    assert str(caught.value).isprintable()
    assert bad not in str(caught.value)


def test_nothing_secret_is_in_a_header() -> None:
    seed = RANDOM.bytes(32)
    from sfsl.crypto.secret import Secret

    headers = signed(identity=Identity(Secret(seed)))
    assert seed.hex() not in "".join(headers.values())
    assert all(value.isascii() and value.replace(".", "").isalnum() for value in headers.values())


# -- the registry ----------------------------------------------------------------------------------------

KILLED = """
import sys
from sfsl.crypto.secret import Identity
from sfsl.crypto.secret import SystemRandomness
from sfsl.service.registry import Registry

with Registry(sys.argv[1]) as registry:
    print("deployment", registry.deployment.hex(), flush=True)
    while True:
        who = registry.enrol(Identity.generate(SystemRandomness()).public, 1)
        print("enrolled", who, flush=True)
        round_id = SystemRandomness().bytes(16)
        registry.invite(3, round_id, [who])
        print("invited", who, flush=True)
        registry.acknowledge(round_id, [who])
        print("acknowledged", who, flush=True)
        if who < "8":
            registry.revoke(who, 2)
            print("revoked", who, flush=True)
"""


def test_a_server_killed_between_transactions_forgets_nothing_it_said(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    rng = random.Random(6)
    said: dict[str, set[str]] = {
        word: set() for word in ("deployment", "enrolled", "invited", "acknowledged", "revoked")
    }
    for _ in range(8):
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines_to_live = rng.randrange(1, 60)
        for number, line in enumerate(child.stdout, 1):
            if line.endswith("\n"):
                word, who = line.split()
                said[word].add(who)
            if number == lines_to_live:
                child.kill()  # SIGKILL, wherever it is by now
        child.wait()
        child.stdout.close()
        assert child.returncode == -9
        with Registry(path) as opened:
            found = {one.id: one for one in opened.clients()}
            assert said["deployment"] == {opened.deployment.hex()}
            assert said["enrolled"] <= found.keys()
            assert said["invited"] <= opened.invited(3)
            assert said["acknowledged"] <= {who for who, one in found.items() if one.acknowledged == 1}
            assert said["revoked"] <= {who for who, one in found.items() if one.revoked_ms == 2}
            assert all(one.acknowledged <= 1 for one in found.values())
    assert len(said["enrolled"]) > 20
    assert said["revoked"]


HOLD = """
import sys
from sfsl.service.registry import Registry
registry = Registry(sys.argv[1])
print("held", flush=True)
input()
"""


def test_two_servers_on_one_registry(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    other = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        (tmp_path / "alias").symlink_to(path)
        for name in (path, tmp_path / "alias"):
            with pytest.raises(StoreInUse, match="open elsewhere"):
                Registry(name)
        with pytest.MonkeyPatch.context() as patch:  # it is the lock that keeps them apart
            patch.setattr(fcntl, "flock", lambda *_: None)
            Registry(path).close()
    finally:
        other.kill()
        other.communicate()
    Registry(path).close()  # the lock went with the process


def filled(path: Path, clients: int = 300) -> Path:
    with Registry(path) as opened:
        made = [Identity.generate(SeededRandomness(number)).public for number in range(clients)]
        names = [opened.enrol(public, number) for number, public in enumerate(made)]
        opened.acknowledge(bytes(16), names)
        opened.invite(1, bytes(16), names)
        opened.revoke(names[0], 5)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return filled(tmp_path_factory.mktemp("whole") / "registry.db").read_bytes()


def require_whole(opened: Registry) -> None:
    found = list(opened.clients())
    assert len(found) == len(opened.invited(1)) == 300
    assert opened.count() == 299
    assert {one.acknowledged for one in found} == {1}


def test_a_truncated_registry_is_never_opened(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(whole)
    with Registry(path) as opened:
        require_whole(opened)
    lengths = [0, 1, 15, 16, 99, 100, 512, 4095, 4096, 4097, *range(8192, len(whole), 4096), len(whole) - 1]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(StoreCorrupt):
            Registry(path)
        if length < len(whole) - 1:  # a visitor does not look at the last page's length
            with pytest.raises(StoreCorrupt):
                Registry.beside(path)
        for end in ("-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)


def test_a_damaged_registry_is_refused_or_whole(whole: bytes, tmp_path: Path) -> None:
    """Pages have no checksums: a changed count is not found, but it does no more than that."""
    path = tmp_path / "registry.db"
    rng = random.Random(5)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        start = rng.randrange(len(data) // 4096) * 4096
        data[start : start + 4096] = rng.randbytes(4096) if rng.random() < 0.5 else bytes(4096)
        path.write_bytes(data)
        try:
            with Registry(path) as opened:
                require_whole(opened)
        except StoreCorrupt:
            refused += 1
        for end in ("-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)
    assert refused == 60


def test_what_is_no_registry(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "registry.db"
    for content in (b"SQLite format 3\0", b"SQLite format 3\0" + bytes(4080), os.urandom(9000), b"x"):
        path.write_bytes(content)
        with pytest.raises(StoreCorrupt):
            Registry(path)
        assert path.read_bytes() == content
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE clients (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="no registry of this package"):
        Registry(path)
    assert before[100:] == path.read_bytes()[100 : len(before)]


# argv: the registry, how its disk fills up.
FULL = """
import os, resource, sys
from sfsl.crypto.secret import Identity
from sfsl.crypto.secret import SystemRandomness
from sfsl.service.registry import Registry
from sfsl.errors import StoreError

path, how = sys.argv[1:]
registry = Registry(path)
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
told, failures = [], []
while len(failures) < 3:
    try:
        told.append(registry.enrol(Identity.generate(SystemRandomness()).public, 1))
        registry.acknowledge(os.urandom(16), told[-1:])
    except StoreError as error:
        failures.append(type(error).__name__)
    assert len(told) < 100_000
assert set(told) <= {one.id for one in registry.clients()}
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    told.append(registry.enrol(Identity.generate(SystemRandomness()).public, 1))
    registry.acknowledge(os.urandom(16), told)
registry.close()
with Registry(path) as again:
    assert set(told) <= {one.id for one in again.clients()}
    assert all(again.acknowledged(who) in (0, 1, 2) for who in told)
print(*failures)
"""


def test_a_write_that_the_system_cuts_short(tmp_path: Path) -> None:
    """A limit on file sizes; then it is lifted, and the same registry goes on."""
    path = filled(tmp_path / "registry.db", 20)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", FULL, str(path), "limit"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3


def test_a_full_disk_is_called_that(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:  # noqa: S603
        pytest.skip("needs unshare(1) and the right to make namespaces, for a small disk of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"/registry.db disk'
    done = subprocess.run(  # noqa: S603
        [unshare, "-rm", "sh", "-c", script, "sh", str(disk), sys.executable, FULL],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["StoreFull"] * 3


def test_a_lost_registry_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    """An empty file, which SQLite takes for a new database: the revoked would be strangers again."""
    path = filled(tmp_path / "registry.db", 3)
    path.write_bytes(b"")
    with pytest.raises(StoreCorrupt):
        Registry(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_require_registry", lambda _: None)
        patch.setattr(registry.RegistryFile, "_check", lambda _: None)
        patch.setattr(
            registry.Registry,
            "_open",
            lambda self, at: setattr(self, "_file", registry.RegistryFile(at, self._lock)),
        )
        with Registry(path) as opened:
            assert opened._file.read("SELECT count(*) FROM sqlite_master") == [(0,)]
