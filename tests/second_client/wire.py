"""Bytes: canonical MessagePack, messages and their limits, framed hashes, packed sets.

Written from docs/spec alone, as all of this folder: secure-aggregation.md 2.2, 3 and 5.2, network.md 4.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class Refused(Exception):
    """What came is not what the specification allows. Nothing has changed, and nothing is answered."""


class Forbidden(Refused):
    """An invitation that is well-formed, but not within our policy: declined aloud (network.md 5.2)."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Refused(what)


def insist(condition: bool, what: str) -> None:
    if not condition:
        raise Forbidden(what)


# -- labels (secure-aggregation.md 2.2) --------------------------------------------------------------


def be32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def frame(label: str, *parts: bytes) -> bytes:
    return b"".join(be32(len(part)) + part for part in (b"sfsl/1 " + label.encode("ascii"), *parts))


def digest(label: str, *parts: bytes) -> bytes:
    return sha256(frame(label, *parts)).digest()


def derive(secret: bytes, label: str, *parts: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=frame(label, *parts)).derive(secret)


# -- canonical MessagePack (3.2) ---------------------------------------------------------------------


def pack(value: Any) -> bytes:
    """The one encoding of a value. Maps keep the order of their keys."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return bytes([value]) if value < 128 else _head(value, 0xCC, 0xCD, 0xCE, 0xCF)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            data = value.encode()
            short = bytes([0xA0 | len(data)]) if len(data) < 32 else _head(len(data), 0xD9, 0xDA, 0xDB)
            return short + data
        case bytes():
            return _head(len(value), 0xC4, 0xC5, 0xC6) + value
        case list():
            short = bytes([0x90 | len(value)]) if len(value) < 16 else _head(len(value), None, 0xDC, 0xDD)
            return short + b"".join(map(pack, value))
        case dict():
            short = bytes([0x80 | len(value)]) if len(value) < 16 else _head(len(value), None, 0xDE, 0xDF)
            return short + b"".join(pack(key) + pack(item) for key, item in value.items())
    raise TypeError(type(value))


def _head(number: int, *codes: int | None) -> bytes:
    for code, size in zip(codes, (1, 2, 4, 8), strict=False):
        if code is not None and number < 256**size:
            return bytes([code]) + number.to_bytes(size, "big")
    raise ValueError("too large")


_SIZED = {
    **{0xC4 + n: (bytes, 1 << n) for n in range(3)},
    **{0xCC + n: (int, 1 << n) for n in range(4)},
    **{0xD9 + n: (str, 1 << n) for n in range(3)},
    **{0xDC + n: (list, 2 << n) for n in range(2)},
    **{0xDE + n: (dict, 2 << n) for n in range(2)},
}


def unpack(data: bytes) -> Any:
    value, end = _value(data, 0, 0)
    require(end == len(data) and pack(value) == data, "not in canonical form")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    head, at = _take(data, at, 1)
    code = head[0]
    require(depth < 16, "nested too deeply")
    if code < 0x80:
        return code, at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if code == 0xCB:
        raw, at = _take(data, at, 8)
        return struct.unpack(">d", raw)[0], at
    if code in _SIZED:
        kind, width = _SIZED[code]
        raw, at = _take(data, at, width)
        size = int.from_bytes(raw, "big")
    elif code < 0xC0:
        kind = dict if code < 0x90 else list if code < 0xA0 else str
        size = code & (0x1F if kind is str else 0x0F)
    else:
        raise Refused("a type that does not occur")
    if kind is int:
        return size, at
    if kind in (bytes, str):
        raw, at = _take(data, at, size)
        try:
            return (raw if kind is bytes else raw.decode()), at
        except UnicodeDecodeError:
            raise Refused("text that is not UTF-8") from None
    items = []
    for _ in range(size * (2 if kind is dict else 1)):
        item, at = _value(data, at, depth + 1)
        items.append(item)
    if kind is list:
        return items, at
    require(all(type(key) is str for key in items[::2]), "a key that is no text")
    return dict(zip(items[::2], items[1::2], strict=True)), at  # a key twice fails when packed again


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    require(at + size <= len(data), "cut short")
    return data[at : at + size], at + size


# -- types and limits (3.3, network.md 4) ------------------------------------------------------------

Check = Callable[[Any], None]


def integer(low: int, high: int) -> Check:
    return lambda value: require(type(value) is int and low <= value <= high, "not such a number")


def floating(low: float, high: float) -> Check:
    return lambda value: require(type(value) is float and low <= value <= high, "not such a number")


def octets(low: int, high: int | None = None) -> Check:
    most = low if high is None else high
    return lambda value: require(type(value) is bytes and low <= len(value) <= most, "not such bytes")


def text(low: int, high: int) -> Check:
    return lambda value: require(type(value) is str and low <= len(value) <= high, "not such a text")


def one_of(*names: str) -> Check:
    return lambda value: require(type(value) is str and value in names, "not such a name")


def boolean(value: Any) -> None:
    require(type(value) is bool, "neither true nor false")


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def items(check: Check, low: int, high: int) -> Check:
    def run(value: Any) -> None:
        require(type(value) is list and low <= len(value) <= high, "not such a list")
        for item in value:
            check(item)

    return run


def pair(first: Check, second: Check) -> Check:
    def run(value: Any) -> None:
        require(type(value) is list and len(value) == 2, "not a pair")
        first(value[0])
        second(value[1])

    return run


def record(type_: str | None, /, *, last: Mapping[str, Check] | None = None, **fields: Check) -> Check:
    """A map of these fields in this order; those of ``last`` may be left out."""
    checks = fields if type_ is None else {"type": one_of(type_), **fields}

    def run(value: Any) -> None:
        require(type(value) is dict, "not such a map")
        there = checks | {name: check for name, check in (last or {}).items() if name in value}
        require(list(value) == list(there), "not such a map")
        for name, check in there.items():
            check(value[name])

    return run


def hyperparameters(value: Any) -> None:
    require(type(value) is dict and len(value) <= 64, "not such a map")
    for name, number in value.items():
        text(0, 64)(name)
        floating(-float("inf"), float("inf"))(number)


ANY_BYTES = octets(0, 2**32 - 1)
POSITION = integer(0, 65_534)
POSITIONS = items(POSITION, 0, 65_535)
COUNT = integer(0, 2**40)
SUM = integer(0, 7)
ROUND_ID = octets(16)
POSITIVE = floating(5e-324, float("inf"))

KEYS = record(
    "keys",
    client=text(1, 64),
    channel=octets(32),
    masks=items(octets(32), 1, 8),
    commitments=items(octets(32), 1, 8),
    signature=optional(octets(64)),
)
LOG_HEAD = record(
    "log-head",
    deployment=octets(16),
    size=COUNT,
    root=octets(32),
    time=integer(0, 2**49),
    signatures=items(pair(octets(32), octets(64)), 0, 64),
)
LAYOUT = record(None, dense=COUNT, tables=items(record(None, rows=COUNT, width=integer(1, 2**24)), 0, 64))
SUM_PARAMS = record(
    None,
    label=text(1, 32),
    ring=one_of("z32", "z64", "f31"),
    min_contributors=integer(1, 65_535),
    layout=optional(LAYOUT),
)
ROSTER = record(
    "roster",
    params=record(
        None,
        round_id=ROUND_ID,
        clients=integer(2, 65_535),
        threshold=integer(2, 65_535),
        neighbours=optional(integer(2, 65_535)),
        active=boolean,
        sums=items(SUM_PARAMS, 1, 8),
        last={"least_survivors": integer(2, 65_535)},
    ),
    members=items(record("member", position=POSITION, keys=KEYS), 0, 65_535),
    last={"root": octets(32), "proof": octets(1, 2**32 - 1)},
)
SIGNED_REQUESTS = items(
    record("signed-request", bitmaps=items(ANY_BYTES, 0, 64), signature=octets(64)), 0, 65_535
)
MODEL = record(
    None,
    tables=items(
        record(
            None,
            name=text(1, 64),
            rows=integer(1, 2**63),
            width=integer(1, 2**20),
            kind=one_of("shared", "derived", "personal"),
            source=optional(text(1, 64)),
            initial=floating(0, 1e6),
        ),
        0,
        64,
    ),
    dense=COUNT,
)
QUANTIZATION = record(
    None,
    ring=one_of("z32", "z64"),
    cohort=integer(1, 2**16),
    clip=floating(5e-324, 1e6),
    levels=integer(1, 2**52),
    max_weight=integer(1, 2**32),
)
ANY_FLOAT = floating(-float("inf"), float("inf"))
SERVER_STEP = record(
    None,
    kind=one_of("add", "adagrad", "adam", "heat"),
    rate=ANY_FLOAT,
    beta1=ANY_FLOAT,
    beta2=ANY_FLOAT,
    tau=ANY_FLOAT,
    pull=ANY_FLOAT,
)
ROUND = record(
    None,
    number=integer(1, 2**64 - 1),
    model=MODEL,
    union=record(
        None,
        domain=integer(1, 2**63),
        encoding=one_of("identity", "bloom", "sketch", "whole"),
        capacity=integer(1, 2**40),
        seed=octets(32),
        false_positive_rate=floating(5e-324, 1 - 2**-53),
    ),
    update=record(
        None,
        rows=QUANTIZATION,
        dense=QUANTIZATION,
        averaging=record(
            None,
            weights=one_of("samples", "owners", "dataset"),
            kappa=floating(1, float("inf")),
            max_move=optional(POSITIVE),
        ),
        row_step=SERVER_STEP,
        dense_step=SERVER_STEP,
    ),
    min_contributors=integer(1, 65_535),
    training=hyperparameters,
    precision=one_of("float32", "float16"),
    scores=optional(record(None, bins=integer(1, 4096), centre=floating(-50, 50), scale=floating(1e-6, 50))),
)


def mapped(name: Check, item: Check) -> Check:
    """A map from such names to such values, of at most 64."""

    def run(value: Any) -> None:
        require(type(value) is dict and len(value) <= 64, "not such a map")
        for key, one in value.items():
            name(key)
            item(one)

    return run


BY_TABLE = mapped(text(1, 64), ANY_BYTES)
HOT_ROUND = record(
    None,
    number=integer(1, 2**64 - 1),
    kind=one_of("survey", "train"),
    model=MODEL,
    deviation=floating(0, 2**30),
    levels=integer(1, 2**30),
    clip=floating(5e-324, 1e6),
    marks=integer(1, 2**24),
    rows=mapped(text(1, 64), COUNT),
    hot=octets(0, 32),
    blob=octets(0, 32),
    seed=octets(32),
    training=hyperparameters,
    precision=one_of("float32", "float16"),
    scores=optional(record(None, bins=integer(1, 4096), centre=floating(-50, 50), scale=floating(1e-6, 50))),
)
# What a server sends. What a client sends it makes itself, in the order of the tables.
INCOMING: dict[str, Check] = {
    "checked-in": record("checked-in", ticket=octets(16), acknowledged=integer(0, 2**63 - 1)),
    "model-package": record(
        "model-package",
        kind=one_of("din", "logistic"),
        width=integer(1, 4096),
        slopes=one_of("dice", "prelu", ""),
        initial=floating(0, 10),
        users=integer(0, 2**62 - 1),
        items=integer(0, 2**62 - 1),
        categories=integer(0, 2**62 - 1),
        category_of=ANY_BYTES,
        model=MODEL,
        last={"layout": one_of("wide")},
    ),
    "log-head": LOG_HEAD,
    "log-proof": record(
        "log-proof",
        head=LOG_HEAD,
        consistency=octets(0, 4096),
        places=items(COUNT, 0, 1024),
        entries=items(pair(octets(32), octets(0, 64)), 0, 1024),
        inclusion=octets(0, 32 * 40 * 1024),
    ),
    "invitation": record("invitation", roster=ROSTER, round=ROUND),
    "hot-invitation": record("hot-invitation", roster=ROSTER, round=HOT_ROUND),
    "hot-set": record(
        "hot-set",
        version=integer(1, 2**64 - 1),
        surveyed=integer(1, 2**64 - 1),
        rows=BY_TABLE,
        owners=BY_TABLE,
    ),
    "inbound-shares": record(
        "inbound-shares",
        round_id=ROUND_ID,
        senders=POSITIONS,
        boxes=items(octets(0, 544), 0, 65_535),
        requesters=ANY_BYTES,
        requests=SIGNED_REQUESTS,
    ),
    "survivors": record("survivors", round_id=ROUND_ID, sum=SUM, survivors=POSITIONS, dropped=POSITIONS),
    "unmask-request": record(
        "unmask-request",
        round_id=ROUND_ID,
        sum=SUM,
        survivors=POSITIONS,
        dropped=POSITIONS,
        signatures=items(pair(POSITION, octets(64)), 0, 65_535),
        last={"cohort": octets(1, 2**32 - 1)},
    ),
    "union": record("union", round_id=ROUND_ID, count=COUNT, packed=ANY_BYTES),
    "submodel": record(
        "submodel",
        round_id=ROUND_ID,
        participants=POSITIONS,
        rows=items(ANY_BYTES, 0, 64),
        dense=ANY_BYTES,
        requesters=ANY_BYTES,
        requests=SIGNED_REQUESTS,
        root=octets(20),
        proof=ANY_BYTES,
    ),
}


def encode(type_: str, **fields: Any) -> bytes:
    """One message: the version byte, and a map that begins with its type."""
    return b"\x01" + pack({"type": type_, **fields})


def decode(data: bytes, *types: str) -> dict[str, Any]:
    require(data[:1] == b"\x01", "another version")
    message = unpack(data[1:])
    require(type(message) is dict and message.get("type") in types, f"not one of {types}")
    INCOMING[message["type"]](message)
    return message


def ascending(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(numbers))


# -- bits and sets (3.5, 5.2) ------------------------------------------------------------------------


def bitmap(bits: np.ndarray) -> bytes:
    return np.packbits(bits.astype(bool)).tobytes()


def read_bitmap(data: bytes, size: int) -> np.ndarray:
    """Exactly ``size`` bits; those that fill the last byte are zero."""
    require(len(data) == (size + 7) // 8, "a bitmap of another size")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).astype(bool)
    require(not bits[size:].any(), "bits beyond the end")
    return bits[:size]


def read_set(data: bytes, count: int, domain: int) -> list[int]:
    """The packed set of ``count`` numbers below ``domain`` (3.5)."""
    require(count <= domain, "more numbers than there are")
    if count == 0:
        require(not data, "an empty set has no bytes")
        return []
    low_bits = (domain // count).bit_length() - 1
    high_bits = count + ((domain - 1) >> low_bits)
    if domain <= count * low_bits + high_bits:
        found = np.flatnonzero(read_bitmap(data, domain)).tolist()
        require(len(found) == count, "another number of ones")
        return found
    cut = (count * low_bits + 7) // 8
    lows = read_bitmap(data[:cut], count * low_bits).reshape(count, low_bits)
    highs = np.flatnonzero(read_bitmap(data[cut:], high_bits)).tolist()
    require(len(highs) == count, "another number of ones")
    numbers = [
        ((high - place) << low_bits) + sum(1 << bit for bit in np.flatnonzero(low).tolist())
        for place, (high, low) in enumerate(zip(highs, lows, strict=True))
    ]
    require(ascending(numbers) and numbers[-1] < domain, "numbers that do not ascend")
    return numbers


def read_requesters(data: bytes, size: int) -> np.ndarray:
    """Who else asked for one's rows, as ``size`` bits (5.2)."""
    if size == 0:
        require(not data, "bytes where there are no rows")
        return np.zeros(0, bool)
    require(len(data) >= 9 and data[0] <= 1, "not such a string of bits")
    zeros, count = bool(data[0]), int.from_bytes(data[1:9], "little")
    require(2 * count < size if zeros else 2 * count <= size, "listed what is more")
    bits = np.full(size, zeros)
    bits[read_set(data[9:], count, size)] = not zeros
    return bits


def joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)
