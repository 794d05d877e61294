"""A server that grows its catalogue to find out who has an item: within a period nothing that a client does
depends on rows that were not there when the period began, and what was said of old rows stands."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from cohort import Cohort, Stepper
from sfsl.client import following
from sfsl.client.events import About
from sfsl.client.following import KnownModel, ServedModel, build_device, fetch_model, source_of
from sfsl.client.home import Home
from sfsl.client.round import DurableMemory
from sfsl.data import NO_ROW, Samples
from sfsl.data.catalogue import Catalogue
from sfsl.errors import InvalidMessage, PeriodFrozen, StateError, UnionFailed, WrongModel
from sfsl.models import din, logistic_regression
from sfsl.models.package import describe, package_digest
from sfsl.privacy import PRESETS, Budget, Calendar, Tables
from sfsl.settings.terms import Terms
from sfsl.testing import SeededRandomness
from sfsl.training.task import Task

CALENDAR = Calendar(start=date(2026, 1, 1), days=7)
DAY = date(2026, 2, 3)
NEXT = DAY + timedelta(days=7)
BUDGET = Budget(1e6, 1e6, 1000)
EXACT, WEEKS = Terms(exact_sums=True), 6
SECRET = "secret-item"  # noqa: S105 -- what the server wants to find out about


def catalogue(*names: str, follows: Any = None) -> Catalogue:
    category_of = np.arange(len(names)) % 2 if follows is None else np.array(follows)
    return Catalogue.of_items(np.array(names), np.array(["a", "b"]), category_of)


FIRST = catalogue("one", "two", "three", "four")
GROWN = FIRST.grown(catalogue("five", SECRET))


def served(about: Catalogue, task: Callable[[Catalogue], Task] = logistic_regression) -> ServedModel:
    made = task(about)
    return ServedModel(package_digest(describe(made)), made, about)


class Owner:
    """A client of its own folder, as ``sfsl join`` keeps it; it draws the same in every world."""

    def __init__(self, folder: Path, *items: str) -> None:
        folder.mkdir(parents=True)
        self.home = Home(folder / "home", SeededRandomness("home"))
        self.data: Path | Samples = folder / "mine.csv"
        self.own(*items)

    def own(self, *items: str) -> None:
        lines = [f"{item},1,{number}" for number, item in enumerate(items)]
        assert isinstance(self.data, Path)
        self.data.write_text("\n".join(["item,label,time", *lines, "one,0,99", "two,0,99.5"]))

    def takes_part(
        self, model: ServedModel, union: Any, day: date = DAY, *, freeze: bool = True
    ) -> tuple[list[int], list[bool]]:
        """What leaves it in a round: the set it submits, and its answer about ``union``."""
        known = KnownModel(self.home.folder / "model")
        known.require_extends(model)
        with self.home.state("me", CALENDAR, BUDGET) as state:
            going_on = state.going_on(day)
            source = source_of(self.data)
            copy, _ = self.home.samples(source, state, day)
            rows = known.settle(model, going_on=going_on)
            if not freeze:
                rows = model.shared_rows
            device, _ = build_device(model, rows, copy, source, 0.2)
            memory = DurableMemory(
                state,
                PRESETS["cpp3"],
                model.client_model.tables,
                {"item": device.needed["item"]},
                today=lambda: day,
                randomness=SeededRandomness("period"),
            )
            memory.prepare(None)
            submitted = memory.expose(b"round")["item"]
            answer = memory.answer(b"round", {"item": union}, SeededRandomness("answer"))["item"]
        return submitted.tolist(), answer.tolist()


def test_growth_does_not_tell_owners_of_a_new_item_from_others(tmp_path: Path) -> None:
    worlds = [Owner(tmp_path / "has", "one", "two", SECRET), Owner(tmp_path / "not", "one", "two")]
    union = np.arange(4)
    before = [world.takes_part(served(FIRST), union) for world in worlds]
    assert before[0] == before[1]
    # All rows of the grown table are asked about, as if others had brought the new ones into the union.
    after = [world.takes_part(served(GROWN), np.arange(6)) for world in worlds]
    assert after[0] == after[1]
    assert after[0][0] == before[0][0], "the frozen set stays exactly as it was"
    assert GROWN.table("item").find(SECRET) not in after[0][0]


def test_samples_handed_over_in_python_are_frozen_alike(tmp_path: Path) -> None:
    """Rows by their numbers, some of them beyond the table until it grows, as items and in histories."""
    small, large = (served(Catalogue.sized(1, item=rows)) for rows in (4, 6))
    worlds = [Owner(tmp_path / "has"), Owner(tmp_path / "not")]
    for world, fresh in zip(worlds, (5, -1), strict=True):
        history = np.array([[1, fresh], [0, 2], [fresh, 3], [1, 2], [0, -1]])
        columns = {
            "user": np.zeros(5, np.int64),
            "item": np.array([0, 1, fresh if fresh > 0 else 9, 3, 1]),
            "history": history,
            "label": np.array([1, 0, 1, 0, 1], np.float32),
        }
        world.data = Samples(columns, {"user": "user", "item": "item", "history": "item"})
    before = [world.takes_part(small, np.arange(4)) for world in worlds]
    after = [world.takes_part(large, np.arange(6)) for world in worlds]
    assert before[0] == before[1]
    assert after[0] == after[1]
    assert after[0][0] == before[0][0] == [0, 1, 2, 3]
    assert 5 in worlds[0].takes_part(large, np.arange(6), NEXT)[0]


def test_what_was_frozen_survives_a_restart_and_a_second_growth(tmp_path: Path) -> None:
    again = GROWN.grown(catalogue("six"))
    worlds = [Owner(tmp_path / "has", "one", SECRET, "six"), Owner(tmp_path / "not", "one")]
    for world in worlds:
        world.takes_part(served(FIRST), np.arange(4))
        world.takes_part(served(GROWN), np.arange(6))
    found = [world.takes_part(served(again), np.arange(7)) for world in worlds]
    assert found[0] == found[1]
    assert found[0][0] == [0, 1]


def test_new_items_count_from_the_next_period_on(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "has", "one", "two", SECRET, "five", "one", "two")
    owner.takes_part(served(FIRST), np.arange(4))
    owner.takes_part(served(GROWN), np.arange(6))
    submitted, _ = owner.takes_part(served(GROWN), np.arange(6), NEXT)
    assert {GROWN.table("item").find(SECRET), GROWN.table("item").find("five")} <= set(submitted)


def test_the_attack_works_on_a_client_that_takes_new_rows_at_once(tmp_path: Path) -> None:
    """Without the freeze, who has the item sits out and who has it not takes part: that is an answer."""
    owner, other = Owner(tmp_path / "has", "one", "two", SECRET), Owner(tmp_path / "not", "one", "two")
    for world in (owner, other):
        world.takes_part(served(FIRST), np.arange(4))
    other.takes_part(served(GROWN), np.arange(6), freeze=False)
    with pytest.raises(PeriodFrozen):
        owner.takes_part(served(GROWN), np.arange(6), freeze=False)


@pytest.mark.parametrize(
    ("lie", "why"),
    {
        "two ids swapped": (served(catalogue("one", "three", "two", "four", "five")), "other ids or maps"),
        "an id replaced": (served(catalogue("one", "two", "three", SECRET)), "other ids or maps"),
        "another category": (
            served(catalogue("one", "two", "three", "four", follows=[0, 1, 0, 0])),
            "ids or maps",
        ),
        "a row less": (served(catalogue("one", "two", "three")), "had 4 rows and has 3"),
        "rows by number": (served(Catalogue.of_items(np.arange(9), np.arange(2), np.arange(9) % 2)), "ids"),
        "no categories": (
            served(Catalogue.of_items(np.array(["one", "two", "three", "four"]))),
            "other tables",
        ),
        "another model": (served(FIRST, lambda about: din(about, seed=1, width=2)), "dense part"),
    }.values(),
)
def test_what_was_said_of_old_rows_cannot_be_unsaid(lie: ServedModel, why: str, tmp_path: Path) -> None:
    """Whoever has one of two swapped items would answer otherwise than before; so nobody answers."""
    for name, items in {"has": ("one", "two", SECRET), "not": ("one", "four")}.items():
        owner = Owner(tmp_path / name, *items)
        owner.takes_part(served(FIRST), np.arange(4))
        for day in (DAY, NEXT):
            with pytest.raises(WrongModel, match=why):
                owner.takes_part(lie, np.arange(4), day)
        assert owner.takes_part(served(FIRST), np.arange(4))[0], "nothing was changed by it"


def test_a_damaged_memory_of_the_model_is_not_taken_for_none(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "has", "one", SECRET)
    owner.takes_part(served(FIRST), np.arange(4))
    (owner.home.folder / "model").write_bytes(b"{}")
    with pytest.raises(StateError, match="does not hold what this client knows"):
        owner.takes_part(served(GROWN), np.arange(6))


def test_a_clock_set_back_thaws_nothing(tmp_path: Path) -> None:
    """A device that boots with a wrong clock goes on as it was, and so it does when its clock is right."""
    worlds = [Owner(tmp_path / "has", "one", "two", SECRET), Owner(tmp_path / "not", "one", "two")]
    before = [world.takes_part(served(FIRST), np.arange(4)) for world in worlds]
    for world in worlds:
        world.takes_part(served(GROWN), np.arange(6), DAY - timedelta(days=7))
    after = [world.takes_part(served(GROWN), np.arange(6)) for world in worlds]
    assert after[0] == after[1]
    assert after[0][0] == before[0][0]


def test_a_first_sample_of_newer_rows_only_costs_nobody_its_part(tmp_path: Path) -> None:
    """Else a client would show up as soon as the server adds the row that it has."""
    model = served(Catalogue.sized(1, item=4))
    worlds = [Owner(tmp_path / "has"), Owner(tmp_path / "not")]
    for world, first in zip(worlds, (5, 0), strict=True):
        columns = {
            "user": np.zeros(4, np.int64),
            "item": np.array([first, 1, 2, 3]),
            "history": np.array([[first, -1], [1, -1], [2, -1], [3, -1]]),
            "label": np.ones(4, np.float32),
        }
        tables = {"user": "user", "item": "item", "history": "item"}
        world.data = Samples(columns, tables)
        world.takes_part(model, np.arange(4))


def test_clients_that_were_told_different_names_add_up_to_noise() -> None:
    """A server that gives each client names of its own would read every set out of the union."""
    cohort = Cohort(5)
    honest, crooked = FIRST.contents, catalogue("two", "one", "three", "four").contents
    assert honest != crooked
    for told in (dict.fromkeys(cohort.names, honest), {**dict.fromkeys(cohort.names, honest), "c1": crooked}):
        cohort = Cohort(5)
        round_ = Stepper(cohort)
        for name, client in round_.clients.items():
            client._own = replace(client._own, names=told[name])
        round_.server._names = honest
        round_.server._session._context = cohort.params.context(honest)
        if len(set(told.values())) == 1:
            assert len(round_.finish().survivors) == 5
        else:
            with pytest.raises(UnionFailed):
                round_.finish()


def test_a_server_that_never_says_the_same_twice_is_left() -> None:
    class Liar:
        downloads = 0

        async def about(self) -> Any:
            self.downloads += 1
            return About(1, "0" * 32, f"{self.downloads:064x}", 0, 0)

        async def model(self) -> bytes:
            return describe(logistic_regression(FIRST))

    async def main() -> None:
        with pytest.raises(InvalidMessage, match="3 times in a row"):
            await fetch_model(liar, await liar.about())  # type: ignore[arg-type]

    liar = Liar()
    asyncio.run(main())
    assert liar.downloads == 4


def unions_of_rows(folder: Path) -> list[set[int]]:
    """What a client that uses new samples only submits, week after week, of an app that hands over the same
    ones each time, at a server whose catalogue grows by one item a week: the last in a sample's history."""
    home = Home(folder, SeededRandomness("home"))
    columns = {
        "user": np.zeros(WEEKS, np.int64),
        "item": np.arange(WEEKS),
        "history": np.stack([np.arange(WEEKS), 20 + np.arange(WEEKS)], axis=1),
        "label": np.ones(WEEKS, np.float32),
    }
    source = source_of(Samples(columns, {"user": "user", "item": "item", "history": "item"}))
    seen = []
    for week in range(WEEKS):
        model = served(Catalogue.sized(1, item=20 + week))
        day = date(2026, 1, 1) + timedelta(days=7 * week)
        with home.state("me", EXACT.calendar, EXACT.budget) as state:
            copy, _ = home.samples(source, state, day)
            fresh = partial(home.exposed.fresh, state=state, today=day)
            device, _ = build_device(model, model.shared_rows, copy, source, 0.2, None, fresh)
            state.begin(
                day,
                EXACT.index_privacy,
                Tables(shared=("item",)),
                {"item": device.needed["item"]},
                acknowledged=None,
                randomness=SeededRandomness(str(week)),
            )
            seen.append(set(state.expose(bytes([week]))["item"].tolist()))
    return seen


def test_a_catalogue_that_grows_makes_no_sample_new(tmp_path: Path) -> None:
    first, *later = unions_of_rows(tmp_path / "me")
    assert first == {0, 1, 2, 3, 4}  # the sixth is held out
    assert not any(later)


def test_where_samples_are_told_by_the_rows_that_a_model_has_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [20 + week for week in range(WEEKS)]

    def as_it_was(samples: Samples) -> list[bytes]:
        history, known = samples.columns["history"], told.pop(0)
        masked = {**samples.columns, "history": np.where(history < known, history, NO_ROW)}
        return honest(replace(samples, columns=masked))

    honest = following._named
    monkeypatch.setattr(following, "_named", as_it_was)
    first, *later = unions_of_rows(tmp_path / "me")
    assert any(first & one for one in later)
