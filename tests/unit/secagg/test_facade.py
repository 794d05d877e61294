"""The facades: what comes back, and what is refused with a word of advice."""

from typing import Any

import numpy as np
import pytest

from sfsl.codec import Message
from sfsl.crypto.ring import RINGS
from sfsl.errors import InputError, ParameterError, Refused, TooFewClients
from sfsl.secagg import aggregate, aggregate_rows, facade
from sfsl.secagg.graph import GraphPlan, default_min_contributors
from sfsl.secagg.messages import CODEC, Keys
from sfsl.testing import SeededRandomness
from world import graph_of


def test_the_ten_line_example() -> None:
    vectors = {"c1": [1, 2], "c2": [10, 20], "c3": [100, 200]}
    result = aggregate(vectors, threshold=2, dropped_before_upload={"c2"})
    assert result.total.tolist() == [101, 202]
    assert result.survivors == {"c1", "c3"}
    assert set(result.cost.client_bytes_up) == set(vectors)
    assert min(result.cost.client_bytes_up.values()) > 0
    assert min(result.cost.client_bytes_down.values()) > 0
    assert min(result.cost.client_seconds.values()) > 0
    assert result.cost.server_seconds > 0


def test_how_many_contributors_a_row_needs_follows_from_who_asked_for_it() -> None:
    requests = {f"c{i}": [0] if i < 2 else [] for i in range(5)}
    values = {name: np.ones((len(rows), 1), int) for name, rows in requests.items()}
    result = aggregate_rows(requests, values, rows=3)
    assert result.min_contributors == default_min_contributors([2, 0, 0]) == 3


def test_who_uploads_and_then_vanishes_is_still_in_the_sum() -> None:
    result = aggregate({f"c{i}": [1] for i in range(6)}, dropped_before_unmask={"c0"})
    assert result.total.tolist() == [6]
    assert "c0" in result.survivors


def test_rows_in_any_order() -> None:
    result = aggregate_rows(
        requests={"c1": [9, 0, 3], "c2": [3, 0], "c3": [9, 3]},
        values={"c1": [[9, 9], [1, 1], [3, 3]], "c2": [[30, 30], [10, 10]], "c3": [[90, 90], [300, 300]]},
        rows=10,
        min_contributors=2,
    )
    assert result.totals[[0, 3, 9]].tolist() == [[11, 11], [333, 333], [99, 99]]
    assert result.contributors.tolist() == [2, 0, 0, 3, 0, 0, 0, 0, 0, 2]


def test_min_contributors_is_computed_from_the_requests() -> None:
    # One row with two requesters: a chance of 0.18 that one of them uploads alone, so it is left out.
    requests = {"a": [0, 1], "b": [0, 1], "c": [0], "d": [0], "e": [0]}
    values = {name: np.ones((len(rows), 1), int) for name, rows in requests.items()}
    result = aggregate_rows(requests, values, rows=2)
    assert result.min_contributors == 3
    assert result.totals.tolist() == [[5], [0]]
    lenient = aggregate_rows(requests, values, rows=2, tolerated_dropout=0.0)
    assert lenient.min_contributors == 2
    assert lenient.totals.tolist() == [[5], [2]]


def test_a_cohort_above_the_largest_complete_one_gets_a_sparse_graph_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = GraphPlan(neighbours=8, threshold=5, opened=0.0, split=0.0, stuck=0.0)
    asked: list[int] = []

    def planned(clients: int, **wishes: float) -> GraphPlan:
        asked.append(clients)
        return plan

    monkeypatch.setattr(facade, "MAX_COMPLETE", 30)
    monkeypatch.setattr(facade, "default_graph", planned)
    result = aggregate({f"c{i}": [i] for i in range(31)}, dropped_before_upload={"c5"})
    assert (result.params.neighbours, result.params.threshold, asked) == (8, 5, [31])
    assert result.total.tolist() == [30 * 31 // 2 - 5]
    assert aggregate({f"c{i}": [i] for i in range(30)}).params.neighbours is None


@pytest.mark.parametrize(
    ("neighbours", "given", "degree", "threshold"),
    [
        (None, None, None, 5),  # two thirds of seven, and one more
        (6, None, None, 5),  # all the others are its neighbours: the graph is complete
        (7, None, None, 5),
        (6, 4, None, 4),
        (2, None, 2, 3),  # a ring: two thirds of three who hold shares, and one more
        (2, 2, 2, 2),
    ],
)
def test_which_graph_and_threshold_so_many_neighbours_make(
    neighbours: int | None, given: int | None, degree: int | None, threshold: int
) -> None:
    keys = [Keys(f"c{number}", bytes(32), (bytes(32),), (bytes(32),), None) for number in range(7)]
    assert facade.choose_graph(keys, neighbours, given, bytes(16)) == (degree, threshold)


def test_masking_is_measured_by_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade, "cpu_seconds", lambda work, times: work() or 3.0 * times * 2**18)
    assert facade.mask_seconds(RINGS["z32"]) == 3.0


@pytest.mark.slow
def test_a_cohort_above_512_gets_a_sparse_graph_by_itself() -> None:
    result = aggregate({f"c{i}": [i] for i in range(513)}, dropped_before_upload={"c5"})
    assert result.params.neighbours is not None
    assert result.total.tolist() == [512 * 513 // 2 - 5]


@pytest.mark.parametrize(("ring", "says"), [("z32", "take ring='z64', smaller"), ("z64", "; take smaller")])
def test_what_helps_where_sums_wrap_around(ring: str, says: str) -> None:
    """A wider ring, where there is one."""
    most = RINGS[ring].modulus - 1
    with pytest.raises(InputError, match=says):
        aggregate({"c1": [most], "c2": [1], "c3": [0]}, ring=ring, threshold=2)
    assert aggregate({"c1": [most], "c2": [0], "c3": [0]}, ring=ring, threshold=2).total.tolist() == [most]


def test_rows_asked_for_are_a_flat_list() -> None:
    values = {name: np.ones((1, 2), np.uint64) for name in ("a", "b", "c")}
    with pytest.raises(InputError, match="client 'b': row numbers are a flat array"):
        aggregate_rows({"a": [1], "b": [[1]], "c": [1]}, values, rows=4)


def test_a_client_that_declines_is_a_dropout_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    meter = facade.Meter(["ada"], CODEC, 1000)

    def decline() -> Message:
        raise Refused("too few are left")

    class Server:
        def receive(self, name: str, message: Message) -> None:
            raise AssertionError("nothing was said")

    with caplog.at_level("DEBUG"):
        meter.answer(Server(), "ada", decline)
    assert caplog.messages == ["client ada declined: too few are left"]
    assert meter.cost.client_bytes_up == {"ada": 0}


def test_a_dropout_all_of_whose_neighbours_are_gone_needs_no_opening() -> None:
    """Nobody who is left masked with it, so its key is not asked for and not missed."""
    n, degree, threshold = 24, 4, 2
    names = [f"c{i:02d}" for i in range(n)]
    for seed in range(200):
        graph = graph_of(names, degree, seed)
        gone = {0, *graph[0]}
        if all(len(set(near) - gone) >= threshold for i, near in enumerate(graph) if i != 0):
            break
    result = aggregate(
        {name: [1] for name in names},
        neighbours=degree,
        threshold=threshold,
        dropped_before_upload={names[i] for i in gone},
        randomness=SeededRandomness(seed),
    )
    assert result.total.tolist() == [n - len(gone)]


GOOD: dict[str, Any] = {"c1": [1, 2], "c2": [3, 4], "c3": [5, 6]}


@pytest.mark.parametrize(
    ("vectors", "options", "error", "says"),
    [
        ({}, {}, InputError, "at least two"),
        ({"c1": [1]}, {}, InputError, "at least two"),
        ({"c1": [1], "c2": [1, 2]}, {}, InputError, "one length"),
        ({"c1": [[1]], "c2": [[2]]}, {}, InputError, "flat"),
        ({"c1": [0.5], "c2": [1]}, {}, InputError, "quantize"),
        ({"c1": [float("nan")], "c2": [1]}, {}, InputError, "whole numbers"),
        ({"c1": ["x"], "c2": [1]}, {}, InputError, "whole numbers"),
        ({"c1": [-1], "c2": [1]}, {}, InputError, "do not fit"),
        ({"c1": [2**32], "c2": [1]}, {}, InputError, "do not fit"),
        ({"c1": [2**31 - 1], "c2": [1]}, {"ring": "f31"}, InputError, "do not fit"),
        ({"c1": [2**31, 0], "c2": [2**31, 1]}, {}, InputError, "1 of 2 sums do not fit.*ring='z64'"),
        ({"c1": [2**64 - 1], "c2": [1]}, {"ring": "z64"}, InputError, "do not fit.*wrap=True"),
        ({"c1": [2**30], "c2": [2**30]}, {"ring": "f31"}, InputError, "do not fit"),
        (GOOD, {"ring": "z16"}, ParameterError, "z32, z64, f31"),
        (GOOD, {"threshold": 1}, ParameterError, "threshold"),
        (GOOD, {"threshold": 4}, ParameterError, "threshold"),
        ({f"c{i}": [1] for i in range(6)}, {"threshold": 4, "active": True}, ParameterError, "two thirds"),
        ({f"c{i}": [1] for i in range(9)}, {"neighbours": 4, "active": True}, ParameterError, "complete"),
        ({f"c{i}": [1] for i in range(9)}, {"neighbours": 3}, ParameterError, "even"),
        (
            {f"c{i}": [1] for i in range(9)},
            {"neighbours": 2, "threshold": 9},
            ParameterError,
            "share holders",
        ),
        (GOOD, {"dropped_before_upload": {"c9"}}, InputError, "c9"),
        (GOOD, {"dropped_before_upload": {"c1", "c2"}}, TooFewClients, "no sum was opened"),
        ({"": [1], "c2": [2]}, {}, InputError, "1 to 64"),
        ({"x" * 65: [1], "c2": [2]}, {}, InputError, "1 to 64"),
        ({7: [1], "c2": [2]}, {}, InputError, "1 to 64"),
    ],
)
def test_bad_input(vectors: Any, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        aggregate(vectors, **options)


@pytest.mark.parametrize(
    ("requests", "values", "says"),
    [
        ({"a": [0], "b": [0]}, {"a": [[1]], "c": [[1]]}, "different clients"),
        ({"a": [0], "b": [9]}, {"a": [[1]], "b": [[1]]}, "0..3"),
        ({"a": [0], "b": [-1]}, {"a": [[1]], "b": [[1]]}, "0..3"),
        ({"a": [0, 0], "b": [1]}, {"a": [[1], [2]], "b": [[1]]}, "distinct"),
        ({"a": [0, 1], "b": [1]}, {"a": [[1]], "b": [[1]]}, "2 rows asked for"),
        ({"a": [0], "b": [1]}, {"a": [[1]], "b": [[1, 2]]}, "widths"),
        ({"a": [0.5], "b": [1]}, {"a": [[1]], "b": [[1]]}, "row numbers"),
        ({"a": [0, 3], "b": [3]}, {"a": [[1], [2**31]], "b": [[2**31]]}, "1 of 4 sums do not fit"),
        ({"a": [0], "b": [1]}, {"a": [[float("nan")]], "b": [[1]]}, "whole numbers"),
    ],
)
def test_bad_rows(requests: Any, values: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        aggregate_rows(requests, values, rows=4)


@pytest.mark.parametrize(("ring", "most"), [("z32", 2**32), ("z64", 2**64), ("f31", 2**31 - 1)])
def test_sums_up_to_the_ring_and_beyond_if_so_wished(ring: str, most: int) -> None:
    vectors = {"a": [most - 2, most - 2], "b": [1, 1]}
    assert aggregate(vectors, ring=ring).total.tolist() == [most - 1, most - 1]
    vectors["b"] = [1, 2]
    assert aggregate(vectors, ring=ring, wrap=True).total.tolist() == [most - 1, 0]
    rows = aggregate_rows(
        {"a": [1], "b": [1]}, {"a": [[most - 2]], "b": [[2]]}, 2, ring=ring, wrap=True, min_contributors=1
    )
    assert rows.totals.tolist() == [[0], [0]]


def test_clients_without_rows_may_take_part() -> None:
    result = aggregate_rows(
        {"a": [], "b": [1], "c": [1]},
        {"a": np.zeros((0, 2), int), "b": [[1, 2]], "c": [[3, 4]]},
        rows=3,
        min_contributors=2,
    )
    assert result.totals.tolist() == [[0, 0], [4, 6], [0, 0]]
