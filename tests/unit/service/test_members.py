"""Who may be in a round: settings at their bounds, turns in periods, rests that double; clocks and what they
are called."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest

from deployment import settings
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import ParameterError
from sfsl.service.clock import SigningClock, spell
from sfsl.service.members import DAY_MS, Members, ServiceSettings
from sfsl.service.registry import Registry


def test_settings_where_nobody_says() -> None:
    usual = ServiceSettings(settings().rules, 3, 2, 8)
    assert (usual.check_in_seconds, usual.phase_seconds, usual.training_seconds) == (60.0, 60.0, 600.0)
    assert (usual.poll_seconds, usual.grace_seconds) == (25.0, 30.0)
    assert (usual.period_days, usual.most_clients, usual.rounds) == (1, 10_000, 0)
    assert usual.deadline("submodel") == 600.0
    assert usual.deadline("inbound") == 60.0


@pytest.mark.parametrize(
    ("fits", "beyond", "says"),
    [
        ({"min_cohort": 2}, {"min_cohort": 1}, "2 or more"),
        ({"min_cohort": 3}, {"min_cohort": 4}, "in this order"),
        ({"most_clients": 3}, {"most_clients": 2}, "fewer than a cohort"),
        ({"threshold": 2}, {"threshold": 1}, "more than half"),
        ({"threshold": 3}, {"threshold": 4}, "no more than the smallest"),
        (
            {"cohort": 4, "min_cohort": 4, "threshold": 3},
            {"cohort": 4, "min_cohort": 4, "threshold": 2},
            "half",
        ),
    ],
)
def test_settings_at_their_bounds(fits: dict[str, Any], beyond: dict[str, Any], says: str) -> None:
    settings(**fits)
    with pytest.raises(ParameterError, match=says):
        settings(**beyond)
    with pytest.raises(ParameterError, match="sums are planned for 3"):
        ServiceSettings(settings().rules, 4, 2, 8)


def test_periods_are_cut_at_midnight() -> None:
    weekly = settings(period_days=7)
    week = 7 * DAY_MS
    assert week == 604_800_000
    assert [weekly.period(now) for now in (0, week - 1, week)] == [0, 0, 1]
    assert settings(period_days=0).period(5) is None


class World:
    def __init__(self, folder: Path, **changes: Any) -> None:
        self.registry = Registry(folder / "registry.sqlite")
        self.now, self.today = 0.0, 10 * DAY_MS
        self.members = Members(
            settings(**changes),
            self.registry,
            clock=lambda: self.now,
            today=lambda: self.today,
            first_rest=100.0,
        )

    def client(self, number: int) -> str:
        return self.registry.enrol(Identity(Secret(bytes([number]) * 32)).public, 1)


def test_a_turn_in_each_period(tmp_path: Path) -> None:
    world = World(tmp_path, period_days=2)
    one, two = world.client(1), world.client(2)
    assert world.members.bars(one) == ""
    assert world.members.period_ends == 10 * 86_400  # it begins now
    world.today += 1
    assert world.members.period_ends == 12 * 86_400
    assert world.members.take_turns([one]) == 5
    assert set(world.members.had_their_turn()) == {one}
    assert "in this period already; the next begins in 2.00 days" in world.members.bars(one)
    world.today = 12 * DAY_MS - DAY_MS // 2
    assert "begins in 0.50 days" in world.members.bars(one)
    assert world.members.bars(two) == ""
    world.today = 12 * DAY_MS
    assert world.members.bars(one) == ""
    free = Members(settings(period_days=0), world.registry, clock=lambda: 0.0, today=lambda: 0)
    assert free.take_turns([one]) is None
    assert (free.had_their_turn(), free.period_ends, free.bars(one)) == ((), None, "")
    assert free.first_rest == 600.0
    world.registry.close()


def test_a_turn_counts_also_where_nobody_was_asked_about_before(tmp_path: Path) -> None:
    """Right after a start, and right after a period began: the registry knows who had a turn."""
    world = World(tmp_path, period_days=1)
    one, two = world.client(1), world.client(2)
    world.registry.invite(10, b"earlier", [two])
    assert world.members.take_turns([one]) == 10
    assert set(world.members.had_their_turn()) == {one, two}
    world.today += DAY_MS
    assert world.members.take_turns([two]) == 11
    assert set(world.members.had_their_turn()) == {two}
    world.registry.close()


def test_rests_double_up_to_a_day(tmp_path: Path) -> None:
    world = World(tmp_path, period_days=0, most_clients=3)
    members = world.members
    assert [members.leave_out("a") for _ in range(3)] == [100.0, 200.0, 400.0]
    world.now = 399.9
    assert "left out of rounds for a while" in members.bars("a")
    world.now = 400.0
    assert members.bars("a") == ""
    for _ in range(7):
        members.leave_out("a")
    assert members.leave_out("a") == 86_400.0
    for name in ("b", "c"):
        assert members.leave_out(name) == 100.0
    assert members.bars("a")
    members.leave_out("d")  # of more than may wait the first is forgotten
    assert members.bars("a") == ""
    assert members.bars("b")
    long = Members(settings(), world.registry, clock=lambda: 0.0, today=lambda: 0, first_rest=math.inf)
    assert long.leave_out("a") == math.inf
    late = Members(settings(), world.registry, clock=lambda: 0.0, today=lambda: 0, first_rest=100_000.0)
    assert [late.leave_out("a") for _ in range(2)] == [100_000.0] * 2
    world.registry.close()


# -- clocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0.0 s"),
        (-1500, "1.5 s"),
        (119_900, "119.9 s"),
        (120_000, "2 minutes"),
        (7_140_000, "119 minutes"),
        (7_200_000, "2.0 hours"),
        (172_000_000, "47.8 hours"),
        (172_800_000, "2 days"),
        (4000 * DAY_MS, "4,000 days"),
    ],
)
def test_how_much_time_that_is(ms: int, said: str) -> None:
    assert spell(ms) == said


class Clocks:
    wall, steady = 1_000_000, 500

    def signing(self, path: Path | None) -> SigningClock:
        return SigningClock(path, wall=lambda: self.wall, steady=lambda: self.steady)


def test_a_clock_goes_on_where_the_last_process_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clocks, path = Clocks(), tmp_path / "clock"
    clock = clocks.signing(path)
    assert (clock.began_ms, clock.now_ms, clock.off_ms) == (1_000_000, 1_000_000, 0)
    clocks.steady += 250
    assert clock.now_ms == 1_000_250
    clock.cover(1_000_200)
    killed = clocks.signing(path)
    assert killed.began_ms == 1_000_200 + 30_000 + 1  # written ahead
    clock.cover(1_000_100)  # an earlier one moves nothing
    clock.close()
    assert clocks.signing(path).began_ms == 1_000_201
    clocks.wall = 2_000_000
    assert clocks.signing(path).began_ms == 2_000_000
    clocks.wall = 1_000_000 - 1000
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        clocks.signing(path)
        assert not caplog.records
        clocks.wall -= 1
        behind = clocks.signing(path)
    assert "1.0 s behind" in caplog.text
    assert behind.began_ms == 1_000_201


def test_a_clock_that_kills_have_led_ahead_is_told_beyond_half_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clocks, path = Clocks(), tmp_path / "clock"
    clocks.signing(path).cover(1_000_000)
    with caplog.at_level(logging.INFO):
        clocks.wall += 1
        clocks.signing(path)  # ahead by what was written ahead
        assert not caplog.records
        clocks.wall -= 1
        clocks.signing(path)
    assert [(said.levelname, "30.0 s ahead" in said.getMessage()) for said in caplog.records] == [
        ("INFO", True)
    ]


def test_a_step_of_the_machines_clock_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = clocks.signing(None)
    with caplog.at_level(logging.WARNING):
        clocks.wall += 1000
        assert clock.wall_ms == 1_001_000
        assert not caplog.records
        clocks.wall += 1
        assert clock.off_ms == 1001
        assert "set forward by 1.0 s" in caplog.text
        _ = clock.wall_ms
        assert len(caplog.records) == 1
        clocks.wall -= 5000
        assert clock.off_ms == -3999
    assert "set back by 5.0 s" in caplog.text
    clock.cover(5)
    clock.close()
    assert clocks.signing(None).began_ms == clocks.wall
