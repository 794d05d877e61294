"""What the makers of our own vectors share: seeded bytes, and messages as JSON."""

from typing import Any

import msgspec
import numpy as np

from sfsl.codec import Message
from sfsl.secagg import Layout, SumParams
from sfsl.testing import SeededRandomness

Json = dict[str, Any]


class Recorder:
    """Seeded randomness that keeps what was drawn."""

    def __init__(self, seed: str) -> None:
        self._source = SeededRandomness(seed)
        self.drawn = b""

    def bytes(self, count: int, /) -> bytes:
        data = self._source.bytes(count)
        self.drawn += data
        return data


def some(seed: str, count: int = 32) -> bytes:
    return SeededRandomness(seed).bytes(count)


def plain(value: Any) -> Any:
    """A message or parameters as JSON, bytes in hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, msgspec.Struct):
        tag = {"type": value.__struct_config__.tag} if isinstance(value, Message) else {}
        return tag | {name: plain(each) for name, each in on_the_wire(value).items()}
    return value


def on_the_wire(value: msgspec.Struct) -> Json:
    """Its fields without those that are left out where they have their default."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(value)}
    omitted = defaults if value.__struct_config__.omit_defaults else {}
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: each for name, each in fields.items() if name not in omitted or each != omitted[name]}


def sum_of(dense: int, ring: Any = "z32", label: str = "sum") -> SumParams:
    return SumParams(label=label, ring=ring, min_contributors=1, layout=Layout(dense=dense))
