"""Samples that have been in exact sums are not taken into another period."""

from datetime import date
from pathlib import Path

import pytest

from sfsl.client.exposed import ExposedSamples
from sfsl.errors import StateError
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(1970, 1, 1), days=7)
FIRST, SECOND, THIRD = date(2026, 11, 15), date(2026, 11, 22), date(2026, 11, 29)
OLD, NEW = [b"a", b"b", b"a"], [b"c", b"a"]


@pytest.fixture
def state(tmp_path: Path) -> ClientState:
    return ClientState.create(tmp_path / "state", client="me", calendar=CALENDAR, budget=Budget(100, 100))


@pytest.fixture
def kept(tmp_path: Path) -> ExposedSamples:
    return ExposedSamples(tmp_path / "exposed", SeededRandomness("exposed"))


def expose(state: ClientState, day: date) -> None:
    tables, real = Tables(shared=("goods",)), {"goods": [1]}
    state.begin(day, PRESETS["cpp2"], tables, real, acknowledged=None, randomness=SeededRandomness(str(day)))
    state.expose(str(day).encode())


def test_a_new_period_has_new_samples_only(state: ClientState, kept: ExposedSamples) -> None:
    assert kept.fresh(OLD, state, FIRST).tolist() == [True] * 3
    expose(state, FIRST)
    assert kept.fresh(OLD, state, FIRST).tolist() == [True] * 3  # the period goes on with what it froze
    # Of three equal lines, two were exposed.
    assert kept.fresh([*OLD, *NEW], state, SECOND).tolist() == [False, False, False, True, True]
    expose(state, SECOND)
    assert not kept.fresh([*OLD, *NEW], state, THIRD).any()
    assert kept.fresh([*OLD, *NEW, b"d"], state, THIRD).tolist() == [False] * 5 + [True]


def test_what_was_frozen_and_never_exposed_is_still_new(state: ClientState, kept: ExposedSamples) -> None:
    """It looked, again and again, and no round came of it."""
    for day in (FIRST, FIRST, SECOND):
        assert kept.fresh(OLD, state, day).all()
    expose(state, SECOND)
    assert not kept.fresh(OLD, state, THIRD).any()


def test_samples_of_a_round_that_begins_a_period_later_were_exposed(
    state: ClientState, kept: ExposedSamples
) -> None:
    """It froze in one period, and its invitation came in the next."""
    assert kept.fresh(OLD, state, FIRST).all()
    expose(state, SECOND)
    assert not kept.fresh(OLD, state, THIRD).any()


def test_a_clock_that_is_set_back_makes_nothing_new(state: ClientState, kept: ExposedSamples) -> None:
    kept.fresh(OLD, state, FIRST)
    expose(state, FIRST)
    kept.fresh(NEW, state, SECOND)
    expose(state, SECOND)
    assert kept.fresh([*NEW, b"a"], state, FIRST).tolist() == [True, False, False]


def test_its_owner_may_repeat_samples_and_what_was_exposed_is_kept_all_the_same(
    state: ClientState, kept: ExposedSamples
) -> None:
    kept.fresh(OLD, state, FIRST, repeat=True)
    expose(state, FIRST)
    assert kept.fresh(OLD, state, SECOND, repeat=True).all()
    assert not kept.fresh(OLD, state, SECOND).any()


def test_a_list_that_is_gone_or_damaged_is_not_begun_anew(state: ClientState, kept: ExposedSamples) -> None:
    kept.fresh(OLD, state, FIRST)
    expose(state, FIRST)
    whole = kept.path.read_bytes()
    kept.path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StateError, match=r"damaged.*--repeat-samples"):
        kept.fresh(OLD, state, SECOND)
    kept.path.unlink()
    with pytest.raises(StateError, match=r"not there, and this client has taken part.*--repeat-samples"):
        kept.fresh(OLD, state, SECOND)
    assert kept.fresh(OLD, state, SECOND, repeat=True).all()


def test_it_holds_no_sample(state: ClientState, kept: ExposedSamples, tmp_path: Path) -> None:
    names = [b"item 17\t1700000000.0", b"item 18\t1700000001.0"]
    kept.fresh(names, state, FIRST)
    assert b"item" not in kept.path.read_bytes()
    other = ExposedSamples(tmp_path / "other", SeededRandomness("another client"))
    other.fresh(names, state, FIRST)
    assert kept.path.read_bytes()[-60:-32] != other.path.read_bytes()[-60:-32]
