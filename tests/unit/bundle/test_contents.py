"""Tensors as safetensors: what others read and write, and what is refused."""

import numpy as np
import pytest

from sfsl.bundle.contents import decode_tensors, encode_tensors
from sfsl.errors import BundleError

TENSORS = {
    "tower.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "item.numbers": np.array([3, 2**40]),
    "none": np.zeros((0, 4), np.float32),
}


def test_the_package_safetensors_reads_what_we_write() -> None:
    numpy_file = pytest.importorskip("safetensors.numpy")
    found = numpy_file.load(encode_tensors(TENSORS))
    assert found.keys() == TENSORS.keys()
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype


def test_what_is_written_reads_back() -> None:
    found = decode_tensors(encode_tensors(TENSORS), "w")
    assert {name: values.tolist() for name, values in found.items()} == {
        name: values.tolist() for name, values in TENSORS.items()
    }


@pytest.mark.parametrize("cut", [0, 5, 8, 40, -1])
def test_a_file_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BundleError, match=r"safetensors|header"):
        decode_tensors(encode_tensors(TENSORS)[:cut], "w")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"F32", b"F64"), (b"[2,3]", b"[3,3]"), (b"[2,3]", b"[2,9]"), (b'"dtype"', b'"dtypo"')],
)
def test_a_header_that_does_not_fit_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(BundleError):
        decode_tensors(encode_tensors(TENSORS).replace(old, new, 1), "w")


def test_bytes_beyond_the_last_tensor_are_refused() -> None:
    with pytest.raises(BundleError, match="beyond"):
        decode_tensors(encode_tensors(TENSORS) + b"x", "w")
