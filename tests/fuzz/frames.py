"""The parts of a MessagePack frame, and wrong frames made of right ones.

Everything follows from the seed: case N of a seed is the same bytes on every machine.
"""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

VERSION = b"\x01"


@dataclass(frozen=True)
class Part:
    """One value in a frame: its header is ``start:body``, all of it ``start:stop``."""

    kind: str
    start: int
    body: int
    stop: int
    parts: "tuple[Part, ...]" = ()  # of a map: key, value, key, value


@dataclass(frozen=True)
class Frame:
    """A valid frame. ``parts`` are all of its values, ``holders`` those that hold others."""

    data: bytes
    parts: tuple[Part, ...] = field(repr=False)
    holders: tuple[Part, ...] = field(repr=False)

    @classmethod
    def of(cls, data: bytes) -> "Frame":
        top = _scan(data, 1)
        assert top.stop == len(data)
        parts = tuple(_all(top))
        return cls(data, parts, tuple(part for part in parts if part.parts))


# First byte: kind, bytes of the length (negative: so many bytes of a plain value).
_FORMS: dict[int, tuple[str, int]] = {
    0xC0: ("nil", 0), 0xC2: ("bool", 0), 0xC3: ("bool", 0),
    0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4),
    0xCA: ("float", -4), 0xCB: ("float", -8),
    0xCC: ("int", -1), 0xCD: ("int", -2), 0xCE: ("int", -4), 0xCF: ("int", -8),
    0xD0: ("int", -1), 0xD1: ("int", -2), 0xD2: ("int", -4), 0xD3: ("int", -8),
    0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4),
    0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip


def _scan(data: bytes, start: int) -> Part:
    first = data[start]
    if first < 0x80 or first >= 0xE0:
        return Part("int", start, start + 1, start + 1)
    if first < 0xC0:
        kind, size = (
            ("map", first & 15)
            if first < 0x90
            else ("array", first & 15)
            if first < 0xA0
            else ("str", first & 31)
        )
        body = start + 1
    else:
        kind, width = _FORMS[first]
        body = start + 1 + max(0, width)
        if kind in ("nil", "bool", "float", "int"):
            return Part(kind, start, start + 1, start + 1 - width)
        size = int.from_bytes(data[start + 1 : body], "big")
    if kind in ("bin", "str"):
        return Part(kind, start, body, body + size)
    parts, place = [], body
    for _ in range(size * (2 if kind == "map" else 1)):
        parts.append(_scan(data, place))
        place = parts[-1].stop
    return Part(kind, start, body, place, tuple(parts))


def _all(part: Part) -> list[Part]:
    return [part, *(inner for one in part.parts for inner in _all(one))]


def header(kind: str, size: int, width: int | None = None) -> bytes:
    """That of a value with so many bytes or parts, in ``width`` bytes of length or as few as will do."""
    fix = {"map": (0x80, 16), "array": (0x90, 16), "str": (0xA0, 32), "bin": (0, 0)}[kind]
    least = {"map": 2, "array": 2, "str": 1, "bin": 1}[kind]
    if width is None and size < fix[1]:
        return bytes((fix[0] | size,))
    chosen = width or next(n for n in (1, 2, 4) if n >= least and size < 256**n)
    code = next(byte for byte, form in _FORMS.items() if form == (kind, max(chosen, least)))
    return bytes((code,)) + (size % 256 ** max(chosen, least)).to_bytes(max(chosen, least), "big")


def _deep(times: int, opening: bytes, end: bytes) -> bytes:
    return opening * times + end


# What no field expects, or only just.
VALUES: tuple[bytes, ...] = (
    b"\xc0", b"\xc2", b"\xc3", b"\xc1", b"\x00", b"\x01", b"\x7f", b"\xff", b"\xe0",
    b"\xcc\x00", b"\xcc\x80", b"\xcd\x00\x01", b"\xcd\xff\xff", b"\xce\xff\xff\xff\xff",
    b"\xcf" + b"\xff" * 8, b"\xcf\x80" + bytes(7), b"\xcf\x00\x00\x01" + bytes(5), b"\xcf" + bytes(8),
    b"\xd3\x80" + bytes(7), b"\xd3" + b"\xff" * 8, b"\xd0\x80", b"\xd2" + b"\x80" + bytes(3),
    *(b"\xcb" + struct.pack(">d", one) for one in (
        float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, 5e-324, 1e308, -1.0, 0.5, 1e-300)),
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x01", b"\xcb\xff" + b"\xff" * 7,
    b"\xca\x7f\xc0\x00\x00", b"\xca\x3f\x80\x00\x00",
    b"\xa0", b"\xa1\xff", b"\xa4type", b"\xd9\x00", b"\xa3\xed\xa0\x80", b"\xd9\xff" + b"a" * 255,
    b"\xdb\xff\xff\xff\xff", b"\xda\xff\xffabc",
    b"\xc4\x00", b"\xc4\x20" + bytes(32), b"\xc4\x20" + b"\xff" * 32, b"\xc4\x10" + bytes(16),
    b"\xc4\x40" + bytes(64), b"\xc5\x00\x20" + bytes(32), b"\xc6\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff",
    b"\x90", b"\x80", b"\x91\xc0", b"\x81\xc0\xc0", b"\xdd\xff\xff\xff\xff", b"\xdd\x7f\xff\xff\xff\xc0",
    b"\xdf\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdc\xff\xff", b"\xdc\x00\x00", b"\xdd\x00\x00\x00\x01\x00",
    b"\xc7\x01\x05a", b"\xd4\x01a", b"\xd6\xff" + bytes(4), b"\xd7\xff" + bytes(8),
    b"\xc9\xff\xff\xff\xff\x01",
    _deep(50, b"\x91", b"\xc0"), _deep(5000, b"\x91", b"\xc0"), _deep(5000, b"\x81\xa1a", b"\xc0"),
    _deep(200, b"\x81", b"\xc0"),
)  # fmt: skip

Random = random.Random


def _bits(rng: Random, frame: Frame, other: Frame) -> bytes:
    data = bytearray(frame.data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _byte(rng: Random, frame: Frame, other: Frame) -> bytes:
    """At the head of a value, where it says most."""
    data = bytearray(frame.data)
    data[rng.choice(frame.parts).start] = rng.randrange(256)
    return bytes(data)


def _cut(rng: Random, frame: Frame, other: Frame) -> bytes:
    return frame.data[: rng.randrange(len(frame.data))]


def _more(rng: Random, frame: Frame, other: Frame) -> bytes:
    return frame.data + rng.choice(
        (rng.randbytes(rng.randrange(1, 40)), bytes(1), other.data, frame.data[1:])
    )


def _splice(rng: Random, frame: Frame, other: Frame) -> bytes:
    return frame.data[: rng.randrange(len(frame.data))] + other.data[rng.randrange(len(other.data)) :]


def _length(rng: Random, frame: Frame, other: Frame) -> bytes:
    """Says that it holds more or less than it does, or says it in more bytes than needed."""
    part = rng.choice(frame.parts)
    if part.kind not in ("map", "array", "bin", "str"):
        return _replace(rng, frame, other)
    true = len(part.parts) // (2 if part.kind == "map" else 1) if part.parts else part.stop - part.body
    said = rng.choice((true, true, true + 1, max(0, true - 1), 0, 255, 65535, 2**31 - 1, 2**32 - 1))
    width = rng.choice((1, 2, 4, None)) if said < 256 else rng.choice((2, 4)) if said < 65536 else 4
    return frame.data[: part.start] + header(part.kind, said, width) + frame.data[part.body :]


def _replace(rng: Random, frame: Frame, other: Frame) -> bytes:
    part = rng.choice(frame.parts)
    return frame.data[: part.start] + rng.choice(VALUES) + frame.data[part.stop :]


def _some(rng: Random, frame: Frame, kind: str) -> Part | None:
    found = [part for part in frame.parts if part.kind == kind]
    return rng.choice(found) if found else None


def _number(rng: Random, frame: Frame, other: Frame) -> bytes:
    """Another number in the place of one, as short as can be: a round, a phase, a sender, a size."""
    part = _some(rng, frame, "int")
    if part is None:
        return _replace(rng, frame, other)
    return (
        frame.data[: part.start]
        + whole(rng.choice(_NUMBERS) + rng.randrange(-2, 3))
        + frame.data[part.stop :]
    )


def _content(rng: Random, frame: Frame, other: Frame) -> bytes:
    """Bytes or text of the right length and another content, or of another length; its header fits."""
    part = _some(rng, frame, rng.choice(("bin", "bin", "str")))
    if part is None:
        return _replace(rng, frame, other)
    size = part.stop - part.body
    length = (
        size if rng.random() < 0.6 else rng.choice((0, 1, max(0, size - 1), size + 1, 2 * size, size // 2))
    )
    if part.kind == "bin":
        content = rng.choice((rng.randbytes(length), bytes(length), b"\xff" * length))
    else:
        content = bytes(rng.choice(b"abc.-_09AZ\x00\n/") for _ in range(length))
    return frame.data[: part.start] + header(part.kind, length) + content + frame.data[part.stop :]


def _graft(rng: Random, frame: Frame, other: Frame) -> bytes:
    """A value of another message, or another place of this one."""
    part = rng.choice(frame.parts)
    taken = _some(rng, other, part.kind) or rng.choice(other.parts)
    return frame.data[: part.start] + other.data[taken.start : taken.stop] + frame.data[part.stop :]


def _hold(rng: Random, frame: Frame, other: Frame) -> bytes:
    """A list or map with a part left out, twice, moved or added; its header fits."""
    if not frame.holders:
        return _replace(rng, frame, other)
    part = rng.choice(frame.holders)
    step = 2 if part.kind == "map" else 1
    items = [
        frame.data[part.parts[i].start : part.parts[i + step - 1].stop]
        for i in range(0, len(part.parts), step)
    ]
    place = rng.randrange(len(items))
    match rng.randrange(7):
        case 0:
            del items[place]
        case 1:
            items.insert(rng.randrange(len(items) + 1), items[place])  # of a map: a key twice
        case 2:
            rng.shuffle(items)
        case 3:
            items.insert(place, (b"\xa1x" if step == 2 else b"") + rng.choice(VALUES))
        case 4:
            items = []
        case 5:
            items = items * rng.choice((2, 3, 20))
        case _:
            items[place] = rng.choice(VALUES) * step
    head = header(part.kind, len(items), rng.choice((None, None, None, 2, 4)))
    return frame.data[: part.start] + head + b"".join(items) + frame.data[part.stop :]


def _same(rng: Random, frame: Frame, other: Frame) -> bytes:
    """A right frame, in a wrong place."""
    return rng.choice((frame, other)).data


def _start(rng: Random, frame: Frame, other: Frame) -> bytes:
    """Another version, no version, or nothing of a frame at all."""
    match rng.randrange(4):
        case 0:
            return bytes((rng.randrange(256),)) + frame.data[1:]
        case 1:
            return frame.data[1:]
        case 2:
            return VERSION + rng.choice(VALUES)
        case _:
            return VERSION * rng.randrange(2) + rng.randbytes(rng.randrange(200))


_NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    65_534,
    65_535,
    65_536,
    2**31,
    2**32,
    2**40,
    2**62,
    2**63,
    -1,
    300,
)


def whole(value: int) -> bytes:
    """A whole number in its shortest form."""
    value = max(-(2**63), min(value, 2**64 - 1))
    if -32 <= value < 128:
        return bytes((value & 255,))
    if value > 0:
        width = next(n for n in (1, 2, 4, 8) if value < 256**n)
        return bytes((0xCC + (1, 2, 4, 8).index(width),)) + value.to_bytes(width, "big")
    width = next(n for n in (1, 2, 4, 8) if value >= -(256**n) // 2)
    return bytes((0xD0 + (1, 2, 4, 8).index(width),)) + value.to_bytes(width, "big", signed=True)


MUTATIONS: tuple[Callable[[Random, Frame, Frame], bytes], ...] = (
    _bits, _byte, _cut, _more, _splice, _length, _replace, _number, _number, _content, _content, _graft,
    _hold, _hold, _start,
)  # fmt: skip


# What mostly leaves a frame that can be read, and is wrong in what it says.
SLY: tuple[Callable[[Random, Frame, Frame], bytes], ...] = (_number, _content, _content, _hold, _graft, _same)


def mutated(rng: Random, frames: Sequence[Frame], frame: Frame | None = None, *, sly: bool = False) -> bytes:
    """One wrong frame. Now and then two things are wrong with it."""
    frame = frame or rng.choice(frames)
    data = rng.choice(SLY if sly else MUTATIONS)(rng, frame, rng.choice(frames))
    if rng.random() < 0.1 and data:
        changed = bytearray(data)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed)
    return data
