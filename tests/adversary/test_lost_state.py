"""A client whose state is taken away, or lies open: it must not begin a second ledger in the same period."""

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cohort import MODEL
from sfsl import durable
from sfsl.cli import app
from sfsl.client import home as client_home
from sfsl.client.home import Home
from sfsl.errors import BudgetExhausted, Declined, RolledBack, StateError
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables
from sfsl.privacy.state import read_state
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(1970, 1, 1), days=7)
BUDGET = Budget(100, 100)  # one exposure a period
TODAY = date(2026, 11, 16)
TABLES, REAL = Tables(shared=("goods",)), {"goods": [3, 5, 900]}
DEPLOYMENT = bytes(range(16))


def begin(state: ClientState, day: date = TODAY, acknowledged: int | None = None) -> None:
    state.begin(day, PRESETS["cpp2"], TABLES, REAL, acknowledged=acknowledged, randomness=SeededRandomness(1))


def joined(folder: Path) -> Home:
    """A client that was in a round, as ``sfsl join`` leaves its folder behind."""
    home = Home(folder, SeededRandomness("home"))
    home.identity()
    with home.state("me", CALENDAR, BUDGET) as state, home.personal(MODEL):
        home.pin(DEPLOYMENT)
        begin(state)
        state.expose(b"round 1")
        with pytest.raises(BudgetExhausted):
            state.expose(b"round 2")
    return home


def exposed_again(home: Home) -> bool:
    """Delete the state and expose the same rows a second time in the same period."""
    (home.folder / "state").unlink()
    with home.state("me", CALENDAR, BUDGET) as state:
        begin(state)
        state.expose(b"round 2")
    return True


def test_a_state_that_was_deleted_is_not_begun_anew(tmp_path: Path) -> None:
    home = joined(tmp_path / "me")
    with pytest.raises(StateError, match=r"deployment, rows beside it are there.*sfsl privacy renew"):
        exposed_again(home)
    assert not (home.folder / "state").exists()


def test_without_the_check_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Home, "_require_new", lambda *_: None)
    assert exposed_again(joined(tmp_path / "me"))


@pytest.mark.parametrize(
    "left", ["deployment", "rows", "data", "data.sum", "exposed", "log", "model", "current.zip"]
)
def test_any_trace_of_an_earlier_round_is_enough(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_bytes(b"something")
    with pytest.raises(StateError, match=f"but {left} beside it is there"):
        Home(tmp_path, SeededRandomness("home")).state("me", CALENDAR, BUDGET)


def test_a_client_that_was_cut_off_before_its_first_round_begins(tmp_path: Path) -> None:
    """Its key, a lock, and half a file: no state was ever whole, so nothing was given away."""
    home = Home(tmp_path, SeededRandomness("home"))
    home.identity()
    (tmp_path / "state.lock").touch()
    (tmp_path / "state.new").write_bytes(b"half")
    home.state("me", CALENDAR, BUDGET).close()


def test_renewed_it_sits_out_the_period_and_owns_up_to_what_the_server_knows(tmp_path: Path) -> None:
    home = joined(tmp_path / "me")
    (home.folder / "state").unlink()
    home.renew("me", CALENDAR, TODAY)
    with home.state("me", CALENDAR, BUDGET) as state:
        begin(state)
        with pytest.raises(Declined, match="rolled back or lost; it sits out until 2026-11-19"):
            state.expose(b"round 2")
        with pytest.raises(RolledBack, match="remembers 1 rounds of this client, its state only 0"):
            begin(state, acknowledged=1)
        assert state.ledger.begun == 1
        begin(state, TODAY + timedelta(days=7), acknowledged=1)
        state.expose(b"round 3")
    with pytest.raises(StateError, match="exists"):
        home.renew("me", CALENDAR, TODAY)


def test_renew_from_the_command_line(tmp_path: Path) -> None:
    name = client_id(Home(tmp_path, SeededRandomness("home")).identity().public)
    ran = CliRunner().invoke(app, ["privacy", "renew", str(tmp_path), "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["client"] == name
    record = read_state(tmp_path / "state")
    assert record.client == name
    assert record.period is not None
    assert record.period.barred


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_a_state_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    home = joined(tmp_path)
    (tmp_path / "state").chmod(mode)
    with pytest.raises(StateError, match=rf"mode {mode:04o}.*chmod 600"):
        home.state("me", CALENDAR, BUDGET)
    (tmp_path / "state").chmod(0o600)
    home.state("me", CALENDAR, BUDGET).close()
    (tmp_path / "rows").chmod(mode)
    with pytest.raises(StateError, match="chmod 600"):
        home.personal(MODEL)


def test_without_the_check_it_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = joined(tmp_path)
    (tmp_path / "state").chmod(0o644)
    monkeypatch.setattr(durable, "OTHERS", 0)
    home.state("me", CALENDAR, BUDGET).close()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o757, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever may write there puts another state, key or list of samples into the place of the client's."""
    joined(tmp_path / "me")
    (tmp_path / "me").chmod(mode)
    with pytest.raises(StateError, match=rf"others may write in .*me \(mode {mode:04o}\).*chmod go-w"):
        Home(tmp_path / "me", SeededRandomness("home"))
    ran = CliRunner().invoke(app, ["privacy", "renew", str(tmp_path / "me")])
    assert isinstance(ran.exception, StateError)
    (tmp_path / "me").chmod(0o755)  # others may look: files are for their owner only
    Home(tmp_path / "me", SeededRandomness("home")).state("me", CALENDAR, BUDGET).close()


def test_without_that_check_it_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined(tmp_path / "me")
    (tmp_path / "me").chmod(0o777)
    monkeypatch.setattr(client_home, "_OTHERS_WRITE", 0)
    Home(tmp_path / "me", SeededRandomness("home")).state("me", CALENDAR, BUDGET).close()
