"""Numbers of rows as callers hand them in: whole, in their domain, copied, or refused in words."""

from typing import Any

import numpy as np
import pytest

from sfsl.arrays import LARGEST_DOMAIN, ascends, find, whole_numbers
from sfsl.errors import InputError, UnknownRow


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1.0, 2.0], "rows are whole numbers, not float64"),
        ([True, False], "rows are whole numbers, not bool"),
        (["1"], "rows are whole numbers, not <U1"),
        ([[1, 2], [3]], "rows are an array of whole numbers"),
        ([2**64], "rows are whole numbers, not object"),
        (
            np.array([1, 2**63], np.uint64),
            r"lie in the domain 0\.\.9223372036854775807; 9223372036854775808 does",
        ),
        ([3, -1], r"lie in the domain 0\.\.9223372036854775807; -1 does not"),
    ],
)
def test_what_are_no_row_numbers(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        whole_numbers(given, "rows")


def test_the_domain_and_the_error_are_the_callers() -> None:
    assert whole_numbers([0, 9], "rows", 10).tolist() == [0, 9]
    with pytest.raises(UnknownRow) as caught:
        whole_numbers([4, 10], "rows", 10, outside=UnknownRow)
    assert (
        str(caught.value) == "rows lie in the domain 0..9; 10 does not"
    )  # and 4, which may be private, is not said
    assert whole_numbers([LARGEST_DOMAIN - 1], "rows").tolist() == [LARGEST_DOMAIN - 1]


def test_any_shape_or_flat() -> None:
    assert whole_numbers([[1, 2], [3, 4]], "rows").shape == (2, 2)
    assert whole_numbers(7, "rows").shape == ()
    assert whole_numbers(np.zeros((0, 3)), "rows").shape == (0, 3)
    for given in ([[1, 2]], 7, np.zeros((0, 3))):
        with pytest.raises(InputError, match="rows are a flat array"):
            whole_numbers(given, "rows", flat=True)
    assert whole_numbers([], "rows", flat=True).dtype == np.int64


def test_what_comes_back_is_a_copy() -> None:
    given = np.array([1, 2])
    whole_numbers(given, "rows")[0] = 9
    assert given.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("numbers", "ascending"), [([], True), ([5], True), ([1, 2, 9], True), ([1, 1], False), ([2, 1], False)]
)
def test_ascending(numbers: list[int], ascending: bool) -> None:
    assert ascends(np.array(numbers, np.uint64)) is ascending


def test_places_in_an_ascending_array() -> None:
    ordered = np.array([2, 5, 9])
    at, held = find(np.array([[5, 1], [10, 9]]), ordered)
    assert held.tolist() == [[True, False], [False, True]]
    assert ordered[at][held].tolist() == [5, 9]
    assert not find(np.array([1, 2]), ordered[:0])[1].any()
    assert find(np.zeros((0, 2), np.int64), ordered)[1].shape == (0, 2)
