"""Public parameters of a union, and the encoding that is the cheapest in bytes."""

from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sfsl.arrays import LARGEST_DOMAIN
from sfsl.codec import Checked
from sfsl.crypto.secret import digest
from sfsl.errors import ParameterError
from sfsl.secagg.params import Layout, SumParams
from sfsl.union.bloom import Bloom
from sfsl.union.encoding import LARGEST_IDENTITY, Encoding, Identity, Whole
from sfsl.union.sketch import Sketch

ENCODINGS = ("auto", "identity", "bloom", "sketch", "whole")


identity, bloom, sketch = Identity, Bloom, Sketch


def choose(
    encoding: str, domain: int, capacity: int, seed: bytes, false_positive_rate: float = 1e-4
) -> Encoding:
    """The encoding of that name; 'auto' is the shortest that is exact. Its ``reason`` says why. 'auto' leaves
    out 'bloom', which adds indices that nobody holds: each costs rows in every later step of the round, and
    at any size where bytes matter the sketch is several times shorter anyway."""
    match encoding:
        case "identity":
            return Identity(domain)
        case "bloom":
            return Bloom(domain, capacity, seed, false_positive_rate)
        case "sketch":
            return Sketch(domain, capacity, seed)
        case "whole":
            return Whole(domain)
        case "auto":
            return _shortest(domain, capacity, seed)
    raise ParameterError(f"no encoding {encoding!r}; there are {', '.join(ENCODINGS)}")


def _shortest(domain: int, capacity: int, seed: bytes) -> Encoding:
    table = Sketch(domain, capacity, seed)
    sketch_bytes, identity_bytes = table.length * table.ring.word_bytes, 4 * domain
    if domain <= LARGEST_IDENTITY and identity_bytes <= sketch_bytes:
        why = f"one cell for each of {domain} indices takes {identity_bytes} bytes, a sketch {sketch_bytes}"
        return Identity(domain, reason=why)
    why = (
        f"a sketch for {capacity} elements takes {sketch_bytes} bytes, "
        f"one cell for each of {domain} indices {identity_bytes}"
    )
    return replace(table, reason=why)


SUM_LABEL = "union"
DEFAULT_FALSE_POSITIVE_RATE = 1e-4


class UnionParams(Checked, frozen=True):
    """Which sets are united, and how they are encoded. ``seed`` is fresh for every round."""

    domain: Annotated[int, Meta(ge=1)]
    encoding: Literal["identity", "bloom", "sketch", "whole"]
    capacity: Annotated[int, Meta(ge=1, le=2**40)]
    seed: Annotated[bytes, Meta(min_length=32, max_length=32)]
    false_positive_rate: Annotated[float, Meta(gt=0, lt=1)] = DEFAULT_FALSE_POSITIVE_RATE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain > LARGEST_DOMAIN:
            raise ParameterError(f"a domain has at most 2^63 indices, not {self.domain}")

    def build(self) -> Encoding:
        return choose(self.encoding, self.domain, self.capacity, self.seed, self.false_positive_rate)

    def sum_params(self) -> SumParams:
        """The secure sum that this union runs over."""
        encoding = self.build()
        return SumParams(
            label=SUM_LABEL,
            ring=encoding.ring.name,  # type: ignore[arg-type]
            min_contributors=1,
            layout=Layout(dense=encoding.length),
        )

    def context(self) -> bytes:
        """Masks are bound to it: clients that were told different parameters add up to noise."""
        return digest("union", msgspec.msgpack.encode(self))
