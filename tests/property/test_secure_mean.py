"""The mean of float vectors: its error bound always holds, against exact arithmetic."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfsl
from sfsl.errors import InputError, NotFinite, ParameterError
from sfsl.testing import SeededRandomness

NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=True)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    clients, length = draw(st.integers(2, 5)), draw(st.integers(0, 4))
    clip = draw(st.sampled_from([1.0, 1e-6, 0.1, 3.7, 1e6]))
    values = st.one_of(NUMBERS, st.floats(-2, 2).map(lambda share: share * clip))
    vectors = {f"c{n}": draw(st.lists(values, min_size=length, max_size=length)) for n in range(clients)}
    weighted = draw(st.booleans())
    return {
        "vectors": vectors,
        "clip": clip,
        "weights": {name: draw(st.integers(1, 1000)) for name in vectors} if weighted else None,
        "ring": draw(st.sampled_from(["z32", "z64"])),
        "dropped_before_upload": draw(st.sampled_from([(), ("c0",)])) if clients > 3 else (),
        "randomness": SeededRandomness(draw(st.binary(max_size=4)).hex()),
    }


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_bound_always_holds(case: dict[str, Any]) -> None:
    result = sfsl.secure_mean(**case)
    vectors, clip = case["vectors"], Fraction(case["clip"])
    assert result.survivors == set(vectors) - set(case["dropped_before_upload"])
    weights = case["weights"] or dict.fromkeys(vectors, 1)
    total = sum(weights[name] for name in result.survivors)
    cut = 0
    for place, mean in enumerate(result.mean.tolist()):
        exact = Fraction(0)
        for name in result.survivors:
            value = Fraction(vectors[name][place])
            cut += abs(value) > clip
            exact += weights[name] * max(-clip, min(clip, value))
        assert abs(Fraction(mean) - exact / total) <= Fraction(result.error_bound)
    assert result.clipped == cut
    steps = 2**31 if case["ring"] == "z32" else 2**52
    assert result.error_bound < 40 * max(weights.values()) * case["clip"] * len(vectors) ** 2 / steps


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"vectors": {"a": [1.0, np.nan], "b": [0.0, 0.0]}}, NotFinite, "'a': 1 values are NaN"),
        ({"vectors": {"a": [np.inf], "b": [0.0]}}, NotFinite, "infinite"),
        ({"vectors": {"a": [1.0], "b": [0.0, 0.0]}}, InputError, "different lengths"),
        ({"vectors": {"a": [[1.0]], "b": [[0.0]]}}, InputError, "flat vector"),
        ({"vectors": {"a": ["x"], "b": ["y"]}}, InputError, "flat vector"),
        ({"vectors": {"a": [[1.0], []], "b": [0.0]}}, InputError, "not a vector of numbers"),
        ({"vectors": {}}, InputError, "at least two clients"),
        ({"vectors": {"a": [1.0]}}, InputError, "at least two clients"),
        ({"clip": 0.0}, ParameterError, "clip"),
        ({"clip": float("nan")}, ParameterError, "clip"),
        ({"weights": {"a": 1}}, InputError, "different clients"),
        ({"weights": {"a": 1, "b": -1}}, ParameterError, "'b': a weight"),
        ({"weights": {"a": 1, "b": 0.5}}, ParameterError, "whole number"),
        ({"weights": {"a": 0, "b": 0}}, InputError, "weight 0 together"),
        ({"weights": {"a": 2**31, "b": 1}}, ParameterError, "ring z64"),
        ({"ring": "f31"}, ParameterError, "ring"),
    ],
)
def test_what_cannot_be_averaged_is_refused(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    good: dict[str, Any] = {"vectors": {"a": [0.5], "b": [0.25]}, "clip": 1.0}
    with pytest.raises(error, match=says):
        sfsl.secure_mean(**(good | changes))


def test_a_weight_above_the_largest_counts_as_that() -> None:
    result = sfsl.secure_mean({"a": [1.0], "b": [0.0]}, clip=1.0, weights={"a": 1000, "b": 10}, max_weight=10)
    assert abs(result.mean[0] - 0.5) <= result.error_bound < 1e-6


@pytest.mark.parametrize("ring", ["z32", "z64"])
def test_the_bound_holds_for_many_values_and_is_not_far_from_what_happens(ring: Any) -> None:
    clip, rng = 3.7, np.random.default_rng(5)
    vectors = {name: rng.uniform(-clip, clip, 4000) for name in ("a", "b")}
    result = sfsl.secure_mean(vectors, clip=clip, ring=ring, randomness=SeededRandomness("many"))
    exact = [(Fraction(a) + Fraction(b)) / 2 for a, b in zip(*vectors.values(), strict=True)]
    largest = max(abs(Fraction(mean) - one) for mean, one in zip(result.mean.tolist(), exact, strict=True))
    assert largest <= result.error_bound
    assert largest > result.error_bound / (1.5 if ring == "z32" else 20)
