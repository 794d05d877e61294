"""A file with one record says what it is, and every flipped bit of it is found."""

import pytest

from sfsl.codec import Message
from sfsl.durable import RecordFormat, with_checksum, without_checksum
from sfsl.errors import StateError


class Note(Message, frozen=True, tag="note"):
    text: bytes


class Other(Message, frozen=True, tag="other"):
    text: bytes


def notes(kind: type[Message] = Note) -> RecordFormat[Message]:
    return RecordFormat(kind, b"magic\0", largest=64, what="a note", lost="Write it again")


def test_a_record_comes_back() -> None:
    assert notes().decode(notes().encode(Note(b"kept")), "here") == Note(b"kept")


def test_every_flipped_bit_is_found() -> None:
    data = notes().encode(Note(b"kept"))
    for at in range(8 * len(data)):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(StateError, match=r"here is (not a note|damaged.*Write it again)"):
            notes().decode(bytes(broken), "here")


def test_every_cut_is_found() -> None:
    data = notes().encode(Note(b"kept"))
    for length in range(len(data)):
        with pytest.raises(StateError, match=r"here is (not a note|damaged)"):
            notes().decode(data[:length], "here")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\x07\x80", "written by another version"),
        (b"\x01\x80", "does not hold a note"),
        (b"", "does not hold a note"),
        (bytes(65), "does not hold a note"),
    ],
)
def test_what_is_sound_and_yet_no_note(body: bytes, says: str) -> None:
    with pytest.raises(StateError, match=says):
        notes().decode(b"magic\0" + with_checksum(body), "here")


def test_another_kind_of_record() -> None:
    with pytest.raises(StateError, match="does not hold a note"):
        notes().decode(notes(Other).encode(Other(b"kept")), "here")


def test_checksums() -> None:
    assert without_checksum(with_checksum(b"")) == b""
    assert without_checksum(with_checksum(b"body")) == b"body"
    for damaged in (b"", b"short", with_checksum(b"body")[:-1], with_checksum(b"body") + b"!"):
        assert without_checksum(damaged) is None
