"""What a client keeps on its device: identity, deployment, frozen samples, personal rows; and its own CSV."""

import stat
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from cohort import MODEL
from sfsl.client.home import Home, PersonalRows
from sfsl.data.catalogue import Catalogue
from sfsl.data.own import Layout, load_own
from sfsl.errors import InputError, KeyFileError, StateError
from sfsl.privacy import PRESETS, Budget, Calendar, Tables
from sfsl.submodel import ModelSpec, Table
from sfsl.submodel.store import initial_rows
from sfsl.testing import SeededRandomness

CALENDAR = Calendar(start=date(1970, 1, 1), days=7)
BUDGET = Budget(100, 100)
OWN = np.array([2, 5])


def catalogue(category_of: list[int] | None = None) -> Catalogue:
    if category_of is None:
        return Catalogue.of_items(np.arange(5))
    return Catalogue.of_items(np.arange(5), np.arange(2), np.array(category_of))


def rows_at(path: Path, model: ModelSpec = MODEL) -> PersonalRows:
    return PersonalRows.open(path, model, SeededRandomness("rows"))


# -- personal rows -----------------------------------------------------------------------------


def test_rows_begin_by_a_seed_of_the_device_and_stay_as_trained(tmp_path: Path) -> None:
    with rows_at(tmp_path / "rows") as rows:
        seed = rows._seed
        first = rows.read("user", OWN)
        assert np.array_equal(first, initial_rows(seed, MODEL.table("user"), OWN))
        rows.keep({"user": (OWN[1:], np.array([[1, 2]], np.float32))})
    with PersonalRows.open(tmp_path / "rows", MODEL, SeededRandomness("another")) as rows:
        assert rows._seed == seed
        found = rows.read("user", np.array([2, 5, 7]))
        assert np.array_equal(found[0], first[0])
        assert found[1].tolist() == [1, 2]
        rows.keep({"user": (OWN[:1], np.array([[3, 4]], np.float32))})
        assert rows.read("user", OWN).tolist() == [[3, 4], [1, 2]]
    assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o600


def test_two_processes_do_not_share_them(tmp_path: Path) -> None:
    with rows_at(tmp_path / "rows"), pytest.raises(StateError, match="in use"):
        rows_at(tmp_path / "rows")


def test_what_cannot_be_kept_changes_nothing(tmp_path: Path) -> None:
    with rows_at(tmp_path / "rows") as rows:
        before = (tmp_path / "rows").read_bytes()
        for values in (np.full((2, 2), np.nan), np.zeros((2, 3)), np.zeros((1, 2))):
            with pytest.raises(InputError):
                rows.keep({"user": (OWN, values.astype(np.float32))})
        with pytest.raises(StateError, match="no personal table"):
            rows.keep({"goods": (OWN, np.zeros((2, 3), np.float32))})
        assert (tmp_path / "rows").read_bytes() == before
        assert np.isfinite(rows.read("user", OWN)).all()


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with rows_at(path) as rows:
        rows.keep({"user": (OWN, np.ones((2, 2), np.float32))})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StateError):
            rows_at(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError):
            rows_at(path)


def test_rows_of_another_model_are_not_taken(tmp_path: Path) -> None:
    with rows_at(tmp_path / "rows") as rows:
        rows.keep({"user": (OWN, np.ones((2, 2), np.float32))})
    goods = Table(name="goods", rows=5, width=2)
    wider = ModelSpec(tables=(goods, Table(name="user", rows=10, width=3, kind="personal")), dense=1)
    with pytest.raises(StateError, match="width 3"):
        rows_at(tmp_path / "rows", wider)
    with pytest.raises(StateError, match="no personal table"):
        rows_at(tmp_path / "rows", ModelSpec(tables=(goods,), dense=1))


def test_personal_rows_do_not_print_themselves(tmp_path: Path) -> None:
    with rows_at(tmp_path / "rows") as rows:
        assert repr(rows) == "PersonalRows(redacted)"


# -- home --------------------------------------------------------------------------------------


def test_an_identity_is_made_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "me", SeededRandomness("home"))
    first = home.identity()
    assert home.identity().public == first.public
    assert stat.S_IMODE((tmp_path / "a" / "me").stat().st_mode) == 0o700
    with pytest.raises(KeyFileError):
        home.identity(tmp_path / "none.key")  # one that was named is never made up


def test_the_first_deployment_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path, SeededRandomness("home"))
    assert home.deployment() is None
    home.pin(bytes(16))
    home.pin(bytes([1] * 16))
    assert home.deployment() == bytes(16)
    (tmp_path / "deployment").write_text("nonsense")
    with pytest.raises(StateError):
        home.deployment()
    (tmp_path / "deployment").write_text(bytes(16).hex())  # as the error says
    assert home.deployment() == bytes(16)


def test_new_samples_wait_for_the_next_period(tmp_path: Path) -> None:
    home, source = Home(tmp_path / "me", SeededRandomness("home")), tmp_path / "mine.csv"
    day, later = date(2026, 11, 15), date(2026, 11, 22)
    with home.state("me", CALENDAR, BUDGET) as state:
        source.write_text("old")
        assert home.samples(source, state, day)[1] is False
        source.write_text("newer")  # before the period began: nothing was frozen yet
        copy, changed = home.samples(source, state, day)
        assert (copy.read_text(), changed) == ("newer", False)
        state.begin(
            day, PRESETS["cpp2"], Tables(shared=("goods",)), {"goods": [1]}, acknowledged=None,
            randomness=SeededRandomness("period"),
        )  # fmt: skip
        source.write_text("newer still")  # and as long as nothing has left
        copy, changed = home.samples(source, state, day)
        assert (copy.read_text(), changed) == ("newer still", False)
        state.expose(b"round")
        source.write_text("newest")
        copy, changed = home.samples(source, state, day)
        assert (copy.read_text(), changed) == ("newer still", True)
        copy, changed = home.samples(source, state, later)
        assert (copy.read_text(), changed) == ("newest", False)
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        with pytest.raises(InputError, match="cannot read"):
            home.samples(tmp_path / "none.csv", state, day)


def test_a_client_keeps_to_its_calendar(tmp_path: Path) -> None:
    home = Home(tmp_path, SeededRandomness("home"))
    home.state("me", CALENDAR, BUDGET).close()
    with pytest.raises(InputError, match="periods of 7 days"):
        home.state("me", Calendar(start=CALENDAR.start, days=1), BUDGET)
    home.state("me", CALENDAR, BUDGET).close()


# -- samples -----------------------------------------------------------------------------------


def test_own_samples_in_the_models_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("time,item,label\n3,4,0\n1,2,1\n2,0,1\n2,1,0\n")
    data, report = load_own(path, catalogue([0, 1, 0, 1, 1]))
    assert str(report).endswith("4 samples from 5 lines")
    samples = data.client(0)
    assert samples.columns["item"].tolist() == [2, 0, 1, 4]
    assert samples.columns["label"].tolist() == [1, 1, 0, 0]
    assert samples.columns["history"].tolist() == [[-1, -1], [2, -1], [2, -1], [2, 0]]
    assert samples.columns["item_category"].tolist() == [0, 0, 1, 1]
    assert samples.columns["user"].tolist() == [0] * 4
    assert samples.rows()["item"].tolist() == [0, 1, 2, 4]


def test_what_cannot_be_used_is_counted_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "item,label,time,category\n1,1,1,0\n5,1,1,0\n-1,1,1,0\nx,1,1,0\n1,2,1,0\n1,1,inf,0\n1,1\n1,0,2,9\n"
    )
    data, report = load_own(path, catalogue([0] * 5))
    assert len(data) == 2
    assert report.problems == {
        "item is not in the model": 1,
        "item is negative or too large": 1,
        "item is not a whole number": 1,
        "label is not 0 or 1": 1,
        "time is neither a number nor a date": 1,
        "too few fields": 1,
        "category is not the model's, which counts": 1,
    }
    assert report.examples["item is not in the model"].startswith("line 3:")


def test_a_file_with_other_columns_and_stars(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("film;stars;on\n4;5;2026-05-01\n2;1;2026-05-02\n")
    layout = Layout({"item": "film", "time": "on"}, "stars>=4")
    data, report = load_own(path, catalogue([0] * 5), layout=layout)
    assert report.problems == {}
    assert (data.client(0).columns["item"].tolist(), data.label.tolist()) == ([4, 2], [1, 0])
    path.write_text("item,label,time\n" + "".join(f"{n % 5},{n % 5 + 1},{n}\n" for n in range(20)))
    with pytest.raises(InputError, match=r"nothing is guessed.*--label"):
        load_own(path, catalogue([0] * 5))


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "it is empty"), ("item,time\n1,2\n", "label"), ("item,label,time\n1,x,1\n", "nothing in it")],
)
def test_a_file_without_samples_is_called_as_its_owner_does(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "data").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        load_own(tmp_path / "data", catalogue(), name="mine.csv")
    assert str(caught.value).startswith("mine.csv")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\0\0\xff\xfe" * 50, "item,label,time\n".encode("utf-16")])
def test_a_file_that_is_no_text_is_not_shown(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mine.csv").write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_own(tmp_path / "mine.csv", catalogue())
    assert "UTF-" in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert str(caught.value).isprintable()


def test_control_characters_of_a_file_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(b"item,label,time\n\x1b[31m1\x00,1,1\n")
    with pytest.raises(InputError) as caught:
        load_own(tmp_path / "mine.csv", catalogue())
    assert "'?[31m1?'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "it is empty"), ("item,time\n1,2\n", "label"), ("item,label,time\n1,x,1\n", "nothing in it")],
)
def test_a_file_without_samples(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        load_own(tmp_path / "mine.csv", catalogue())
