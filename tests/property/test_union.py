"""Whatever the sets, the encoding and the dropouts: the union of the survivors' sets, or a typed failure."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.errors import TooFewClients
from sfsl.union import private_set_union

DOMAINS = st.sampled_from([1, 2, 7, 100, 5000, 2**31 - 1, 2**31, 2**31 + 1, 2**40, 2**63 - 1, 2**63])


@st.composite
def parties(draw: st.DrawFn, domains: st.SearchStrategy[int]) -> tuple[int, dict[str, set[int]]]:
    domain = draw(domains)
    indices = st.one_of(st.integers(0, domain - 1), st.just(domain - 1), st.just(0))
    # A small common pool makes sets overlap.
    pool = draw(st.lists(indices, min_size=1, max_size=20))
    element = st.one_of(st.sampled_from(pool), indices)
    sets = draw(st.lists(st.sets(element, max_size=30), min_size=2, max_size=9))
    return domain, {f"c{i}": one for i, one in enumerate(sets)}


def union_of(sets: dict[str, set[int]], names: Any) -> list[int]:
    return sorted(set().union(*(sets[name] for name in names)))


@settings(max_examples=60, deadline=None)
@given(parties(DOMAINS), st.sampled_from(["auto", "sketch"]), st.integers(0, 4), st.booleans())
def test_exact_from_any_domain(
    given_sets: tuple[int, dict[str, set[int]]], encoding: str, drops: int, active: bool
) -> None:
    domain, sets = given_sets
    names = sorted(sets)
    threshold = 2 * len(names) // 3 + 1
    dropped = names[:drops]
    if len(names) - len(dropped) < threshold:
        with pytest.raises(TooFewClients):
            private_set_union(sets, domain=domain, encoding=encoding, dropped=dropped, active=active)
        return
    result = private_set_union(sets, domain=domain, encoding=encoding, dropped=dropped, active=active)
    assert result.survivors == set(names) - set(dropped)
    assert result.indices.tolist() == union_of(sets, result.survivors)
    assert result.false_positives_expected == 0


@settings(max_examples=40, deadline=None)
@given(parties(st.sampled_from([1, 2, 7, 100, 5000])), st.integers(0, 2))
def test_identity_is_exact_and_bloom_a_superset(
    given_sets: tuple[int, dict[str, set[int]]], drops: int
) -> None:
    domain, sets = given_sets
    names = sorted(sets)
    dropped = names[: min(drops, len(names) - (2 * len(names) // 3 + 1))]
    expected = union_of(sets, set(names) - set(dropped))
    exact = private_set_union(sets, domain=domain, encoding="identity", dropped=dropped)
    assert exact.indices.tolist() == expected
    over = private_set_union(sets, domain=domain, encoding="bloom", dropped=dropped)
    assert set(expected) <= set(over.indices.tolist())
    assert np.all(np.diff(over.indices) > 0)
