"""A client as it comes, and a server that makes the most of what clients used to allow."""

from datetime import date, timedelta
from functools import partial
from pathlib import Path

import pytest

from sfsl.client.home import Home
from sfsl.data.catalogue import Catalogue, CatalogueTable
from sfsl.data.own import load_own
from sfsl.errors import Refused
from sfsl.privacy import Tables
from sfsl.secagg.messages import Layout, Policy, SessionParams, SumParams, TableShape, require_policy
from sfsl.settings.terms import Terms
from sfsl.testing import SeededRandomness

EXACT = Terms(exact_sums=True)
WEEKS = 6
ROWS = Layout(dense=1, tables=(TableShape(rows=10, width=2),))


def unions(folder: Path, terms: Terms) -> list[set[int]]:
    """What one client submits, week after week, with a file to which a few lines are added each time."""
    home, source = Home(folder, SeededRandomness("home")), folder / "mine.csv"
    catalogue = Catalogue(tables=(CatalogueTable("item", 100, None, None, None),), users=1)
    lines, seen = ["item,label,time"], []
    for week in range(WEEKS):
        lines += [f"{5 * week + one},1,{100 * week + one}" for one in range(5)]
        source.write_text("\n".join(lines) + "\n")
        day = date(2026, 1, 1) + timedelta(days=7 * week)
        with home.state("me", terms.calendar, terms.budget) as state:
            copy, _ = home.samples(source, state, day)
            fresh = partial(home.exposed.fresh, state=state, today=day, repeat=terms.repeat_samples)
            own, _ = load_own(copy, catalogue, fresh=fresh)
            real = {"item": sorted({*own.item.tolist(), *own.clicks.tolist()})}
            chance = SeededRandomness(str(week))
            state.begin(
                day,
                terms.index_privacy,
                Tables(shared=("item",)),
                real,
                acknowledged=None,
                randomness=chance,
            )
            seen.append(set(state.expose(bytes([week]))["item"].tolist()))
    return seen


def found_again(seen: list[set[int]]) -> int:
    """Rows that more than one union shows: group testing over weeks names whose they are."""
    return sum(sum(row in one for one in seen) > 1 for row in range(100))


def test_unions_of_many_weeks_have_no_row_in_common(tmp_path: Path) -> None:
    seen = unions(tmp_path / "me", EXACT)
    assert [len(one) for one in seen] == [5] * WEEKS
    assert found_again(seen) == 0


def test_where_samples_are_repeated_they_have_nearly_all(tmp_path: Path) -> None:
    seen = unions(tmp_path / "me", Terms(exact_sums=True, repeat_samples=True))
    assert found_again(seen) == 5 * (WEEKS - 1)


def session(clients: int, threshold: int, contributors: int) -> SessionParams:
    one = SumParams(label="update", ring="z32", min_contributors=contributors, layout=ROWS)
    return SessionParams(
        round_id=bytes(16), clients=clients, threshold=threshold, neighbours=None, active=False, sums=(one,)
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (session(3, 3, 2), "a cohort of 3, this client wants at least 50"),
        (session(49, 33, 5), "a cohort of 49"),
        (session(100, 51, 5), "a threshold of 51, this client wants 67"),
        (session(100, 67, 4), "rows with 4 contributors would be opened, this client wants at least 5"),
    ],
)
def test_few_clients_few_shares_and_rows_of_few_are_declined(asked: SessionParams, says: str) -> None:
    with pytest.raises(Refused, match=says):
        require_policy(asked, EXACT.policy.session, 1, active=False)
    require_policy(session(100, 67, 5), EXACT.policy.session, 1, active=False)
    require_policy(session(50, 34, 5), EXACT.policy.session, 1, active=False)


def test_as_clients_came_before_they_were_not() -> None:
    before = Policy(min_clients=3, min_threshold=3, min_contributors=2, max_words=10**6)
    require_policy(session(3, 3, 2), before, 1, active=False)
    require_policy(session(100, 51, 2), before, 1, active=False)


def test_nothing_is_without_end_unless_its_owner_says_so() -> None:
    budget = EXACT.budget
    assert max(budget.epsilon_total, budget.epsilon_hot, budget.exposures_per_period) < 100
