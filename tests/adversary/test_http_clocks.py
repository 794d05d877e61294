"""What clocks that are set, back or forward, before a restart or without one, do to signed requests."""

import logging
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector

from sfsl.crypto.secret import Identity
from sfsl.errors import ClockSkew, StoreError, TooMany
from sfsl.service import clock, signing
from sfsl.service.clock import SigningClock
from sfsl.service.signing import Verifier, client_id, nonces_needed, sign_request
from sfsl.testing import SeededRandomness

NOW = 1_800_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
WINDOW, BODY_MS = 120_000, 60_000
RANDOM = SeededRandomness("clocks")
ADA = Identity.generate(RANDOM)
HOST, TARGET, BODY = "sfsl.example.org", "/v1/check-in", b"body"

ATTACKS, attack = collector()


class Machine:
    """A machine whose clock can be set, with a server in ``folder`` that can be started again."""

    def __init__(self, folder: Path, wall: int = NOW) -> None:
        self.path, self.wall, self.steady = folder / "clock", wall, 5_000_000
        self.start()

    def start(self) -> None:
        """Start a server. One that ran before was killed."""
        self.clock = SigningClock(self.path, wall=lambda: self.wall, steady=lambda: self.steady)
        self.verifier = Verifier(
            bytes(16),
            {client_id(ADA.public): ADA.public}.__getitem__,
            hosts=(HOST,),
            window_ms=WINDOW,
            body_ms=BODY_MS,
            not_before_ms=self.clock.began_ms,
            cover=self.clock.cover,
        )

    def let(self, milliseconds: int) -> None:
        self.wall += milliseconds
        self.steady += milliseconds

    def signed(self, ahead: int = 0) -> dict[str, str]:
        """A request signed as clients sign: by what the server says the time is."""
        return sign_request(
            ADA, deployment=bytes(16), host=HOST, method="POST", target=TARGET, body=BODY,
            now_ms=self.clock.now_ms + ahead, randomness=RANDOM,
        )  # fmt: skip

    def take(self, headers: dict[str, str]) -> str:
        return self.verifier.check(headers, "POST", TARGET, sha256(BODY).digest(), self.clock.now_ms)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    FOLDERS.append(tmp_path)
    yield
    FOLDERS.pop()


FOLDERS: list[Path] = []
_COUNT = iter(range(10**6))


def machine(wall: int = NOW) -> Machine:
    made = FOLDERS[-1] / str(next(_COUNT))
    made.mkdir()
    return Machine(made, wall)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """A server that begins by its machine's clock, whatever was taken before."""
    patch.setattr(SigningClock, "_read", lambda self: clock._NOTHING)


@attack(refusal=ClockSkew, weaken=forgetful)
def replay_once_a_clock_that_was_ahead_gets_there_again() -> bool:
    """The clock was an hour ahead, and was corrected with a restart. An hour later the same time comes again,
    and nobody remembers who said what."""
    one = machine(NOW + HOUR)
    recorded = one.signed()
    one.take(recorded)
    one.wall -= HOUR
    one.start()
    one.let(HOUR)
    return bool(one.take(recorded))


@attack(refusal=ClockSkew, weaken=forgetful)
def replay_of_a_client_that_was_ahead_after_a_restart() -> bool:
    """What a clock ahead has signed claims a time after the restart."""
    one = machine()
    recorded = one.signed(ahead=WINDOW)
    one.take(recorded)
    one.let(1000)
    one.start()
    return bool(one.take(recorded))


@attack(refusal=ClockSkew, weaken=forgetful)
def replay_after_restarts_with_clocks_set_forth_and_back() -> bool:
    one = machine()
    one.wall += 10 * DAY
    one.start()
    recorded = one.signed()
    one.take(recorded)
    for step in (-10 * DAY, -4000 * DAY, 4000 * DAY, 10 * DAY - 60_000):
        one.wall += step
        one.start()
        one.let(1000)
        try:
            if one.take(recorded):
                return True
        except ClockSkew:
            continue
    raise ClockSkew("every server refused it", off_ms=0)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_attack_is_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_attack_works_against_a_weakened_server(one: Attack) -> None:
    assert_gains_when_weakened(one)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("step", [-4000 * DAY, -10 * DAY, -HOUR, -600_000, HOUR, 10 * DAY, 4000 * DAY])
def test_a_clock_that_is_set_refuses_nobody(step: int, restarted: bool) -> None:
    """Before and after, with and without a restart, whoever signs by what the server says is served."""
    one = machine()
    one.take(one.signed())
    one.let(30_000)
    one.wall += step
    if restarted:
        one.start()
    for _ in range(20):
        one.take(one.signed())
        one.let(60_000)


def test_requests_with_a_server_an_hour_ahead_that_is_corrected() -> None:
    one = machine(NOW + HOUR)
    one.take(one.signed())
    one.wall -= HOUR
    one.let(1000)
    one.take(one.signed())
    assert one.clock.off_ms == -HOUR


def test_after_a_kill_the_clock_is_ahead_by_less_than_a_window_and_after_a_stop_not_at_all() -> None:
    """A client that goes by the true time, and asks nobody, is still served."""
    one = machine()
    one.take(one.signed())
    one.let(1000)
    one.start()
    assert 0 < one.clock.now_ms - one.wall <= clock._AHEAD_MS < WINDOW
    one.take(one.signed())
    one.clock.close()
    one.let(60_000)
    one.start()
    assert one.clock.now_ms == one.wall


def test_a_step_is_logged_once_and_a_clock_that_is_far_behind_too(caplog: pytest.LogCaptureFixture) -> None:
    one = machine()
    caplog.set_level(logging.WARNING)
    assert one.clock.wall_ms == NOW
    assert not caplog.messages
    one.wall += HOUR
    assert [one.clock.wall_ms for _ in range(3)] == [NOW + HOUR] * 3
    assert caplog.messages == [
        "this machine's clock was set forward by 60 minutes; signed requests do not depend on it, periods do"
    ]
    one.take(one.signed())
    one.wall -= 10 * DAY
    one.start()
    assert "is 10 days behind what it was" in caplog.messages[-1]


def test_kills_one_after_another_are_not_taken_for_a_clock_that_was_set_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each leaves what was written ahead; the machine's clock was right all along."""
    one = machine()
    caplog.set_level(logging.INFO)
    for _ in range(3):
        one.take(one.signed())
        one.let(1000)
        one.start()
    assert [(said.levelname, said.getMessage()[:57]) for said in caplog.records] == [
        ("INFO", "requests are signed by a clock 58.0 s ahead of this machi"),
        ("INFO", "requests are signed by a clock 87.0 s ahead of this machi"),
    ]
    caplog.clear()
    one.take(one.signed())
    one.let(1000)
    one.wall -= 60_000  # and now it is set back
    one.start()
    assert [
        (said.levelname, "is 59.0 s behind what it was" in said.getMessage()) for said in caplog.records
    ] == [("WARNING", True)]


@pytest.mark.parametrize(("back", "warns"), [(clock._AHEAD_MS, False), (clock._AHEAD_MS + 1, True)])
def test_the_file_of_an_earlier_version_still_counts(
    back: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It did not note the machine's clock, so far behind is as good as set back."""
    one = machine()
    body = b"\x01\x82\xa4type\xadsigning-clock\xa7time_ms\xcf" + NOW.to_bytes(8, "big")
    one.path.write_bytes(b"sfsl clock\r\n\x1a\n\x00\x00" + sha256(body).digest() + body)
    one.wall = NOW + 1 - back
    one.start()
    assert one.clock.now_ms == NOW + 1
    assert [said.levelname for said in caplog.records] == ["WARNING"] * warns


def test_a_damaged_file_is_said_and_does_not_keep_the_server_down(caplog: pytest.LogCaptureFixture) -> None:
    one = machine()
    one.take(one.signed())
    whole = one.path.read_bytes()
    for place in range(len(whole)):
        one.path.write_bytes(bytes(byte ^ (at == place) for at, byte in enumerate(whole)))
        caplog.clear()
        one.start()
        assert len(caplog.messages) == 1, place
    assert "is refused all the same" in caplog.messages[0]
    one.take(one.signed())


def test_without_a_disk_nothing_is_taken_until_there_is_one(tmp_path: Path) -> None:
    one = Machine(tmp_path / "gone")
    with pytest.raises(StoreError, match="no request is taken"):
        one.take(one.signed())
    assert one.verifier.remembered == 0
    (tmp_path / "gone").mkdir()
    one.take(one.signed())


# -- as many requests as were promised ------------------------------------------------------------------


@pytest.mark.parametrize("window", [1000, 120_000, 3_600_000])
@pytest.mark.parametrize("ahead", [0.0, 1.0])
def test_a_client_gets_the_rate_that_it_was_promised_for_as_long_as_it_likes(
    window: int, ahead: float
) -> None:
    """20 requests a second, and 100 at once, also with a clock that is as far ahead as it may be."""
    rate, burst, body = 20, 100, 61_000
    room = nonces_needed(rate, burst, window, body)
    memory = signing.Nonces(kept_ms=window + body, per_client=room, most_clients=10, most=10**9)
    seconds = 2 * (2 * window + body) // 1000
    times = [NOW] * burst + [NOW + 1000 * n // rate for n in range(rate * seconds)]
    for number, now in enumerate(times):
        nonce, claimed = number.to_bytes(16, "big"), now + int(ahead * window)
        memory.require_new("ada", nonce, claimed, now)
        memory.remember("ada", nonce, claimed)
    assert len(memory) <= room


def test_what_is_beyond_the_rate_takes_no_room() -> None:
    """Else a client that is told to slow down fills its memory by asking again."""
    one = machine()

    def refuse(client: str) -> None:
        raise TooMany("slow down", wait_ms=50)

    admit: Callable[[str], None] = refuse
    for _ in range(50):
        claim = one.verifier.check_headers(one.signed(), one.clock.now_ms)
        with pytest.raises(TooMany):
            one.verifier.check_body(claim, "POST", TARGET, sha256(BODY).digest(), one.clock.now_ms, admit)
    assert one.verifier.remembered == 0
