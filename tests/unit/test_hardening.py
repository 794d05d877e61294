"""Small doors that a review found open, each shut for good."""

import dataclasses

import msgspec
import numpy as np
import pytest

from sfsl.codec import Message
from sfsl.crypto.agreement import require_canonical
from sfsl.crypto.prg import MaskStream
from sfsl.crypto.ring import F31, Z32, Z64
from sfsl.crypto.secret import Secret
from sfsl.errors import AuthenticationFailed, DecodeError, InputError, ParameterError
from sfsl.secagg import Layout, SessionParams, SumParams, TableShape, aggregate
from sfsl.secagg.messages import CODEC, Roster, size_limit
from world import World


def test_a_stream_fills_flat_arrays_of_its_own_words_only() -> None:
    for out in (np.zeros((2, 3), "<u4"), np.zeros(6, "<u8")):
        with pytest.raises(ParameterError):
            MaskStream(Secret(bytes(32)), Z32).fill(out)


def test_a_copied_field_still_rejects() -> None:
    words = F31.zeros(1000)
    MaskStream(Secret(bytes(32)), dataclasses.replace(F31)).fill(words)
    assert int(words.max()) < F31.modulus


def test_whole_numbers_above_2_to_63_in_a_list() -> None:
    assert Z64.vector([0, 2**63, 2**64 - 1], "v").tolist() == [0, 2**63, 2**64 - 1]
    assert aggregate({"a": [2**64 - 1, 1], "b": [2, 2**63]}, ring="z64").total.tolist() == [1, 2**63 + 1]
    for bad in ([0, 2**64], [0.5, 2**63], [-1, 2**63]):
        with pytest.raises(InputError):
            Z64.vector(bad, "v")


@pytest.mark.parametrize("value", [2**255 - 19, 2**255 - 1, 2**255, 2**256 - 1])
def test_a_key_has_one_form(value: int) -> None:
    with pytest.raises(AuthenticationFailed):
        require_canonical(value.to_bytes(32, "little"))
    require_canonical((2**255 - 20).to_bytes(32, "little"))
    world = World(n=3, threshold=2).check_in()
    keys = [
        msgspec.structs.replace(one, channel=value.to_bytes(32, "little")) if name == "c1" else one
        for name, one in world.keys.items()
    ]
    with pytest.raises(AuthenticationFailed):
        type(world.server)(world.params, keys)


def sum_of(**fields: object) -> SumParams:
    usual: dict[str, object] = {
        "label": "sum",
        "ring": "z32",
        "min_contributors": 1,
        "layout": Layout(dense=1),
    }
    return SumParams(**{**usual, **fields})  # type: ignore[arg-type]


def session_of(**fields: object) -> SessionParams:
    usual: dict[str, object] = {
        "round_id": bytes(16),
        "clients": 6,
        "threshold": 4,
        "neighbours": None,
        "active": False,
        "sums": (sum_of(),),
    }
    return SessionParams(**{**usual, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["sum\n", "", "Sum", "1", "a" * 33, "a b"])
def test_labels(label: str) -> None:
    with pytest.raises(ParameterError):
        sum_of(label=label)


@pytest.mark.parametrize(
    "fields",
    [
        {"sums": (sum_of(layout=None),)},  # the first sum's layout must be known
        {"neighbours": 3},
        {"neighbours": 6},
        {"round_id": "AAAAAAAAAAAAAAAAAAAAAA=="},  # base64 is not bytes
        {"sums": (sum_of(), sum_of())},  # one label twice
        {"clients": 513, "threshold": 400},
    ],
)
def test_sessions_that_cannot_be(fields: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        session_of(**fields)


def test_lists_become_tuples() -> None:
    assert session_of(sums=[sum_of()]) == session_of(sums=(sum_of(),))


def test_the_size_limit_covers_a_roster_of_many_tables() -> None:
    many = Layout(dense=0, tables=(TableShape(rows=2**40, width=2**24),) * 64)
    sums = tuple(sum_of(label=f"s{i}", layout=many) for i in range(8))
    params = session_of(clients=2, threshold=2, sums=sums)
    roster = CODEC.encode(Roster(params, ()))
    assert len(roster) <= size_limit(params, Layout(dense=0), 4)


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
