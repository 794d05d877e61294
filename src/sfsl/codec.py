"""Messages and sets <-> bytes: strict, versioned, size-limited (spec 3).

A frame is one version byte followed by the MessagePack map of one message. A frame is accepted only
if it is *canonical*: encoding what was decoded gives the same bytes back. So trailing bytes, unknown
or repeated fields, fields out of order and numbers in a longer form than needed are all refused, and
"the same message" and "the same bytes" mean the same thing.

A set of whole numbers is in Elias-Fano coding (spec 3.5). Of each index the low k bits are stored as they are
and the high bits in unary, as one bitmap with a one for each index. That takes about k + 2 bits per index,
k = log2(domain / count): within two thirds of a bit of what any code needs for a random set, and both
directions are a few array operations. A set of more than a quarter of its domain is a plain bitmap, which is
then shorter.
"""

import hashlib
from typing import Any, Union

import msgspec
import numpy as np

from sfsl.arrays import Bits, Indices, ascends
from sfsl.errors import DecodeError, InvalidMessage, Oversize, ParameterError, WrongVersion

VERSION = 1


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """One frozen message. Its ``repr`` names fields and sizes, never contents."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_size(getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"

    def __rich_repr__(self) -> Any:
        yield repr(self)


class Checked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Public parameters, whose annotations are checked when constructed too, not only when decoded."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            try:
                value = msgspec.convert(getattr(self, field.name), field.type, builtin_types=(bytes,))
            except msgspec.ValidationError as error:
                raise ParameterError(f"{type(self).__name__}.{field.name}: {error}") from None
            # A 5 given where 5.0 is meant becomes what decoding would make of it: one form, one encoding.
            msgspec.structs.force_setattr(self, field.name, value)
        self.require_sound()

    def require_sound(self) -> None:
        """Refuse values that are right by themselves and do not go together."""


def _size(value: object) -> str:
    if isinstance(value, bytes | str | tuple):
        return f"<{len(value)} {'bytes' if isinstance(value, bytes) else 'items'}>"
    return f"<{type(value).__name__}>"


class Codec:
    """Encodes and decodes the message types it was made for, and no others."""

    def __init__(self, *types: type[Message]) -> None:
        self.types = types
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[types])  # noqa: UP007

    def encode(self, message: Message) -> bytes:
        if not isinstance(message, self.types):
            raise TypeError(f"{type(message).__name__} is not a message of this protocol")
        return bytes((VERSION,)) + self._encoder.encode(message)

    def fingerprint(self, message: Message) -> bytes:
        """A digest that two messages share only if they are the same."""
        return hashlib.sha256(self._encoder.encode(message)).digest()

    def decode(self, data: bytes, *, limit: int) -> Message:
        """Return the message, or raise a ``DecodeError`` that quotes none of the content."""
        if len(data) > limit:
            raise Oversize(f"message of {len(data)} bytes where at most {limit} are allowed")
        if not data:
            raise DecodeError("empty message")
        if data[0] != VERSION:
            raise WrongVersion(f"protocol version {data[0]}, this side speaks {VERSION}")
        try:
            message: Message = self._decoder.decode(memoryview(data)[1:])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            # Not the error's own text: it would put words of the sender's choice into our logs.
            raise DecodeError(f"not a message of this protocol ({type(error).__name__})") from None
        # Compared in place: a vector that is copied to be compared costs more than the comparison.
        body = self._encoder.encode(message)
        if len(data) != len(body) + 1 or not data.endswith(body):
            raise DecodeError(f"{type(message).__name__} is not in canonical form")
        return message


def pack(indices: Indices, domain: int) -> bytes:
    """Ascending distinct indices below ``domain`` as bytes; ``unpack`` needs their number and the domain."""
    if not len(indices):
        return b""
    if not _as_bitmap(len(indices), domain):
        return _elias_fano(indices, domain)
    held = np.zeros(domain, np.bool_)
    held[indices] = True
    return np.packbits(held).tobytes()


def pack_bits(held: Bits) -> bytes:
    """The places where ``held`` is true as ``pack`` writes them, from a domain of its length."""
    count = int(np.count_nonzero(held))
    if count == 0:
        return b""
    if not _as_bitmap(count, len(held)):
        return _elias_fano(np.flatnonzero(held), len(held))
    return np.packbits(held).tobytes()


def packed_size(count: int, domain: int) -> int:
    """Bytes of any ``count`` indices below ``domain``."""
    if count == 0:
        return 0
    if _as_bitmap(count, domain):
        return (domain + 7) // 8
    low_bits, high_size = _widths(count, domain)
    return (count * low_bits + 7) // 8 + (high_size + 7) // 8


def unpack(data: bytes, count: int, domain: int) -> Indices:
    """The indices, or ``InvalidMessage`` where the bytes are not what ``pack`` makes of such a set."""
    _require_size(data, count, domain)
    if count == 0:
        return np.zeros(0, np.int64)
    if _as_bitmap(count, domain):
        return np.flatnonzero(_exactly(count, data, domain)).astype(np.int64)
    return _of_elias_fano(data, count, domain)


def unpack_bits(data: bytes, count: int, domain: int) -> Bits:
    """What ``unpack`` reads as ``domain`` bits, which must fit into memory."""
    _require_size(data, count, domain)
    if count and _as_bitmap(count, domain):
        return _exactly(count, data, domain)
    held = np.zeros(domain, np.bool_)
    if count:
        held[_of_elias_fano(data, count, domain)] = True
    return held


def _elias_fano(indices: Indices, domain: int) -> bytes:
    count = len(indices)
    low_bits, high_size = _widths(count, domain)
    raw = indices.astype("<u8").view(np.uint8).reshape(count, 8)
    low = np.unpackbits(raw, axis=1, count=low_bits, bitorder="little")
    high = np.zeros(high_size, np.bool_)
    high[(indices >> low_bits) + np.arange(count)] = True
    return np.packbits(low).tobytes() + np.packbits(high).tobytes()


def _of_elias_fano(data: bytes, count: int, domain: int) -> Indices:
    low_bits, high_size = _widths(count, domain)
    low_bytes = (count * low_bits + 7) // 8
    low = read_bits(data[:low_bytes], count * low_bits).reshape(count, low_bits)
    high = np.flatnonzero(_exactly(count, data[low_bytes:], high_size))
    raw = np.zeros((count, 8), np.uint8)
    raw[:, : (low_bits + 7) // 8] = np.packbits(low, axis=1, bitorder="little")
    values = raw.view("<u8")[:, 0].astype(np.uint64)
    values += (high - np.arange(count)).astype(np.uint64) << np.uint64(low_bits)
    if int(values[-1]) >= domain or not ascends(values):
        raise InvalidMessage("a packed set that is not ascending or leaves its domain")
    return values.astype(np.int64)


def _widths(count: int, domain: int) -> tuple[int, int]:
    """How many low bits each index has, and how long the bitmap of the high bits is."""
    low_bits = max(0, (domain // count).bit_length() - 1)
    return low_bits, count + ((domain - 1) >> low_bits)


def _as_bitmap(count: int, domain: int) -> bool:
    low_bits, high_size = _widths(count, domain)
    return domain <= count * low_bits + high_size


def _require_size(data: bytes, count: int, domain: int) -> None:
    """Refuse what cannot be such a set, before anything is allocated."""
    if not 0 <= count <= domain:
        raise InvalidMessage(f"a set of {count} indices from a domain of {domain}")
    if len(data) != packed_size(count, domain):
        raise InvalidMessage(f"a packed set of {len(data)} bytes is not one of {count} indices")


def _exactly(count: int, data: bytes, size: int) -> Bits:
    """A bitmap of which ``count`` bits are one."""
    bits = read_bits(data, size)
    ones = int(np.count_nonzero(bits))
    if ones != count:
        raise InvalidMessage(f"a packed set of {ones} indices says it has {count}")
    return bits


def read_bits(data: bytes, size: int) -> Bits:
    """A plain bitmap of ``size`` bits, or ``InvalidMessage``."""
    if len(data) != (size + 7) // 8:
        raise InvalidMessage(f"a bitmap of {len(data)} bytes for {size} bits")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).view(np.bool_)
    if bits[size:].any():
        raise InvalidMessage("a bitmap with bits set beyond its end")
    return bits[:size]
