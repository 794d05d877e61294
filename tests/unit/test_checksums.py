"""Checksums inside files: found, passed over by readers that do not know them, and never silently wrong."""

import csv
import io
import json
import random
import tomllib
from pathlib import Path

import numpy as np
import pytest

from sfsl import checksums
from sfsl.checksums import (
    json_lines,
    require_last_line,
    with_json_sum,
    with_last_line,
    without_json_sum,
    without_last_line,
    without_last_lines,
)
from sfsl.durable import written_whole
from sfsl.errors import InputError

TEXTS = [b'{"a":1}', b'{\n  "a": 1,\n  "b": [2]\n}\n', b'[{"a":1},{"b":2}]', b'["x"]\n', b'{"checksum":"no"}']


@pytest.mark.parametrize("text", TEXTS)
def test_json_with_a_checksum_is_json(text: bytes) -> None:
    summed = with_json_sum(text)
    read, before = json.loads(summed), json.loads(text)
    if isinstance(read, dict):
        assert {name: read[name] for name in before if name != "checksum"} == {
            name: value for name, value in before.items() if name != "checksum"
        }
    else:
        assert read[:-1] == before
    assert json.loads(without_json_sum(summed, "")) == before
    assert without_json_sum(text, "") == text  # of an earlier version


@pytest.mark.parametrize("text", TEXTS)
def test_every_flipped_bit_of_json_is_found(text: bytes) -> None:
    summed, wanted = with_json_sum(text), json.loads(text)
    for at in range(8 * len(summed)):
        broken = bytearray(summed)
        broken[at // 8] ^= 1 << at % 8
        try:
            read = json.loads(without_json_sum(bytes(broken), "it"))
        except (InputError, ValueError):
            continue
        assert read == wanted, broken  # white space at the end


def test_every_flipped_bit_of_a_last_line_is_found() -> None:
    data = with_last_line(b"some = 1\nother = 2\n")
    for at in range(8 * len(data)):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(InputError, match="it is damaged: its checksum does not fit; restore it"):
            without_last_line(bytes(broken), "it")


def test_a_last_line_is_a_comment() -> None:
    data = with_last_line(b"some = 1\n")
    assert tomllib.loads(data.decode()) == {"some": 1}
    assert without_last_line(data, "") == b"some = 1\n"
    for plain in (b"", b"x", b"some = 1\n# check it\n", b"\n# checks\n"):
        assert without_last_line(plain, "") == plain
        assert without_last_line(with_last_line(plain), "") == plain


def test_large_files_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_AT_ONCE", 64)
    path, array = tmp_path / "file.npz", np.arange(1000)
    with written_whole(path, checksum=True) as file:
        np.savez(file, allow_pickle=False, array=array)
    data = path.read_bytes()
    assert without_last_line(data, "") == data[: -checksums.TRAILER_BYTES]
    with path.open("rb") as file:
        require_last_line(file, "")
        with np.load(file) as found:
            assert np.array_equal(found["array"], array)
    with np.load(path) as found:  # who does not know checksums reads it all the same
        assert np.array_equal(found["array"], array)
    draws = random.Random(1)
    for at in draws.sample(range(8 * len(data)), 200):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(InputError, match="damaged"):
            require_last_line(io.BytesIO(bytes(broken)), "it")
    require_last_line(io.BytesIO(b"short"), "")


def test_lines() -> None:
    lines = [with_json_sum(f'{{"n":{number}}}'.encode()) for number in range(4)]
    whole = b"".join(line + b"\n" for line in lines)
    assert [json.loads(line or b"") for line in json_lines(whole)] == [{"n": number} for number in range(4)]
    assert list(json_lines(whole + lines[0])) == list(json_lines(whole))  # cut short
    assert list(json_lines(b"")) == []
    plain = b'{"n":1}\n{"n":2}\n'
    assert list(json_lines(plain)) == [b'{"n":1}', b'{"n":2}']
    assert list(json_lines(whole + plain))[4:] == [None, None]  # a line loses its checksum by damage only


def test_every_flipped_bit_of_lines_is_found() -> None:
    whole = b"".join(with_json_sum(f'{{"n":{number}}}'.encode()) + b"\n" for number in range(3))
    sound = set(json_lines(whole))
    for at in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[at // 8] ^= 1 << at % 8
        assert set(json_lines(bytes(broken))) <= sound | {None}


def test_a_csv_reader_reads_a_file_with_a_last_line() -> None:
    first, *_ = csv.reader(io.StringIO(with_last_line(b"a,b\n").decode()))
    assert first == ["a", "b"]


def test_files_that_were_joined_are_checked_part_by_part() -> None:
    parts = [b"one\n", b"two\n"]
    joined = b"".join(map(with_last_line, parts))
    assert without_last_lines(joined, "it") == b"one\ntwo\n"
    assert without_last_lines(joined + b"and one without\n", "it") == b"one\ntwo\nand one without\n"
    for place in range(len(joined)):
        broken = bytearray(joined)
        broken[place] ^= 1
        with pytest.raises(InputError, match="it is damaged"):
            without_last_lines(bytes(broken), "it")
