"""Scores of a bundle: those of the model in its store, of plain torch, and for people who are new."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sfsl
from bundles import HISTORY, KINDS, NAMES, trained, without_sfsl, write
from sfsl.bundle import pack
from sfsl.bundle.model import Bundle
from sfsl.bundle.scorer import first_values
from sfsl.correction import Correction
from sfsl.crypto.secret import digest
from sfsl.data import Samples
from sfsl.data.catalogue import Catalogue
from sfsl.errors import InputError
from sfsl.submodel import RowSet, Table
from sfsl.submodel.store import initial_rows
from sfsl.training import ClientWork, LocalSettings, rebuild_client, score_parts

CLICKS = [kind for kind in KINDS if kind != "lstm"]
PAST, ASKED = [1, 4, 5], np.array([0, 2, 7, 11])


def clicks(history: list[int], items: np.ndarray, labels: np.ndarray | None = None) -> Samples:
    columns = {
        "user": np.zeros(len(items), np.int64),
        "item": items,
        "history": np.tile(history, (len(items), 1)),
        "item_category": items % 2,
        "history_category": np.tile(np.array(history) % 2, (len(items), 1)),
        "label": np.ones(len(items), np.float32) if labels is None else labels.astype(np.float32),
    }
    tables = {"user": "user", "item": "item", "history": "item"}
    tables |= {"item_category": "category", "history_category": "category"}
    return Samples(columns, tables, {"item_category": "item", "history_category": "history"})


def in_the_store(kind: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What the model scores that no bundle has been made of, and the parts of its log-odds."""
    task, store, _ = trained(kind)
    data = clicks(PAST, ASKED)
    rows = task.needed_rows(data)[0]
    values = {
        name: np.zeros((len(one), task.spec.table(name).width), np.float32)
        if name == "user"
        else store.read_rows(name, RowSet(one)).values
        for name, one in rows.items()
    }
    scores, parts = score_parts(task, store.read_dense().values, rows, values, data)
    return scores, dict(zip(task.parts, parts.T, strict=True))


@pytest.mark.parametrize("kind", CLICKS)
def test_scores_are_those_of_the_model_in_the_store(kind: str, tmp_path: Path) -> None:
    expected, _ = in_the_store(kind)
    found = sfsl.load(write(kind, tmp_path / "b")).score(
        [NAMES[row] for row in ASKED], [NAMES[row] for row in PAST]
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.ptp(found) > 1e-3


def test_scores_are_corrected_as_validation_devices_said(tmp_path: Path) -> None:
    plain, sober = sfsl.load(write("din", tmp_path / "a")), Correction(0.5, -0.25)
    corrected = sfsl.load(write("din", tmp_path / "b", correction=sober))
    past = [NAMES[row] for row in PAST]
    np.testing.assert_allclose(
        corrected.score(NAMES, past), sober.chances(plain.score(NAMES, past)), atol=1e-6
    )
    printed = without_sfsl(tmp_path / "b", f"print(model.load().score({NAMES}, {past}))")
    np.testing.assert_allclose(json.loads(printed), corrected.score(NAMES, past), atol=1e-7)


@pytest.mark.parametrize("kind", [kind for kind in CLICKS if kind != "logistic"])
def test_parts_of_the_log_odds_count_as_validation_devices_said(kind: str, tmp_path: Path) -> None:
    raw, parts = in_the_store(kind)
    odds = np.log(raw) - np.log1p(-raw)
    np.testing.assert_allclose(sum(parts.values()), odds, atol=1e-4)
    correction = Correction(0.8, 0.1, {"tower": 0.2, "user": 1.0, "item": 1.8, "match": 1.0})
    expected = correction.chances(raw, parts)
    assert np.abs(expected - Correction(0.8, 0.1).chances(raw)).max() > 0.01
    bundle = sfsl.load(write(kind, tmp_path / "b", correction=correction))
    assert isinstance(bundle, Bundle)
    assert bundle.correction == correction
    asked, past = [NAMES[row] for row in ASKED], [NAMES[row] for row in PAST]
    np.testing.assert_allclose(bundle.score(asked, past), expected, atol=1e-6)
    printed = without_sfsl(tmp_path / "b", f"print(model.load().score({asked}, {past}))")
    np.testing.assert_allclose(json.loads(printed), expected, atol=1e-6)


def test_words_have_chances_that_sum_to_one(tmp_path: Path) -> None:
    bundle = sfsl.load(write("lstm", tmp_path / "b"))
    found = bundle.score(NAMES, history=["film-1", "film-4"])
    assert abs(found.sum() - 1) < 1e-5
    best = bundle.recommend(history=["film-1", "film-4"], top=2)
    assert best[0] == (NAMES[int(found.argmax())], pytest.approx(found.max()))


def test_plain_torch_without_sfsl_gives_the_same_scores(tmp_path: Path) -> None:
    """One process for all kinds: each ``model`` is loaded anew."""
    code, past = "import importlib, json\nfound = {}\n", [NAMES[row] for row in PAST]
    for kind in KINDS:
        folder = write(kind, tmp_path / kind)
        code += f"sys.path.insert(0, {str(folder)!r}); importlib.invalidate_caches()\n"
        code += "sys.modules.pop('model', None); import model\n"
        code += f"m = model.load(); found[{kind!r}] = [m.score({NAMES}, {past}), m.top({past}, 2)]\n"
    code += "assert not [name for name in sys.modules if name.startswith('sfsl.')]\nprint(json.dumps(found))"
    printed = json.loads(without_sfsl(tmp_path / KINDS[0], code))
    for kind in KINDS:
        bundle = sfsl.load(tmp_path / kind)
        scores, best = printed[kind]
        np.testing.assert_allclose(scores, bundle.score(NAMES, past), atol=1e-7)
        assert [name for name, _ in best] == [name for name, _ in bundle.recommend(past, 2)]


def test_a_large_table_costs_what_was_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sfsl.load(write("din", tmp_path / "whole"))
    monkeypatch.setattr(pack, "MOST_WHOLE", 0)
    sparse = sfsl.load(write("din", tmp_path / "sparse"))
    assert sparse.manifest.architecture.tables[1].stored == "touched"
    assert len(sparse._rows.tensors["item.numbers"]) == len(NAMES) / 2
    np.testing.assert_array_equal(sparse.rows("item", [5, 0, 5]), whole.rows("item", [5, 0, 5]))
    past = [NAMES[row] for row in PAST]
    np.testing.assert_array_equal(sparse.score(NAMES, past), whole.score(NAMES, past))
    printed = without_sfsl(tmp_path / "sparse", f"print(model.load().score({NAMES}, {past}))")
    np.testing.assert_allclose(json.loads(printed), whole.score(NAMES, past), atol=1e-7)
    # Rows that no round moved are nothing to recommend.
    assert {name for name, _ in sparse.recommend(past, 12)} <= set(NAMES[::2])


def test_two_billion_rows_take_no_room(tmp_path: Path) -> None:
    names = Catalogue.sized(4, item=2 * 10**9)
    folder = write("din", tmp_path / "b", names=names)
    assert sum(one.stat().st_size for one in folder.iterdir()) < 2**20
    bundle, past = sfsl.load(folder), [1_999_999_999, 4]
    found = bundle.score([0, 1, 1_500_000_000], past)
    assert {name for name, _ in bundle.recommend(past, 3)} <= {"0", "2", "6", "8", "10"}
    code = f"m = model.load(); print([m.score([0, 1, 1_500_000_000], {past}), m.top({past}, 3)])"
    scores, best = ast.literal_eval(without_sfsl(folder, code))
    np.testing.assert_allclose(scores, found, atol=1e-7)
    assert [name for name, _ in best] == [name for name, _ in bundle.recommend(past, 3)]


@pytest.mark.parametrize("width", [1, 4, 18])
def test_first_values_in_plain_torch_are_the_stores(width: int) -> None:
    table, rows = Table(name="item", rows=2**40, width=width, initial=0.15), np.array([0, 7, 2**39])
    key = digest("initial rows", bytes(range(32)), b"item")
    found = first_values(key, table.initial, rows.tolist(), width)
    np.testing.assert_array_equal(found.numpy(), initial_rows(bytes(range(32)), table, rows))


def test_somebody_with_samples_has_their_row_rebuilt(tmp_path: Path) -> None:
    bundle = sfsl.load(write("din", tmp_path / "b"))
    rated = [(NAMES[1], 1), (NAMES[2], 0), (NAMES[4], True), (NAMES[3], False), (NAMES[5], 1)]
    person = bundle.person(rated=rated)
    assert person.history.tolist() == [1, 4, 5]
    task, store, config = trained("din")
    data = bundle_samples(bundle, rated)
    rows = task.needed_rows(data)[0]
    values = {name: store.read_rows(name, RowSet(one)).values for name, one in rows.items() if name != "user"}
    values["user"] = np.zeros((1, 6), np.float32)
    settings = LocalSettings(
        **{name: getattr(config.training, name) for name in LocalSettings.__dataclass_fields__}
    )
    expected = rebuild_client(task, store.read_dense().values, ClientWork(rows, values, data, 0), settings)
    np.testing.assert_allclose(person.row, expected["user"][0], atol=1e-6)
    assert np.abs(person.row).max() > 0
    assert not np.allclose(
        bundle.score(NAMES, rated=rated), bundle.score(NAMES, [NAMES[row] for row in PAST])
    )


def bundle_samples(bundle: Bundle, rated: list[tuple[str, int]]) -> Samples:
    from sfsl.data.own import in_rows

    items, labels = bundle.find([one for one, _ in rated]), np.array([int(bool(one)) for _, one in rated])
    data = in_rows(bundle.catalogue, np.zeros(len(items)), items, labels, np.arange(len(items)))
    samples = data.client(0, HISTORY)
    return samples.keep(bundle.task().needed_rows(samples)[0])


def test_recommendations_are_the_best_that_were_not_clicked(tmp_path: Path) -> None:
    bundle = sfsl.load(write("dien", tmp_path / "b"))
    past = [NAMES[row] for row in PAST]
    best = bundle.recommend(past, top=4)
    scores = dict(zip(NAMES, bundle.score(NAMES, past), strict=True))
    others = sorted((name for name in NAMES if name not in past), key=lambda name: -scores[name])
    assert [name for name, _ in best] == others[:4]


def test_only_the_last_of_a_long_history_counts(tmp_path: Path) -> None:
    bundle = sfsl.load(write("bst", tmp_path / "b"))
    long = [NAMES[row] for row in (8, 9, *PAST)]
    np.testing.assert_array_equal(bundle.score(NAMES, long), bundle.score(NAMES, long[-HISTORY:]))


def test_pairs_of_many_people_are_scored_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = sfsl.load(write("din", tmp_path / "b"))
    people = [bundle.person(NAMES[:1]), bundle.person(), bundle.person(NAMES[2:5])]
    who, items, seen = np.array([2, 0, 1, 2, 0]), np.array([7, 7, 7, 8, 9]), []
    whole = bundle.score_pairs(people, who, items)
    monkeypatch.setattr("sfsl.bundle.model._PAIRS_AT_ONCE", 2)
    np.testing.assert_allclose(bundle.score_pairs(people, who, items, seen.append), whole, atol=1e-7)
    assert seen == [2, 4, 5]
    np.testing.assert_allclose(whole[2], bundle.score([NAMES[7]])[0], atol=1e-7)


def test_an_id_that_is_not_there_is_named(tmp_path: Path) -> None:
    bundle = sfsl.load(write("logistic", tmp_path / "b"))
    with pytest.raises(InputError, match=r"'alien': item is not in the model; .* such as film-0, film-1"):
        bundle.score(["alien"])


def test_code_in_a_bundle_is_never_run(tmp_path: Path) -> None:
    folder = write("logistic", tmp_path / "b")
    assert sfsl.load(folder).score(NAMES).shape == (12,)
    assert not [one for one in sys.modules.values() if str(folder) in str(getattr(one, "__file__", ""))]
