"""Wrong bytes at the codec: a typed refusal, or the one canonical frame of another message."""

import random
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from fuzz.campaign import SEED, Campaign, sizes
from fuzz.corpus import LIMIT, frames, type_of
from fuzz.frames import VALUES, Frame, mutated
from sfsl.codec import Codec
from sfsl.errors import DecodeError, Oversize

PROTOCOLS = ("session", "union", "round", "http")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_type_of_message_is_in_the_corpus(name: str) -> None:
    codec, valid = frames()[name]
    assert {type_of(frame) for frame in valid} == {kind.__struct_config__.tag for kind in codec.types}
    for frame in valid:
        assert codec.encode(codec.decode(frame.data, limit=LIMIT)) == frame.data


@sizes(quick=1500, share=0.25)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_mutated_frames(name: str, cases: int, record_property: Any) -> None:
    codec, valid = frames()[name]
    rng = random.Random(f"{SEED} {name}")
    campaign = Campaign(cases, record_property, DecodeError)
    for number in campaign:
        data = mutated(rng, valid)
        with campaign.case(number, data, name):
            _require_canonical(codec, data)
    # Neither is everything refused by its first byte, nor is what is wrong taken.
    assert campaign.outcomes["accepted"] > cases / 100
    assert campaign.outcomes["DecodeError"] > cases / 2


def _require_canonical(codec: Codec, data: bytes) -> None:
    message = codec.decode(data, limit=LIMIT)
    assert b"\x01" + msgspec.msgpack.encode(message) == data
    assert len(repr(message)) < 2000


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_value_in_each_place(name: str) -> None:
    """No place of any message is forgotten by chance."""
    codec, valid = frames()[name]
    for frame in {type_of(one): one for one in valid}.values():
        for part in frame.parts[:40]:
            for value in VALUES:
                data = frame.data[: part.start] + value + frame.data[part.stop :]
                with suppress(DecodeError):
                    _require_canonical(codec, data)


def test_every_cut_is_refused() -> None:
    for codec, valid in frames().values():
        for frame in {type_of(one): one for one in valid}.values():
            for end in range(min(len(frame.data), 600)):
                with pytest.raises(DecodeError):
                    codec.decode(frame.data[:end], limit=LIMIT)


def test_a_case_takes_no_more_memory_than_its_bytes_warrant() -> None:
    """A header of five bytes can promise four billion parts: nothing is made ready for them."""
    rng = random.Random(f"{SEED} memory")
    tracemalloc.start()
    try:
        for codec, valid in frames().values():
            for _ in range(400):
                data = mutated(rng, valid)
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                with suppress(DecodeError):
                    codec.decode(data, limit=LIMIT)
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < 20_000 + 60 * len(data), data.hex()
    finally:
        tracemalloc.stop()


def test_too_long_is_refused_unread() -> None:
    codec, valid = frames()["http"]
    for frame in valid:
        with pytest.raises(Oversize):
            codec.decode(frame.data, limit=len(frame.data) - 1)


def test_a_fuzzer_that_finds_what_is_there() -> None:
    """The oracle itself: a codec that takes what is not canonical is caught within a few hundred cases."""

    class Lenient(Codec):
        def decode(self, data: bytes, *, limit: int) -> Any:
            try:
                return self._decoder.decode(data[1:])
            except msgspec.MsgspecError:
                raise DecodeError("no") from None

    strict, valid = frames()["round"]
    codec = Lenient(*strict.types)
    rng, campaign = random.Random(SEED), Campaign(500, lambda *_: None, DecodeError)

    def run() -> None:
        for number in campaign:
            data = mutated(rng, valid)
            with campaign.case(number, data):
                _require_canonical(codec, data)

    with pytest.raises(AssertionError, match="case"):
        run()


def test_frames_are_read_as_they_were_written() -> None:
    """The scanner of the fuzzer: the parts of a frame, laid side by side, are the frame."""
    for _, valid in frames().values():
        for frame in valid:
            for part in frame.holders:
                inner = b"".join(frame.data[one.start : one.stop] for one in part.parts)
                assert frame.data[part.start : part.stop] == frame.data[part.start : part.body] + inner
            assert Frame.of(frame.data) == frame
