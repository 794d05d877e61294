"""Sessions and sums that cannot be."""

import pytest

from sfsl.errors import ParameterError
from sfsl.secagg import Layout, SessionParams, SumParams, TableShape
from sfsl.secagg.messages import CODEC, Roster, size_limit


def sum_of(**fields: object) -> SumParams:
    usual: dict[str, object] = {
        "label": "sum",
        "ring": "z32",
        "min_contributors": 1,
        "layout": Layout(dense=1),
    }
    return SumParams(**{**usual, **fields})  # type: ignore[arg-type]


def session_of(**fields: object) -> SessionParams:
    usual: dict[str, object] = {
        "round_id": bytes(16),
        "clients": 6,
        "threshold": 4,
        "neighbours": None,
        "active": False,
        "sums": (sum_of(),),
    }
    return SessionParams(**{**usual, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["sum\n", "", "Sum", "1", "a" * 33, "a b"])
def test_labels(label: str) -> None:
    with pytest.raises(ParameterError):
        sum_of(label=label)


@pytest.mark.parametrize(
    "fields",
    [
        {"sums": (sum_of(layout=None),)},  # the first sum's layout must be known
        {"neighbours": 3},
        {"neighbours": 6},
        {"round_id": "AAAAAAAAAAAAAAAAAAAAAA=="},  # base64 is not bytes
        {"sums": (sum_of(), sum_of())},  # one label twice
        {"clients": 513, "threshold": 400},
    ],
)
def test_sessions_that_cannot_be(fields: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        session_of(**fields)


def test_lists_become_tuples() -> None:
    assert session_of(sums=[sum_of()]) == session_of(sums=(sum_of(),))


def test_the_size_limit_covers_a_roster_of_many_tables() -> None:
    many = Layout(dense=0, tables=(TableShape(rows=2**40, width=2**24),) * 64)
    sums = tuple(sum_of(label=f"s{i}", layout=many) for i in range(8))
    params = session_of(clients=2, threshold=2, sums=sums)
    roster = CODEC.encode(Roster(params, ()))
    assert len(roster) <= size_limit(params, Layout(dense=0), 4)
