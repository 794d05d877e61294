"""Signed requests: what is signed, what is checked in which order, what is remembered for how long."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsl.crypto.secret import Identity
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    DecodeError,
    InputError,
    InvalidMessage,
    Oversize,
    ParameterError,
    Replayed,
    Revoked,
    TooMany,
    UnknownClient,
)
from sfsl.service.signing import (
    Claim,
    Nonces,
    Verifier,
    client_id,
    parse_headers,
    require_public,
    sign_request,
)
from sfsl.testing import SeededRandomness

NOW = 1_800_000_000_000
WINDOW = 120_000
DEPLOYMENT = bytes(range(16))
RANDOM = SeededRandomness("signing")
ADA, BOB = Identity.generate(RANDOM), Identity.generate(RANDOM)
KEYS = {client_id(one.public): one.public for one in (ADA, BOB)}
TARGET = "/v1/rounds/7?wait=30"
BODY = b"body"
HOST = "sfsl.example.org"
DIGEST = sha256(BODY).digest()


def key_of(client: str) -> bytes:
    if client not in KEYS:
        raise UnknownClient("no such client")
    return KEYS[client]


def verifier(**other: Any) -> Verifier:
    return Verifier(DEPLOYMENT, key_of, **{"hosts": (HOST,), **other})


def signed(now: int = NOW, identity: Identity = ADA, **other: Any) -> dict[str, str]:
    given: dict[str, Any] = {"deployment": DEPLOYMENT, "host": HOST, "method": "POST", "target": TARGET}
    given["body"] = BODY
    return sign_request(identity, **{**given, **other}, now_ms=now, randomness=RANDOM)


def check(of: Verifier, headers: Mapping[str, str], now: int = NOW, method: str = "POST") -> str:
    return of.check(headers, method, TARGET, DIGEST, now)


def test_a_window_of_a_millisecond_and_bodies_that_take_no_time_will_do() -> None:
    verifier(window_ms=1, body_ms=0)
    for wrong in ({"window_ms": 0}, {"body_ms": -1}):
        with pytest.raises(ParameterError, match="time window"):
            verifier(**wrong)


def test_a_body_has_two_minutes_where_nobody_says_otherwise() -> None:
    one, last = verifier(window_ms=WINDOW), NOW + WINDOW + 120_000
    claim = one.check_headers(signed(), NOW)
    with pytest.raises(Replayed):
        one.check_body(claim, "POST", TARGET, DIGEST, last + 1)
    other = verifier(window_ms=WINDOW)
    claim = other.check_headers(signed(), NOW)
    assert other.check_body(claim, "POST", TARGET, DIGEST, last) == client_id(ADA.public)


def test_a_request_is_taken_and_names_its_client() -> None:
    of = verifier()
    for identity in (ADA, BOB):
        headers = signed(identity=identity)
        assert headers.keys() == set(GOOD)
        assert check(of, headers) == client_id(identity.public) == headers["Sfsl-Client"]
    lower = {name.lower(): value for name, value in signed().items()} | {"host": "here", "accept": "*/*"}
    assert check(of, lower) == client_id(ADA.public)
    assert of.remembered == 3


def test_a_server_goes_by_the_names_in_its_certificate() -> None:
    names = ("SFSL.example.org", "*.example.net", "192.0.2.7", "2001:DB8:0::7", "bücher.example")
    of = verifier(hosts=names)
    for host in ("sfsl.example.org.", "A.example.net", "192.0.2.7", "2001:db8::7", "xn--bcher-kva.example"):
        assert check(of, signed(host=host)) == client_id(ADA.public)
    assert check(of, signed(host="bücher.example")) == client_id(ADA.public)
    for host in ("example.org", "example.net", "a.b.example.net", "192.0.2.8", "org"):
        with pytest.raises(AuthenticationFailed, match="another host than this server's"):
            check(of, signed(host=host))
    for host in ("", "a b", "a/b", "a..b", "x" * 64, "[::1]", "a%b"):
        with pytest.raises(InputError):
            signed(host=host)


def test_an_id_is_half_a_digest_of_the_key() -> None:
    name = client_id(ADA.public)
    assert len(name) == 32
    assert set(name) <= set("0123456789abcdef")
    assert name != client_id(BOB.public)


def test_two_signatures_never_share_a_nonce() -> None:
    assert signed()["Sfsl-Nonce"] != signed()["Sfsl-Nonce"]
    assert "0" * 32 not in signed().values()


@pytest.mark.parametrize(
    "wrong",
    [
        {"deployment": b"short"},
        {"method": "post"},
        {"method": "POST\r\nHost: x"},
        {"method": ""},
        {"target": "v1"},
        {"target": "/a b"},
        {"target": "/a\r\nX: y"},
        {"target": "/ä"},
        {"target": "/" + "a" * 2048},
        {"target": "/a\n"},
        {"now": -1},
        {"now": 10**15},
    ],
)
def test_what_cannot_be_signed(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        signed(**wrong)


@pytest.mark.parametrize("off", [-WINDOW, -1, 0, 1, WINDOW])
def test_clocks_within_the_window(off: int) -> None:
    assert check(verifier(), signed(NOW + off))


@pytest.mark.parametrize(
    ("off", "says"), [(-WINDOW - 1, "is 120.0 s behind ours;"), (WINDOW + 9000, "is 129.0 s ahead of ours;")]
)
def test_clocks_outside_it_hear_by_how_much(off: int, says: str) -> None:
    with pytest.raises(ClockSkew, match=says) as caught:
        check(verifier(), signed(NOW + off))
    assert caught.value.off_ms == off
    # What the error says is enough to come back in time.
    assert check(verifier(), signed(NOW + off - caught.value.off_ms))


def test_what_was_signed_before_the_server_started() -> None:
    of = verifier(not_before_ms=NOW - 5)
    with pytest.raises(ClockSkew, match="before this server started") as caught:
        check(of, signed(NOW - 6))
    assert caught.value.off_ms == -6
    assert check(of, signed(NOW - 5))


def test_refusals_come_cheapest_first() -> None:
    """Form, time, client, rate, signature: each seen with everything after it wrong, too."""
    of = verifier(nonces_per_client=1)
    stranger = Identity.generate(SeededRandomness("stranger"))
    late = signed(NOW - 10**6, stranger, body=b"other")
    with pytest.raises(DecodeError):
        of.check_headers(late | {"Sfsl-Time": "+1"}, NOW)
    with pytest.raises(ClockSkew):
        of.check_headers(late, NOW)
    with pytest.raises(UnknownClient):
        of.check_headers(signed(identity=stranger, body=b"other"), NOW)
    check(of, signed())
    with pytest.raises(TooMany):
        of.check_headers(signed(body=b"other"), NOW)
    with pytest.raises(AuthenticationFailed, match="signature"):
        check(of, signed(identity=BOB, body=b"other"))


def test_a_revoked_client_is_refused_also_while_its_body_arrives() -> None:
    revoked: set[str] = set()

    def key_or_revoked(client: str) -> bytes:
        if client in revoked:
            raise Revoked("withdrawn")
        return key_of(client)

    of = Verifier(DEPLOYMENT, key_or_revoked, hosts=(HOST,))
    claim = of.check_headers(signed(), NOW)
    revoked.add(claim.client)
    with pytest.raises(Revoked):
        of.check_body(claim, "POST", TARGET, DIGEST, NOW)
    with pytest.raises(Revoked):
        of.check_headers(signed(), NOW)
    revoked.clear()
    assert of.check_body(claim, "POST", TARGET, DIGEST, NOW)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        (signed(NOW - WINDOW - 1), ClockSkew),
        (signed(identity=Identity.generate(RANDOM)), UnknownClient),
        (signed(body=b"other"), AuthenticationFailed),
        (signed() | {"Sfsl-Nonce": "0" * 32}, AuthenticationFailed),
        (signed() | {"Sfsl-Nonce": "zz"}, DecodeError),
        ({}, DecodeError),
    ],
)
def test_a_refusal_leaves_no_trace(headers: dict[str, str], error: type[Exception]) -> None:
    of = verifier()
    check(of, signed())
    before = repr(vars(of._nonces))
    with pytest.raises(error):
        check(of, headers)
    assert repr(vars(of._nonces)) == before
    assert of.remembered == 1


# -- bodies that take their time -------------------------------------------------------------------


def test_a_slow_body_is_taken_once() -> None:
    """Two copies begin in time; both bodies are there when the window is over. One of them counts."""
    of = verifier(body_ms=60_000)
    headers = signed(NOW - WINDOW)
    first, second = of.check_headers(headers, NOW), of.check_headers(headers, NOW)
    done = NOW + 60_000
    assert of.check_body(first, "POST", TARGET, DIGEST, done)
    with pytest.raises(Replayed):
        of.check_body(second, "POST", TARGET, DIGEST, done)
    with pytest.raises(ClockSkew):
        of.check_headers(headers, done)


def test_a_body_that_takes_too_long() -> None:
    of = verifier(body_ms=60_000)
    claim = of.check_headers(signed(NOW - WINDOW), NOW)
    with pytest.raises(Replayed, match="so old"):
        of.check_body(claim, "POST", TARGET, DIGEST, NOW + 60_001)
    assert of.remembered == 0


def test_a_rate_is_checked_again_when_the_body_is_there() -> None:
    of = verifier(nonces_per_client=1)
    claims = [of.check_headers(signed(), NOW) for _ in range(2)]
    assert of.check_body(claims[0], "POST", TARGET, DIGEST, NOW)
    with pytest.raises(TooMany):
        of.check_body(claims[1], "POST", TARGET, DIGEST, NOW)


@pytest.mark.parametrize(("method", "target"), [("post", TARGET), ("POST", "/ä"), ("POST", "v1"), ("", "/")])
def test_methods_and_targets_that_nobody_can_have_signed(method: str, target: str) -> None:
    with pytest.raises(DecodeError):
        verifier().check(signed(), method, target, DIGEST, NOW)
    with pytest.raises(DecodeError):
        verifier().check(signed(), "POST", "/" + "a" * 2048, DIGEST, NOW)


# -- enrolment ---------------------------------------------------------------------------------------


def test_who_asks_to_be_enrolled_shows_that_it_holds_the_key() -> None:
    of = verifier()
    stranger = Identity.generate(SeededRandomness("stranger"))
    headers = signed(identity=stranger)
    for _ in range(2):  # nothing is remembered, so again is the same
        name = of.check_enrolment(headers, "POST", TARGET, DIGEST, NOW, stranger.public)
        assert name == client_id(stranger.public)
    assert of.remembered == 0
    with pytest.raises(AuthenticationFailed, match="does not follow"):
        of.check_enrolment(headers, "POST", TARGET, DIGEST, NOW, ADA.public)
    claims_to_be_ada = headers | {"Sfsl-Client": client_id(ADA.public)}
    with pytest.raises(AuthenticationFailed, match="signature"):
        of.check_enrolment(claims_to_be_ada, "POST", TARGET, DIGEST, NOW, ADA.public)
    with pytest.raises(ClockSkew):
        of.check_enrolment(headers, "POST", TARGET, DIGEST, NOW + 2 * WINDOW, stranger.public)
    with pytest.raises(InvalidMessage):
        of.check_enrolment(headers, "POST", TARGET, DIGEST, NOW, b"short")


def order(height: int, x_is_odd: bool) -> int:
    """The order of a point of Ed25519 by the curve's own formulas, up to 8; 0 if larger or no point."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p
    square = (height * height - 1) * pow(d * height * height + 1, -1, p) % p
    x = pow(square, (p + 3) // 8, p)
    if x * x % p != square:
        x = x * pow(2, (p - 1) // 4, p) % p
    if x * x % p != square:
        return 0
    if x % 2 != x_is_odd:
        x = -x % p
    point, sum_ = (x, height), (x, height)
    for number in range(1, 9):
        if sum_ == (0, 1):
            return number
        (a, b), (e, f) = point, sum_
        t = d * a * e * b * f % p
        sum_ = (
            (a * f + b * e) * pow(1 + t, -1, p) % p,
            (b * f + a * e) * pow(1 - t, -1, p) % p,
        )
    return 0


def test_keys_under_which_anyone_can_sign() -> None:
    from sfsl.service.signing import _P, _SMALL_ORDER

    assert sorted(order(height, False) for height in _SMALL_ORDER) == [1, 2, 4, 8, 8]
    assert order(int.from_bytes(ADA.public, "little") & (2**255 - 1), bool(ADA.public[31] >> 7)) == 0
    for height in (*_SMALL_ORDER, _P, _P + 1, 2**255 - 1):
        for sign in (0, 2**255):
            with pytest.raises(InvalidMessage):
                require_public((height + sign).to_bytes(32, "little"))
    for key in (b"", ADA.public[:31], ADA.public + b"\0"):
        with pytest.raises(InvalidMessage, match="32 bytes"):
            client_id(key)
    require_public(ADA.public)


# -- what is remembered ------------------------------------------------------------------------------


def test_a_client_at_its_limit_waits_as_long_as_it_is_told() -> None:
    of = verifier(nonces_per_client=3)
    for number in range(3):
        check(of, signed(NOW + number * 50_000 - 60_000))
    with pytest.raises(TooMany, match="3 requests") as caught:
        check(of, signed())
    assert check(of, signed(identity=BOB))  # nobody else is held up
    later = NOW + caught.value.wait_ms
    with pytest.raises(TooMany):
        check(of, signed(later - 1), later - 1)
    assert check(of, signed(later), later)
    with pytest.raises(TooMany):
        check(of, signed(later), later)


@pytest.mark.parametrize("limits", [{"most_nonces": 2}, {"most_clients": 1}])
def test_memory_is_bounded_in_all(limits: dict[str, int]) -> None:
    of = verifier(**limits)
    check(of, signed())
    check(of, signed())  # there is room for another of a client that is known
    with pytest.raises(TooMany, match="no room") as caught:
        check(of, signed(identity=BOB))
    later = NOW + caught.value.wait_ms
    assert check(of, signed(later, BOB), later)


def test_memory_comes_back() -> None:
    of = verifier(nonces_per_client=50, most_nonces=100)
    for step in range(400):
        now = NOW + step * 10_000
        check(of, signed(now + (step % 9 - 4) * 30_000), now)
        assert of.remembered <= 50
    far = NOW + 10**8
    check(of, signed(far), far)
    assert of.remembered == 1
    assert len(of._nonces._pieces) == len(of._nonces._counts) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1000, 1000), st.integers(0, 700)), max_size=60))
def test_against_a_memory_that_forgets_nothing(events: list[tuple[int, int, int]]) -> None:
    """Whatever was taken once is never taken again, however the clock runs, also backwards."""
    nonces = Nonces(kept_ms=1000, per_client=10**6, most_clients=10, most=10**6)
    taken: set[tuple[bytes, int]] = set()
    now = 10_000
    for nonce, off, step in events:
        now += step - 300
        time = now + off
        for again in (time, 10_000, time - 500):
            key = (bytes([nonce]), again)
            try:
                nonces.require_new("ada", key[0], again, now)
            except Replayed:
                continue
            assert key not in taken
            nonces.remember("ada", *key)
            taken.add(key)
    assert len(nonces) == sum(nonces._counts.values()) <= len(taken)


def test_settings_that_cannot_be() -> None:
    for wrong in ({"window_ms": 0}, {"body_ms": -1}, {"nonces_per_client": 0}, {"most_clients": 0}):
        with pytest.raises(ParameterError):
            verifier(**wrong)
    with pytest.raises(ParameterError):
        Verifier(b"", key_of, hosts=(HOST,))


# -- headers -------------------------------------------------------------------------------------------


GOOD = signed()


class Pairs(Mapping[str, str]):
    """As servers give headers: a name may come twice."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs = pairs

    def items(self) -> Any:
        return list(self.pairs)

    def __getitem__(self, name: str) -> str:
        return next(value for key, value in self.pairs if key == name)

    def __iter__(self) -> Any:
        return iter([name for name, _ in self.pairs])

    def __len__(self) -> int:
        return len(self.pairs)


def test_a_header_twice_is_refused_even_if_the_same() -> None:
    parse_headers(Pairs(*GOOD.items()))
    for name, value in GOOD.items():
        with pytest.raises(DecodeError, match=f"{name} is there twice"):
            parse_headers(Pairs(*GOOD.items(), (name.lower(), value)))


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_header_is_named(name: str) -> None:
    with pytest.raises(DecodeError, match=f"{name} missing"):
        parse_headers({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Sfsl-Client", GOOD["Sfsl-Client"].upper()),
        ("Sfsl-Client", GOOD["Sfsl-Client"][:-1]),
        ("Sfsl-Client", GOOD["Sfsl-Client"][:-1] + "\n"),
        ("Sfsl-Client", "０" * 32),
        ("Sfsl-Client", ""),
        ("Sfsl-Time", "0" + GOOD["Sfsl-Time"]),
        ("Sfsl-Time", "+" + GOOD["Sfsl-Time"]),
        ("Sfsl-Time", "-1"),
        ("Sfsl-Time", " 1"),
        ("Sfsl-Time", "1_0"),
        ("Sfsl-Time", "1e9"),
        ("Sfsl-Time", "1.0"),
        ("Sfsl-Time", "١٢٣"),
        ("Sfsl-Time", "12\n"),
        ("Sfsl-Time", ""),
        ("Sfsl-Nonce", "0x" + GOOD["Sfsl-Nonce"][2:]),
        ("Sfsl-Nonce", GOOD["Sfsl-Nonce"][:30] + " 0"),
        ("Sfsl-Nonce", GOOD["Sfsl-Nonce"][:30]),
        ("Sfsl-Signature", "F" * 128),
        ("Sfsl-Signature", "f" * 126),
        ("Sfsl-Signature", "f" * 126 + ", "),
    ],
)
def test_one_way_to_write_each_header(name: str, value: str) -> None:
    with pytest.raises(DecodeError, match=f"{name} is not in its canonical form") as caught:
        parse_headers(GOOD | {name: value})
    assert not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_long_headers_are_refused_by_their_length(name: str) -> None:
    with pytest.raises(Oversize, match=name):
        parse_headers(GOOD | {name: "0" * 10_000_000})


_any = st.dictionaries(
    st.sampled_from([*GOOD, *(name.lower() for name in GOOD), "Host"]), st.text(max_size=140)
)


@given(_any)
def test_any_headers_are_a_claim_or_a_typed_error(headers: dict[str, str]) -> None:
    try:
        claim = parse_headers(headers)
    except DecodeError:
        return
    raise AssertionError(claim)  # nobody writes 128 digits of hexadecimal by chance


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 10**15 - 1),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=64, max_size=64),
)
def test_what_is_parsed_is_what_was_written(client: bytes, time: int, nonce: bytes, signature: bytes) -> None:
    written = dict(zip(GOOD, (client.hex(), HOST, str(time), nonce.hex(), signature.hex()), strict=True))
    assert parse_headers(written) == Claim(client.hex(), HOST, time, nonce, signature)


@given(st.sampled_from(list(GOOD)), st.integers(0, 127), st.characters(codec="latin-1"))
def test_one_changed_character_is_noticed(name: str, place: int, put: str) -> None:
    value = GOOD[name]
    place %= len(value)
    changed = value[:place] + put + value[place + 1 :]
    if changed == value:
        return
    with pytest.raises((DecodeError, AuthenticationFailed)):
        check(verifier(), GOOD | {name: changed})
