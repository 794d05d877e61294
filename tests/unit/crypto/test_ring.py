"""Whole numbers up to the largest word."""

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
