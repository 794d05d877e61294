"""The degree and threshold of a sparse graph, by simulation and by counting."""

from itertools import permutations

import numpy as np
import pytest

from sfsl.errors import ParameterError
from sfsl.secagg import plan_graph
from sfsl.secagg.graph import _one_more_cycle, _split_by_one_cycle, random_cycles
from sfsl.testing import SeededRandomness


def graphs(n: int, degree: int, runs: int, label: str) -> list[list[set[int]]]:
    randomness = SeededRandomness(label)
    return [[set(near) for near in random_cycles(n, degree, randomness.bytes(32))] for _ in range(runs)]


def test_cycles_visit_everyone_and_are_symmetric() -> None:
    for near in graphs(30, 2, 20, "one cycle"):
        assert all(len(one) == 2 for one in near)
        reached, edge = {0}, {0}
        while edge:
            edge = set().union(*(near[i] for i in edge)) - reached
            reached |= edge
        assert reached == set(range(30))
    for near in graphs(25, 8, 20, "four cycles"):
        assert all(i in near[k] for i in range(25) for k in near[i])
        assert all(2 <= len(one) <= 8 for one in near)


def test_distinct_marked_neighbours_follow_the_computed_distribution() -> None:
    n, degree, marked = 20, 8, 6
    expected = np.eye(1, n)[0]
    for _ in range(degree // 2):
        expected = _one_more_cycle(expected, n - 1, marked)
    counts = np.zeros(n)
    runs = 4000
    for near in graphs(n, degree, runs, "marked"):
        counts[len(near[0] & set(range(1, 1 + marked)))] += 1
    assert expected.sum() == pytest.approx(1)
    spread = np.sqrt(expected * (1 - expected) / runs)
    assert np.all(np.abs(counts / runs - expected) <= 4.5 * spread + 1e-9)


def test_the_probability_of_a_split_by_one_cycle_is_exact() -> None:
    """Counted over all cycles through 7 clients, of which 2 are gone."""
    honest, gone = 5, 2
    _, logs = _split_by_one_cycle(honest, gone)
    for size in (1, 2):
        side = set(range(size))
        rest = set(range(size, honest))
        clean = total = 0
        for tail in permutations(range(1, honest + gone)):
            cycle = (0, *tail)
            edges = zip(cycle, cycle[1:] + cycle[:1], strict=True)
            total += 1
            clean += not any({a, b} & side and {a, b} & rest for a, b in edges)
        assert np.exp(logs[size - 1]) == pytest.approx(clean / total)


def connected(near: list[set[int]], alive: set[int]) -> bool:
    first = min(alive)
    reached, edge = {first}, {first}
    while edge:
        edge = (set().union(*(near[i] for i in edge)) & alive) - reached
        reached |= edge
    return reached == alive


def test_a_planned_graph_fails_no_more_often_than_planned() -> None:
    """At a failure probability that can be seen in a simulation."""
    n, dropout, corruption, failure = 60, 0.2, 0.15, 0.05
    plan = plan_graph(n, dropout=dropout, corruption=corruption, failure=failure)
    assert max(plan.opened, plan.split, plan.stuck) <= failure
    rng = np.random.default_rng(5)
    opened = split = stuck = 0
    runs = 600
    for near in graphs(n, plan.neighbours, runs, "planned"):
        order = rng.permutation(n).tolist()
        dropped, corrupt = set(order[:12]), set(order[12:21])
        opened += any(len(one & corrupt) >= plan.threshold for one in near)
        split += not connected(near, set(range(n)) - dropped - corrupt)
        stuck += any(len(one - dropped) < plan.threshold for one in near)
    allowed = runs * failure + 4 * np.sqrt(runs * failure)
    assert max(opened, split, stuck) <= allowed
    # One degree less would not do: the plan is not idle.
    assert plan.neighbours > 10


def test_bounds_hold_where_failures_are_frequent() -> None:
    """The union bounds are above the simulated rates, and not by orders of magnitude."""
    n, degree, gone = 30, 4, 12
    ways, logs = _split_by_one_cycle(n - gone, gone)
    bound = float(np.exp(np.logaddexp.reduce(ways + degree / 2 * logs)))
    rng = np.random.default_rng(6)
    runs = 1500
    seen = sum(
        not connected(near, set(rng.permutation(n)[gone:].tolist()))
        for near in graphs(n, degree, runs, "split")
    )
    assert seen / runs <= bound + 4 * np.sqrt(bound / runs)
    assert seen / runs > bound / 10


def test_more_to_tolerate_needs_more_neighbours() -> None:
    plain = plan_graph(1000, dropout=0.1, corruption=0.1, failure=2**-40)
    assert plan_graph(1000, dropout=0.2, corruption=0.1, failure=2**-40).neighbours > plain.neighbours
    assert plan_graph(1000, dropout=0.1, corruption=0.2, failure=2**-40).neighbours > plain.neighbours
    assert plan_graph(1000, dropout=0.1, corruption=0.1, failure=2**-20).neighbours < plain.neighbours
    assert 10 < plain.neighbours < 100


@pytest.mark.parametrize(
    ("clients", "options", "says"),
    [
        (2, {"dropout": 0, "corruption": 0, "failure": 0.1}, "at least 3"),
        (100, {"dropout": 0.6, "corruption": 0.5, "failure": 0.1}, "less than 1"),
        (100, {"dropout": 0.1, "corruption": 0.1, "failure": 0}, "probability"),
        (100, {"dropout": 0.3, "corruption": 0.33, "failure": 2**-40}, "complete graph"),
    ],
)
def test_impossible_plans(clients: int, options: dict[str, float], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        plan_graph(clients, **options)
