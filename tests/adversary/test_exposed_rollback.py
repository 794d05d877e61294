"""An older list of exposed samples, put back beside a state that has gone on."""

import tempfile
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from power import MEMORY, Disk, PowerCut, powered_by

from sfsl.client.exposed import ExposedSamples
from sfsl.crypto.secret import digest
from sfsl.errors import StateError
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(1970, 1, 1), days=7)
FIRST = date(2026, 11, 15)
SECOND, THIRD = FIRST + timedelta(days=7), FIRST + timedelta(days=14)
BUDGET = Budget(100, 100)
OLD, NEW = [b"old 1", b"old 2"], [b"new"]


def made(folder: Path) -> ClientState:
    return ClientState.create(folder / "state", client="me", calendar=CALENDAR, budget=BUDGET)


def opened(folder: Path) -> ClientState:
    return ClientState.open(folder / "state", client="me", budget=BUDGET)


def fresh(
    folder: Path, state: ClientState, names: list[bytes], day: date, *, repeat: bool = False
) -> list[bytes]:
    kept = ExposedSamples(folder / "exposed", SeededRandomness("exposed"))
    new = kept.fresh(names, state, day, repeat=repeat)
    return [name for name, is_new in zip(names, new.tolist(), strict=True) if is_new]


def expose(state: ClientState, day: date) -> None:
    tables, chance = Tables(shared=("goods",)), SeededRandomness(str(day))
    state.begin(day, PRESETS["cpp2"], tables, {"goods": [1]}, acknowledged=None, randomness=chance)
    state.expose(str(day).encode())


def live(folder: Path, left: set[bytes], made_by_now: list[bool]) -> None:
    """Two periods, each with an exposure. ``left`` is told what leaves the device."""
    with made(folder) as state:
        made_by_now.append(True)
        for names, day in ((OLD, FIRST), (OLD + NEW, SECOND)):
            new = fresh(folder, state, names, day)
            expose(state, day)
            left.update(new)


def put_back(folder: Path, day: date) -> list[bytes]:
    """Take part in two periods, put back the list of the first, and return what ``day`` may use."""
    copies = []
    with made(folder) as state:
        for names, at in ((OLD, FIRST), (OLD + NEW, SECOND)):
            fresh(folder, state, names, at)
            expose(state, at)
            copies.append((folder / "exposed").read_bytes())
    (folder / "exposed").write_bytes(copies[0])
    with opened(folder) as state:
        return fresh(folder, state, OLD + NEW, day)


@pytest.mark.parametrize("day", [SECOND, THIRD])
def test_an_older_list_that_is_put_back_is_refused(tmp_path: Path, day: date) -> None:
    with pytest.raises(StateError, match=r"not the one that this client wrote last.*--repeat-samples"):
        put_back(tmp_path, day)


def test_without_the_check_samples_are_exposed_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExposedSamples, "_require_latest", lambda *_: None)
    assert put_back(tmp_path, THIRD) == NEW


def test_an_older_list_is_refused_where_samples_are_repeated_and_another_may_be_begun(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="wrote last"):
        put_back(tmp_path, THIRD)
    (tmp_path / "exposed").rename(tmp_path / "away")
    with opened(tmp_path) as state:
        assert fresh(tmp_path, state, OLD, THIRD, repeat=True) == OLD
        expose(state, THIRD)
    (tmp_path / "away").rename(tmp_path / "exposed")
    with opened(tmp_path) as state, pytest.raises(StateError, match="wrote last"):
        fresh(tmp_path, state, OLD, THIRD, repeat=True)


def test_a_list_of_before_states_knew_it_is_taken_once(tmp_path: Path) -> None:
    with made(tmp_path) as state:
        fresh(tmp_path, state, OLD, FIRST)
        expose(state, FIRST)
        first = (tmp_path / "exposed").read_bytes()
        state.expect_exposed()  # as a state of an earlier version has it
        assert fresh(tmp_path, state, OLD + NEW, SECOND) == NEW
        expose(state, SECOND)
    (tmp_path / "exposed").write_bytes(first)
    with opened(tmp_path) as state, pytest.raises(StateError, match="wrote last"):
        fresh(tmp_path, state, OLD + NEW, THIRD)


# -- power cuts ----------------------------------------------------------------------------------


def recover(folder: Path, left: set[bytes], was_made: bool) -> None:
    """Go on after a power cut: nothing is refused, and nothing that left the device is new."""
    if not (folder / "state").exists():
        assert not was_made
        return
    with opened(folder) as state:
        for day in (SECOND, THIRD):
            new = fresh(folder, state, OLD + NEW, day)
            assert day == SECOND or not left & set(new)
        assert len(state.exposed) == 1


def cut_everywhere() -> int:
    """Cut the power before every system call and go on from everything that may be left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        whole = Disk()
        with powered_by(whole):
            live(Path(folder), set(), [])
    recoveries = 0
    for position in range(whole.calls + 1):
        disk, left, was_made = Disk(cut_before=position), set[bytes](), list[bool]()
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            try:
                with powered_by(disk):
                    live(Path(folder), left, was_made)
            except PowerCut:
                pass
        for files in disk.after_a_cut():
            with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                for name, content in files.items():
                    (Path(folder) / name).write_bytes(content)
                    (Path(folder) / name).chmod(0o600)
                with powered_by(Disk()):
                    recover(Path(folder), left, bool(was_made))
                recoveries += 1
    return recoveries


def test_a_power_cut_between_any_two_system_calls_of_state_and_list() -> None:
    assert cut_everywhere() > 50


def the_next_one_only(state: ClientState, *digests: bytes) -> None:
    _expect(state, digests[-1])


def after_the_list(state: ClientState, *digests: bytes) -> None:
    if len(digests) == 1 and (state.exposed or state.period is None):
        _expect(state, *digests)


_expect = ClientState.expect_exposed


@pytest.mark.parametrize("weaker", [the_next_one_only, after_the_list])
def test_a_state_that_knows_but_one_of_two_lists_is_stuck_after_a_cut(
    monkeypatch: pytest.MonkeyPatch, weaker: Callable[..., None]
) -> None:
    monkeypatch.setattr(ClientState, "expect_exposed", weaker)
    with pytest.raises((StateError, AssertionError)):
        cut_everywhere()


def test_the_digest_is_that_of_the_specification(tmp_path: Path) -> None:
    with made(tmp_path) as state:
        fresh(tmp_path, state, OLD, FIRST)
        assert state.exposed == (digest("exposed samples", (tmp_path / "exposed").read_bytes()),)
