"""Whatever the cohort, the ring, the graph and the dropouts: the plain sum of the survivors, or nothing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.crypto.ring import RINGS
from sfsl.errors import TooFewClients
from sfsl.secagg import aggregate, aggregate_rows
from sfsl.secagg.client import Client
from sfsl.testing import SeededRandomness
from world import graph_of

SETTINGS = settings(max_examples=80, deadline=None)
# What a session costs grows with the square of its clients. What can go wrong between a few of them is tried
# in every run of the tests; that it is so for forty too, in the slow ones.
LARGEST = pytest.mark.parametrize("largest", [14, pytest.param(40, marks=pytest.mark.slow)])


@dataclass
class Cohort:
    names: list[str]
    threshold: int
    steps: dict[str, set[str]]  # dropped before shares, upload, unmask

    @property
    def dropped(self) -> dict[str, set[str]]:
        return {f"dropped_before_{step}": names for step, names in self.steps.items()}


@st.composite
def cohorts(draw: st.DrawFn, largest: int) -> Cohort:
    n = draw(st.integers(2, largest))
    names = [f"c{i}" for i in range(n)]
    threshold = draw(st.integers(2, n))
    # Mostly few dropouts, so that most examples get to the end.
    fate = st.sampled_from(["stays"] * 8 + ["shares", "upload", "unmask"])
    fates = draw(st.lists(fate, min_size=n, max_size=n))
    steps: dict[str, set[str]] = {"shares": set(), "upload": set(), "unmask": set()}
    for name, what in zip(names, fates, strict=True):
        if what != "stays":
            steps[what].add(name)
    return Cohort(names, threshold, steps)


def vectors(cohort: Cohort, ring: str, length: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    top = RINGS[ring].modulus - 1
    # Edge values are as likely as anything else.
    return {
        name: np.where(
            rng.random(length) < 0.3,
            rng.choice(np.array([0, top], np.uint64), length),
            rng.integers(0, top, length, np.uint64),
        ).astype(np.uint64)
        for name in cohort.names
    }


def plain_sum(values: list[Any], ring: str, shape: Any) -> Any:
    total = np.zeros(shape, object)
    for one in values:
        total = total + one.astype(object)
    return total % RINGS[ring].modulus


def refuse_to_open(self: Client, request: object) -> None:
    raise AssertionError("a share was opened")


@LARGEST
@SETTINGS
@given(
    st.data(), st.sampled_from(sorted(RINGS)), st.integers(0, 200), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_complete_graph(
    largest: int, drawn: st.DataObject, ring: str, length: int, active: bool, seed: int
) -> None:
    cohort = drawn.draw(cohorts(largest))
    data = vectors(cohort, ring, length, seed)
    n = len(cohort.names)
    if active:
        cohort.threshold = max(cohort.threshold, 2 * n // 3 + 1)
    shared = set(cohort.names) - cohort.steps["shares"]
    uploaded = shared - cohort.steps["upload"]
    last = uploaded - cohort.steps["unmask"]
    options: dict[str, Any] = {
        "threshold": cohort.threshold,
        "ring": ring,
        "wrap": True,
        "active": active,
        **cohort.dropped,
    }
    if len(last) >= cohort.threshold:
        result = aggregate(data, **options)
        assert result.survivors == uploaded
        assert result.total.tolist() == plain_sum([data[k] for k in uploaded], ring, length).tolist()
        return
    with pytest.MonkeyPatch.context() as patch:
        if len(uploaded) < cohort.threshold:
            patch.setattr(Client, "handle_unmask", refuse_to_open)
        with pytest.raises(TooFewClients):
            aggregate(data, **options)


@LARGEST
@SETTINGS
@given(st.data(), st.sampled_from(sorted(RINGS)), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_sparse_graph(largest: int, data: st.DataObject, ring: str, length: int, seed: int) -> None:
    cohort = data.draw(cohorts(largest))
    n = len(cohort.names)
    if n < 4:
        return
    neighbours = 2 * data.draw(st.integers(1, (n - 2) // 2), label="half degree")
    graph = graph_of(cohort.names, neighbours, seed)
    closed = [{i, *near} for i, near in enumerate(graph)]
    threshold = data.draw(st.integers(2, max(2, min(map(len, closed)))), label="threshold")
    values = vectors(cohort, ring, length, seed)

    place = {name: i for i, name in enumerate(sorted(cohort.names))}
    gone = {step: {place[name] for name in names} for step, names in cohort.steps.items()}
    shared = set(range(n)) - gone["shares"]
    uploaded = {i for i in shared - gone["upload"] if len(closed[i] & shared) >= threshold}
    answered = {i for i in uploaded - gone["unmask"] if len(closed[i] & uploaded) >= threshold}
    needed = [i for i in shared if i in uploaded or closed[i] & uploaded]
    opens = min(len(shared), len(uploaded), len(answered)) >= threshold and all(
        len(closed[i] & answered) >= threshold for i in needed
    )

    def run() -> Any:
        return aggregate(
            values,
            threshold=threshold,
            neighbours=neighbours,
            ring=ring,
            wrap=True,
            randomness=SeededRandomness(seed),
            **cohort.dropped,
        )

    if not opens:
        hopeless = min(len(shared), len(uploaded)) < threshold or any(
            len(closed[i] & uploaded) < threshold for i in needed
        )
        with pytest.MonkeyPatch.context() as patch:
            if hopeless:  # known before anyone is asked: then no share is opened
                patch.setattr(Client, "handle_unmask", refuse_to_open)
            with pytest.raises(TooFewClients):
                run()
        return
    result = run()
    names = {name for name in cohort.names if place[name] in uploaded}
    assert result.survivors == names
    assert result.total.tolist() == plain_sum([values[k] for k in names], ring, length).tolist()


@LARGEST
@SETTINGS
@given(
    st.data(),
    st.sampled_from(sorted(RINGS)),
    st.integers(1, 60),
    st.integers(1, 5),
    st.floats(0, 1),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_misaligned_rows(
    largest: int,
    drawn: st.DataObject,
    ring: str,
    rows: int,
    width: int,
    share: float,
    least: int,
    active: bool,
    seed: int,
) -> None:
    cohort = drawn.draw(cohorts(largest))
    rng = np.random.default_rng(seed)
    if active:
        cohort.threshold = max(cohort.threshold, 2 * len(cohort.names) // 3 + 1)
    requests = {name: np.flatnonzero(rng.random(rows) < share) for name in cohort.names}
    values = {
        name: rng.integers(0, RINGS[ring].modulus, (len(asked), width), np.uint64)
        for name, asked in requests.items()
    }
    shared = set(cohort.names) - cohort.steps["shares"]
    uploaded = shared - cohort.steps["upload"]
    last = uploaded - cohort.steps["unmask"]
    options: dict[str, Any] = {
        "rows": rows,
        "min_contributors": least,
        "active": active,
        "threshold": cohort.threshold,
        "ring": ring,
        "wrap": True,
        **cohort.dropped,
    }
    if len(last) < cohort.threshold:
        with pytest.MonkeyPatch.context() as patch:
            if len(uploaded) < cohort.threshold:
                patch.setattr(Client, "handle_unmask", refuse_to_open)
            with pytest.raises(TooFewClients):
                aggregate_rows(requests, values, **options)
        return
    result = aggregate_rows(requests, values, **options)
    assert result.survivors == uploaded
    asked_by = np.zeros(rows, int)
    for name in shared:
        asked_by[requests[name]] += 1
    expected = np.zeros((rows, width), object)
    contributors = np.zeros(rows, int)
    for name in uploaded:
        expected[requests[name]] += values[name].astype(object)
        contributors[requests[name]] += 1
    expected[asked_by < least] = 0
    contributors[asked_by < least] = 0
    assert result.totals.tolist() == (expected % RINGS[ring].modulus).tolist()
    assert result.contributors.tolist() == contributors.tolist()
