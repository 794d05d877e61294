"""The codec takes messages of its protocol only, and repeats nobody's words."""

import msgspec
import pytest

from sfsl.codec import Message
from sfsl.errors import DecodeError
from sfsl.secagg.messages import CODEC


def test_a_decode_error_does_not_repeat_the_senders_words() -> None:
    for frame in (
        b"\x01" + msgspec.msgpack.encode({"type": "EVIL", "round_id": b""}),
        b"\x01" + msgspec.msgpack.encode({"type": "consistency", "EVIL": 1}),
    ):
        with pytest.raises(DecodeError) as caught:
            CODEC.decode(frame, limit=1000)
        assert "EVIL" not in str(caught.value)


def test_only_messages_of_a_protocol_are_encoded() -> None:
    class Stray(Message, frozen=True, tag="stray"):
        pass

    with pytest.raises(TypeError):
        CODEC.encode(Stray())
