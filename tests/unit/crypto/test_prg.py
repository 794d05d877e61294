"""A stream of masks fills what it is given and nothing else."""

import dataclasses

import numpy as np
import pytest

from sfsl.crypto.ring import F31, Z32, MaskStream
from sfsl.crypto.secret import Secret
from sfsl.errors import ParameterError


def test_a_stream_fills_flat_arrays_of_its_own_words_only() -> None:
    for out in (np.zeros((2, 3), "<u4"), np.zeros(6, "<u8")):
        with pytest.raises(ParameterError):
            MaskStream(Secret(bytes(32)), Z32).fill(out)


def test_a_copied_field_still_rejects() -> None:
    words = F31.zeros(1000)
    MaskStream(Secret(bytes(32)), dataclasses.replace(F31)).fill(words)
    assert int(words.max()) < F31.modulus
