"""``sfsl predict``: who is asked about, from flags, tables and files; and what is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

import sfsl
from bundles import NAMES, write
from sfsl.cli import app

PAST = "film-1,film-4"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write("din", tmp_path / "films")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{user},{NAMES[(user + k) % 12]},{(user + k) % 2},{k}" for user in (3, 5) for k in range(8)]
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(["user,item,label,time", *lines, "3,unheard-of,1,9"]) + "\n")
    return path


def predict(*command: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["predict", *map(str, command), "--json"])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    found: list[dict[str, Any]] = json.loads(done.stdout)["predictions"]
    return found


def pairs(found: dict[str, Any]) -> list[tuple[str, float]]:
    return [(one["id"], one["score"]) for one in found["items"]]


def test_a_history_is_recommended_to_or_scored(bundle: Path) -> None:
    model = sfsl.load(bundle)
    (best,) = predict(bundle, "--history", PAST, "--top", 3)
    assert pairs(best) == model.recommend(["film-1", "film-4"], 3)
    (scored,) = predict(bundle, "--history", PAST, "--items", "film-2", "--items", "film-3,film-9")
    assert [name for name, _ in pairs(scored)] == ["film-2", "film-3", "film-9"]
    expected = model.score(["film-2", "film-3", "film-9"], ["film-1", "film-4"])
    assert [score for _, score in pairs(scored)] == pytest.approx(expected.tolist())


def test_users_of_a_table_have_what_they_clicked_and_a_row_of_their_own(bundle: Path, table: Path) -> None:
    three, five = predict(bundle, "--data", table, "--user", 3, "--user", 5, "--top", 12)
    assert (three["user"], five["user"]) == ("3", "5")
    clicked = {NAMES[(3 + k) % 12] for k in range(8) if (3 + k) % 2}
    assert {name for name, _ in pairs(three)} == set(NAMES) - clicked
    rated = [(NAMES[(5 + k) % 12], (5 + k) % 2) for k in range(8)]
    # Rows are rebuilt in an order that depends on the place among the people: alone it is the same.
    (alone,) = predict(bundle, "--data", table, "--user", 5, "--top", 12)
    expected = sfsl.load(bundle).recommend(rated=rated, top=12)
    assert [score for _, score in pairs(alone)] == pytest.approx([score for _, score in expected], abs=1e-6)


def test_many_are_asked_in_a_csv_or_in_json(bundle: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("user,item\n5,film-2\n3,film-2\n5,film-3\n")
    five, three = predict(bundle, "--data", table, "--requests", tmp_path / "pairs.csv")
    assert [name for name, _ in pairs(five)] == ["film-2", "film-3"]
    assert [name for name, _ in pairs(three)] == ["film-2"]
    assert pairs(five)[0][1] != pairs(three)[0][1]
    asked: list[dict[str, Any]] = [{"history": ["film-1", "film-4"], "top": 2}, {"items": ["film-0"]}]
    asked.append({"rated": [{"item": "film-1", "clicked": True}, {"item": "film-2", "clicked": 0}], "top": 1})
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    known, nobody, rated = predict(bundle, "--requests", tmp_path / "asked.json")
    model = sfsl.load(bundle)
    assert pairs(known) == model.recommend(["film-1", "film-4"], 2)
    assert pairs(nobody)[0][1] == pytest.approx(model.score(["film-0"])[0])
    assert pairs(rated) == model.recommend(rated=[("film-1", 1), ("film-2", 0)], top=1)


def test_people_see_a_table(bundle: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(bundle), "--history", PAST, "--top", "2"])
    assert done.exit_code == 0
    assert "film-" in done.stdout
    assert "round 1" in done.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "say for whom"),
        (["--history", PAST, "--user", "3"], "say for whom"),
        (["--user", "3"], "give it with --data"),
        (["--history", "alien"], "'alien': item is not in the model"),
        (["--history", PAST, "--items", "alien"], "'alien': item is not in the model"),
        (["--data", "clicks.csv", "--user", "77"], "user '77' is not in --data"),
        (["--requests", "nowhere.csv"], "cannot read nowhere.csv"),
        (["--requests", "clicks.csv"], "user '3' is not in nothing: give --data FILE"),
        (["--requests", "items.csv"], "needs user, and item for pairs"),
        (["--requests", "wrong.json"], "no list of requests"),
        (["--requests", "binary.csv"], "neither JSON nor a CSV"),
        (["--state", "films"], "no samples"),
    ],
)
def test_what_cannot_be_answered_is_said(
    bundle: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.csv").write_text("item\nfilm-1\n")
    (tmp_path / "wrong.json").write_text('[{"histroy": ["film-1"]}]')
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    done = CliRunner().invoke(app, ["predict", "films", *flags])
    assert done.exit_code == 1
    assert said in str(done.exception)


def test_without_a_bundle_a_client_needs_a_download(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["predict", "--history", PAST])
    assert "name a bundle" in str(done.exception)
    done = CliRunner().invoke(app, ["predict", "--state", str(tmp_path)])
    assert "has no model: a client keeps what it downloads" in str(done.exception)


def test_a_bundle_is_not_exported_again(bundle: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(bundle), str(tmp_path / "again.zip")])
    assert "is a bundle already" in str(done.exception)
    assert not (tmp_path / "again.zip").exists()
