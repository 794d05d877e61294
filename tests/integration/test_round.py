"""A whole round in one process: union, perturbation, download, upload, commit."""

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cohort import DENSE, GOODS, MODEL, WIDTH, Cohort
from sfsl.errors import Aborted, Refused, TooFewClients
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables
from sfsl.rounds import Trained
from sfsl.submodel import ModelSpec, RowMaps, RowSet, Table, TrainedRows


def expected_rows(cohort: Cohort, survivors: Any, table: str, width: int) -> tuple[Any, Any]:
    rows = MODEL.table(table).rows
    sums, weights = np.zeros((rows, width)), np.zeros(rows)
    for name in survivors:
        trained = cohort.trained[name].rows[table]
        counts = np.asarray(trained.counts)
        sums[trained.rows.rows] += counts[:, None] * np.asarray(trained.deltas)
        weights[trained.rows.rows] += counts
    return sums, weights


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize(
    "drop",
    [
        {},
        {"inbound": {"c1"}},
        {"unmask-union": {"c1"}},
        {"union": {"c2"}},
        {"submodel": {"c3"}},
        {"unmask-update": {"c4"}},
    ],
    ids=lambda drop: "".join(drop) or "nobody",
)
def test_a_round_is_the_weighted_average_of_those_who_uploaded(
    active: bool, everything: bool, drop: Any
) -> None:
    cohort = Cohort(active=active, everything=everything)
    before = cohort.store.read_rows("goods", RowSet(np.arange(GOODS))).values.copy()
    outcome = cohort.run(drop)
    missing = {step: names for step, names in drop.items() if step != "unmask-update"}
    assert set(outcome.survivors) == set(cohort.names) - set().union(*missing.values())
    uploaded_set = set(cohort.names) - drop.get("inbound", set())
    union = sorted(set().union(*(cohort.real[name] for name in uploaded_set)))
    assert outcome.union["goods"].rows.tolist() == union

    cohort.store.commit(outcome.applied.commit)
    assert cohort.store.round == 1
    after = cohort.store.read_rows("goods", RowSet(np.arange(GOODS))).values
    sums, weights = expected_rows(cohort, outcome.survivors, "goods", WIDTH)
    moves = sums / np.maximum(weights, 1)[:, None]
    assert np.allclose(after - before, moves, atol=1e-6)
    assert np.array_equal(after[weights == 0], before[weights == 0])
    dense = sum(3 * np.asarray(cohort.trained[name].dense) for name in outcome.survivors)
    assert np.allclose(
        cohort.store.read_dense().values - np.arange(DENSE), dense / (3 * len(outcome.survivors)), atol=1e-6
    )
    positives, negatives = outcome.scores
    assert positives.tolist() == (len(outcome.survivors) * np.arange(8)).tolist()
    assert negatives.tolist() == [len(outcome.survivors)] * 8


TWO = ModelSpec(
    tables=(Table(name="goods", rows=GOODS, width=WIDTH), Table(name="words", rows=25, width=2)), dense=DENSE
)


class TwoTables(Cohort):
    """Clients with rows of their own in two shared tables."""

    def __init__(self, least: int) -> None:
        super().__init__(model=TWO, maps=RowMaps(TWO, {}), least=least)
        rng = np.random.default_rng(9)
        words = {name: np.sort(rng.choice(25, 4, replace=False)) for name in self.names}
        self.own = {
            name: {"goods": np.array(sorted(self.real[name])), "words": words[name]} for name in self.names
        }
        self.answers = {name: _Both(own) for name, own in self.own.items()}

    def train(self, name: str, download: Any) -> Trained:
        rng = np.random.default_rng(int(name[1:]))
        rows = {}
        for table in TWO.tables:
            own = RowSet.of(self.own[name][table.name]).common(download.asked[table.name])
            deltas = rng.integers(-100, 100, (len(own), table.width)) / 1024
            rows[table.name] = TrainedRows(own, deltas, rng.integers(1, 5, len(own)))
        return Trained(np.zeros(DENSE), 3, rows, (np.zeros(8, int), np.ones(8, int)))


class _Both:
    def __init__(self, own: dict[str, Any]) -> None:
        self._own = own

    def expose(self, round_id: bytes) -> dict[str, Any]:
        return self._own

    def answer(self, round_id: bytes, unions: Any, randomness: Any) -> dict[str, Any]:
        return {table: np.isin(union, self._own[table]) for table, union in unions.items()}


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("drop", [{}, {"submodel": {"c3"}}], ids=["nobody", "one drops"])
def test_two_shared_tables_in_one_round(least: int, drop: Any) -> None:
    cohort = TwoTables(least)
    rows = {table.name: RowSet(np.arange(table.rows)) for table in TWO.tables}
    before = {name: cohort.store.read_rows(name, every).values.copy() for name, every in rows.items()}
    outcome = cohort.run(drop)
    cohort.store.commit(outcome.applied.commit)
    for table in TWO.tables:
        name = table.name
        assert (
            outcome.union[name].rows.tolist()
            == np.unique(np.concatenate([own[name] for own in cohort.own.values()])).tolist()
        )
        asked, counts, sums = (
            np.zeros(table.rows, int),
            np.zeros(table.rows),
            np.zeros((table.rows, table.width)),
        )
        for client, own in cohort.own.items():
            asked[own[name]] += 1
            if client in outcome.survivors:
                trained = cohort.trained[client].rows[name]
                weights = np.asarray(trained.counts)
                counts[trained.rows.rows] += weights
                sums[trained.rows.rows] += weights[:, None] * np.asarray(trained.deltas)
        alone = asked < least
        assert (alone & (asked > 0)).any() == (least > 1)
        counts[alone], sums[alone] = 0, 0
        after = cohort.store.read_rows(name, rows[name]).values
        assert np.allclose(after - before[name], sums / np.maximum(counts, 1)[:, None], atol=1e-6)
        for client, download in cohort.downloads.items():
            assert download.asked[name].rows.tolist() == cohort.own[client][name].tolist()
            assert np.array_equal(download.rows[name], before[name][cohort.own[client][name]])


def test_downloads_are_the_stores_rows() -> None:
    cohort = Cohort(everything=False)
    cohort.run()
    for name, download in cohort.downloads.items():
        assert set(download.asked["goods"].rows.tolist()) == cohort.real[name]
        for table, asked in download.asked.items():
            stored = cohort.store.read_rows(table, asked).values
            assert np.array_equal(download.rows[table], stored)
        assert "user" not in download.rows


def test_a_lonely_row_is_not_uploaded() -> None:
    cohort = Cohort(everything=False, least=2)
    outcome = cohort.run()
    owners = np.zeros(GOODS, int)
    for real in cohort.real.values():
        owners[list(real)] += 1
    held = dict(
        zip(outcome.union["goods"].rows.tolist(), outcome.contributors["goods"].tolist(), strict=True)
    )
    assert any(owners[row] == 1 for row in held)
    for row, contributors in held.items():
        assert contributors == (owners[row] if owners[row] >= 2 else 0)


def test_too_few_aborts_and_leaves_the_store_alone() -> None:
    cohort = Cohort()
    with pytest.raises(TooFewClients):
        cohort.run({"submodel": {"c0", "c1", "c2"}})
    assert cohort.store.round == 0
    assert not len(cohort.store.touched("goods"))


def test_with_real_privacy_state(tmp_path: Path) -> None:
    """cpp2, durable state, and the exposure is debited before anything leaves; a second round is declined."""
    cohort = Cohort()
    tables = Tables(
        shared=("goods",),
        derived=("category",),
        personal=("user",),
    )
    for name in cohort.names:
        state = ClientState.create(
            tmp_path / name,
            client=name,
            calendar=Calendar(start=date(2026, 1, 1), days=30),
            budget=Budget(epsilon_per_period=20, epsilon_total=100),
        )
        state.begin(
            date(2026, 11, 15),
            PRESETS["cpp2"],
            tables,
            {"goods": sorted(cohort.real[name])},
            acknowledged=0,
            randomness=cohort.randomness,
        )
        cohort.answers[name] = state
    outcome = cohort.run()
    assert set(outcome.survivors) == set(cohort.names)
    assert all(state.ledger.exposures == 1 for state in cohort.answers.values())
    for name, download in cohort.downloads.items():
        asked = set(download.asked["goods"].rows.tolist())
        assert asked <= set(outcome.union["goods"].rows.tolist())
        assert cohort.trained[name].rows["goods"].rows.rows.tolist() == sorted(asked & cohort.real[name])
    again = Cohort()
    again.answers = cohort.answers
    with pytest.raises(Exception, match="exposure"):
        again.run()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_rows": 3}, "rows, this client allows"),
        ({"max_clip": 0.5}, "clipped"),
    ],
)
def test_policy(change: dict[str, Any], says: str) -> None:
    cohort = Cohort()
    cohort.policy = msgspec.structs.replace(cohort.policy, **change)
    with pytest.raises((Refused, Aborted), match=says):
        cohort.run()
