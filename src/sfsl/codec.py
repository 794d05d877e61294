"""Messages <-> bytes: strict, versioned, size-limited (spec 3).

A frame is one version byte followed by the MessagePack map of one message. A frame is accepted only
if it is *canonical*: encoding what was decoded gives the same bytes back. So trailing bytes, unknown
or repeated fields, fields out of order and numbers in a longer form than needed are all refused, and
"the same message" and "the same bytes" mean the same thing.
"""

from typing import Any, Union

import msgspec

from sfsl.errors import DecodeError, Oversize, ParameterError, WrongVersion

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
        if self.encode(message) != data:
            raise DecodeError(f"{type(message).__name__} is not in canonical form")
        return message
