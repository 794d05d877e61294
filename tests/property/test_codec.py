"""Untrusted bytes: either the one canonical frame of a message, or a DecodeError."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfsl.errors import DecodeError
from sfsl.secagg.messages import CODEC
from world import LIMIT, World


def frames() -> list[bytes]:
    world = World(n=3, threshold=3, active=True).to_unmask()
    answers: list[Any] = [*world.rosters.values(), *world.inbound.values(), *world.uploads.values()]
    answers += [*world.keys.values(), *world.requests.values()]
    answers.append(world.clients["c0"].handle_unmask(world.requests["c0"]))
    return [CODEC.encode(message) for message in answers]


FRAMES = frames()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x01")
def test_random_bytes(data: bytes) -> None:
    for candidate in (data, b"\x01" + data):
        with pytest.raises(DecodeError):
            CODEC.decode(candidate, limit=LIMIT)


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(FRAMES), st.data())
def test_mutated_frames(frame: bytes, data: st.DataObject) -> None:
    """Flip, cut, insert: what still decodes is another canonical message, never the same one twice."""
    place = data.draw(st.integers(0, len(frame) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "insert", "delete", "append"]))
    byte = data.draw(st.integers(1, 255))
    mutated = {
        "flip": frame[:place] + bytes((frame[place] ^ byte,)) + frame[place + 1 :],
        "cut": frame[:place],
        "insert": frame[:place] + bytes((byte,)) + frame[place:],
        "delete": frame[:place] + frame[place + 1 :],
        "append": frame + bytes((byte,)),
    }[change]
    try:
        message = CODEC.decode(mutated, limit=LIMIT)
    except DecodeError:
        return
    assert CODEC.encode(message) == mutated
    assert message != CODEC.decode(frame, limit=LIMIT)
