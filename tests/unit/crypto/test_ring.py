"""Whole numbers up to the largest word."""

import numpy as np
import pytest

from sfsl.crypto.ring import Z64
from sfsl.errors import InputError
from sfsl.secagg import aggregate


def test_whole_numbers_above_2_to_63_in_a_list() -> None:
    assert Z64.vector([0, 2**63, 2**64 - 1], "v").tolist() == [0, 2**63, 2**64 - 1]
    assert aggregate({"a": [2**64 - 1, 1], "b": [2, 2**63]}, ring="z64", wrap=True).total.tolist() == [
        1,
        2**63 + 1,
    ]
    for bad in ([0, 2**64], [0.5, 2**63], [-1, 2**63]):
        with pytest.raises(InputError):
            Z64.vector(bad, "v")


def test_an_array_is_taken_by_its_kind_and_a_list_by_what_is_in_it() -> None:
    """An array of objects or floats may hold whole numbers; whoever made it may not know."""
    assert Z64.vector(np.array([1, 2], np.int8), "v").tolist() == [1, 2]
    for kind in (object, float, bool):
        with pytest.raises(InputError, match="whole numbers are needed"):
            Z64.vector(np.array([1, 0], kind), "v")
    assert Z64.vector([1, 0], "v").tolist() == [1, 0]
