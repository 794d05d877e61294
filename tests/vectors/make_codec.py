"""Vectors of the codec: one message of every type, and bytes that must be refused."""

from typing import Any

import msgspec

from sfsl.codec import Message
from sfsl.secagg import Layout, SessionParams, SumParams, TableShape
from sfsl.secagg.messages import (
    CODEC,
    Consistency,
    InboundShares,
    Keys,
    MaskedVector,
    Member,
    Roster,
    SealedShares,
    SignedRequest,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    size_limit,
)
from vectors.values import Json, on_the_wire, plain, some, sum_of


def codec() -> Json:
    round_id = some("codec round", 16)
    params = SessionParams(
        round_id=round_id,
        clients=300,
        threshold=201,
        neighbours=None,
        active=True,
        sums=(
            SumParams(label="union", ring="f31", min_contributors=1, layout=Layout(dense=70_000)),
            SumParams(label="update", ring="z64", min_contributors=6, layout=None),
        ),
    )
    tables = (TableShape(rows=2**33, width=18), TableShape(rows=9, width=1))
    one = SumParams(label="s", ring="z32", min_contributors=2, layout=Layout(dense=0, tables=tables))
    sparse = SessionParams(
        round_id=round_id, clients=1000, threshold=9, neighbours=40, active=False, sums=(sum_of(128),)
    )
    promised = msgspec.structs.replace(sparse, least_survivors=800)
    rows = SessionParams(
        round_id=round_id, clients=2, threshold=2, neighbours=None, active=False, sums=(one,)
    )
    keys = Keys("ada", some("k"), (some("m0"), some("m1")), (some("c0"), some("c1")), some("s", 64))
    wide = Keys("žofie \U0001f98a" + "x" * 40, some("k"), (some("m0"),), (some("c0"),), None)
    messages = {
        "keys, signed, two sums": keys,
        "keys, unsigned, a long id": wide,
        "roster, active": Roster(params, (Member(0, keys), Member(299, keys))),
        "roster, sparse, empty": Roster(sparse, ()),
        "roster, sparse": Roster(promised, (Member(7, wide),), some("root"), some("proof", 320)),
        "roster, tables": Roster(rows, (Member(0, wide),)),
        "sealed shares": SealedShares(round_id, 127, (some("b", 82), some("B", 544)), (), None),
        "sealed shares, requests": SealedShares(round_id, 128, (), (b"", b"\x80\x01"), None),
        "sealed shares, signed requests": SealedShares(
            round_id, 3, (), (b"", b"\x80\x01"), some("request", 64)
        ),
        "inbound shares": InboundShares(round_id, (0, 255, 256), (b"", b"\x01", b"\x02"), b"\xa0", ()),
        "inbound shares, signed requests": InboundShares(
            round_id,
            (1, 300),
            (b"\x01", b"\x02"),
            b"",
            (
                SignedRequest((b"", b"\x80\x01"), some("one", 64)),
                SignedRequest((b"", b"\x00\x40"), some("two", 64)),
            ),
        ),
        "masked vector": MaskedVector(round_id, 7, 65534, some("w", 300)),
        "masked vector, empty": MaskedVector(round_id, 0, 0, b""),
        "survivors": Survivors(round_id, 1, tuple(range(17)), (17, 300)),
        "consistency": Consistency(round_id, 0, 2, some("sig", 64)),
        "unmask request": UnmaskRequest(round_id, 0, (0, 1), (2,), ()),
        "unmask request, sparse": UnmaskRequest(round_id, 0, (0, 1), (2,), (), some("cohort", 125)),
        "unmask request, signed": UnmaskRequest(
            round_id, 1, (0, 1), (), ((0, some("a", 64)), (1, some("b", 64)))
        ),
        "unmask shares": UnmaskShares(round_id, 0, 1, (some("x", 33), bytes(33))),
    }
    return {
        "messages": [
            {"name": name, "bytes": CODEC.encode(message).hex(), "message": plain(message)}
            for name, message in messages.items()
        ],
        "refused": refused_bytes(round_id, keys, params),
        "size_limits": [
            {
                "params": plain(each),
                "layout": plain(layout),
                "word_bytes": word,
                "limit": size_limit(each, layout, word),
            }
            for each, layout, word in (
                (params, Layout(dense=70_000), 4),
                (rows, Layout(dense=1, tables=(TableShape(rows=9, width=2), TableShape(rows=7, width=1))), 8),
            )
        ],
    }


def refused_bytes(round_id: bytes, keys: Keys, params: SessionParams) -> list[Json]:
    good = CODEC.encode(MaskedVector(round_id, 1, 2, b"words"))

    def raw(fields: Any) -> bytes:
        return b"\x01" + msgspec.msgpack.encode(fields)

    def with_(message: Message, **change: Any) -> bytes:
        """The message with fields replaced, added (any name) or removed (...), without checks."""
        fields = {"type": message.__struct_config__.tag} | on_the_wire(message) | change
        return raw({name: value for name, value in fields.items() if value is not ...})

    def with_params(**change: Any) -> bytes:
        fields = on_the_wire(params) | change
        return raw({"type": "roster", "params": fields, "members": ()})

    def with_sum(**change: Any) -> bytes:
        return with_params(active=False, sums=[msgspec.structs.asdict(sum_of(1)) | change])

    vector = MaskedVector(round_id, 1, 2, b"words")
    shares = UnmaskShares(round_id, 0, 1, (bytes(33),))
    sealed = SealedShares(round_id, 1, (), (), None)
    inbound = InboundShares(round_id, (0,), (b"",), b"", ())
    signed = {"type": "signed-request", "bitmaps": [b"\x80"], "signature": bytes(64)}
    aligned = msgspec.structs.asdict(sum_of(1))
    lists = Survivors(round_id, 0, (0,), ())
    check = Consistency(round_id, 0, 0, bytes(64))
    request = UnmaskRequest(round_id, 0, (0,), (), ())
    sum_at = good.index(b"\xa3sum") + 4
    fields = {"type": "masked-vector", "round_id": round_id, "sum": 1, "sender": 2, "words": b"words"}
    swapped = {"type": "masked-vector", "sum": 1, "round_id": round_id, "sender": 2, "words": b"words"}
    untyped = {name: value for name, value in fields.items() if name != "type"}
    text_at = good.index(b"\xc4\x05words")
    cases: dict[str, tuple[bytes, str]] = {
        "nothing": (b"", "DecodeError"),
        "a version and nothing else": (b"\x01", "DecodeError"),
        "version 0": (b"\x00" + good[1:], "WrongVersion"),
        "version 2": (b"\x02" + good[1:], "WrongVersion"),
        "a trailing byte": (good + b"\x00", "DecodeError"),
        "the message twice": (good + good[1:], "DecodeError"),
        "truncated by a byte": (good[:-1], "DecodeError"),
        "truncated in a name": (good[:20], "DecodeError"),
        "an unknown field": (with_(vector, note=1), "DecodeError"),
        "a missing field": (with_(vector, words=...), "DecodeError"),
        "an unknown type": (raw(fields | {"type": "masked-vectors"}), "DecodeError"),
        "the type of a part": (
            raw(msgspec.to_builtins(Member(0, keys), builtin_types=(bytes,))),
            "DecodeError",
        ),
        "no type": (raw(untyped), "DecodeError"),
        "the type last": (raw(untyped | {"type": "masked-vector"}), "DecodeError"),
        "fields out of order": (raw(swapped), "DecodeError"),
        "a field twice": (
            b"\x01\x86" + good[2:] + b"\xa5words\xc4\x05words",
            "DecodeError",
        ),
        "an integer in two bytes": (good[:sum_at] + b"\xcc\x01" + good[sum_at + 1 :], "DecodeError"),
        "an integer in nine bytes": (
            good[:sum_at] + b"\xcf" + bytes(7) + b"\x01" + good[sum_at + 1 :],
            "DecodeError",
        ),
        "a signed integer": (good[:sum_at] + b"\xd0\x01" + good[sum_at + 1 :], "DecodeError"),
        "a negative integer": (with_(vector, sum=-1), "DecodeError"),
        "a float": (with_(vector, sum=1.0), "DecodeError"),
        "a boolean for an integer": (with_(vector, sum=True), "DecodeError"),
        "bytes with a longer header": (good[:text_at] + b"\xc5\x00\x05words", "DecodeError"),
        "text for bytes": (good[:text_at] + b"\xa5words", "DecodeError"),
        "a map with a longer header": (b"\x01\xde\x00\x05" + good[2:], "DecodeError"),
        "an array for a map": (raw(["masked-vector", round_id, 1, 2, b"words"]), "DecodeError"),
        "an integer": (b"\x01\x07", "DecodeError"),
        "nil for a field": (with_(vector, words=None), "DecodeError"),
        "deep nesting": (b"\x01" + b"\x91" * 2000, "DecodeError"),
        "a round id of 15 bytes": (with_(vector, round_id=round_id[:15]), "DecodeError"),
        "a round id of 17 bytes": (with_(vector, round_id=round_id + b"\x00"), "DecodeError"),
        "sum 8": (with_(vector, sum=8), "DecodeError"),
        "position 65535": (with_(vector, sender=65535), "DecodeError"),
        "a share of 32 bytes": (with_(shares, shares=[bytes(32)]), "DecodeError"),
        "a share of 34 bytes": (with_(shares, shares=[bytes(34)]), "DecodeError"),
        "a box of 545 bytes": (with_(sealed, boxes=[bytes(545)]), "DecodeError"),
        "65 bitmaps": (with_(sealed, request=[b""] * 65), "DecodeError"),
        "no field for the request's signature": (with_(sealed, request_signature=...), "DecodeError"),
        "a request's signature of 63 bytes": (with_(sealed, request_signature=bytes(63)), "DecodeError"),
        "no field for requests": (with_(inbound, requests=...), "DecodeError"),
        "a signed request by itself": (raw(signed), "DecodeError"),
        "a signed request without a type": (
            with_(inbound, requests=[{"bitmaps": [b"\x80"], "signature": bytes(64)}]),
            "DecodeError",
        ),
        "a signed request without signature": (
            with_(inbound, requests=[signed | {"signature": None}]),
            "DecodeError",
        ),
        "a signed request of 65 bitmaps": (
            with_(inbound, requests=[signed | {"bitmaps": [b""] * 65}]),
            "DecodeError",
        ),
        "a position in a list": (with_(lists, survivors=[65535]), "DecodeError"),
        "a signature of 63 bytes": (with_(check, signature=bytes(63)), "DecodeError"),
        "no signature": (with_(check, signature=None), "DecodeError"),
        "a signer without signature": (with_(request, signatures=[[0]]), "DecodeError"),
        "a signer with three items": (with_(request, signatures=[[0, bytes(64), 0]]), "DecodeError"),
        "an empty id": (with_(keys, client=""), "DecodeError"),
        "an id of 65 code points": (with_(keys, client="é" * 65), "DecodeError"),
        "an id that is not UTF-8": (
            CODEC.encode(keys).replace(b"\xa3ada", b"\xa3a\xffa", 1),
            "DecodeError",
        ),
        "a channel key of 31 bytes": (with_(keys, channel=bytes(31)), "DecodeError"),
        "no mask key": (with_(keys, masks=[]), "DecodeError"),
        "nine mask keys": (with_(keys, masks=[bytes(32)] * 9), "DecodeError"),
        "a member without a type": (
            raw({"type": "roster", "params": on_the_wire(params), "members": [{"position": 0}]}),
            "DecodeError",
        ),
        "parameters: one client": (with_params(clients=1), "DecodeError"),
        "parameters: threshold 1": (with_params(threshold=1), "DecodeError"),
        "parameters: threshold above clients": (with_params(threshold=301), "DecodeError"),
        "parameters: active below two thirds": (with_params(threshold=200), "DecodeError"),
        "parameters: 513 on a complete graph": (with_params(clients=513, threshold=400), "DecodeError"),
        "parameters: active on a sparse graph": (with_params(neighbours=10), "DecodeError"),
        "parameters: no sum": (with_params(sums=[]), "DecodeError"),
        "parameters: a label twice": (with_params(sums=[params.sums[0]] * 2), "DecodeError"),
        "parameters: an unknown field": (with_params(note=1), "DecodeError"),
        "parameters: a layout not told on a sparse graph": (
            with_params(active=False, neighbours=10),
            "DecodeError",
        ),
        "parameters: the first layout not told": (with_params(sums=[params.sums[1]]), "DecodeError"),
        "parameters: an odd number of neighbours": (
            with_params(active=False, neighbours=11, sums=[aligned]),
            "DecodeError",
        ),
        "parameters: more neighbours than are allowed": (
            with_params(active=False, clients=1000, neighbours=514, sums=[aligned]),
            "DecodeError",
        ),
        "parameters: survivors promised on a complete graph": (with_params(least_survivors=9), "DecodeError"),
        "parameters: more survivors than clients": (
            with_params(active=False, neighbours=10, sums=[aligned], least_survivors=301),
            "DecodeError",
        ),
        "parameters: survivors that are nil": (with_params(least_survivors=None), "DecodeError"),
        "parameters: as many neighbours as clients": (
            with_params(active=False, neighbours=300, sums=[aligned]),
            "DecodeError",
        ),
        "sum: an unknown ring": (with_sum(ring="z16"), "DecodeError"),
        "sum: a label with a capital": (with_sum(label="Sum"), "DecodeError"),
        "sum: a label and a line feed": (with_sum(label="sum\n"), "DecodeError"),
        "sum: a label of 33 letters": (with_sum(label="s" * 33), "DecodeError"),
        "sum: no contributors": (with_sum(min_contributors=0), "DecodeError"),
        "layout: too many dense words": (with_sum(layout={"dense": 2**40 + 1, "tables": []}), "DecodeError"),
        "layout: no tables field": (with_sum(layout={"dense": 1}), "DecodeError"),
        "layout: a table of width 0": (
            with_sum(layout={"dense": 1, "tables": [{"rows": 1, "width": 0}]}),
            "DecodeError",
        ),
        "layout: 65 tables": (
            with_sum(layout={"dense": 1, "tables": [{"rows": 1, "width": 1}] * 65}),
            "DecodeError",
        ),
    }
    refused = [
        {"name": name, "bytes": data.hex(), "limit": 1 << 20, "error": error}
        for name, (data, error) in cases.items()
    ]
    over = {"name": "a byte over the limit", "bytes": good.hex(), "limit": len(good) - 1, "error": "Oversize"}
    return [*refused, over]
