"""Public parameters of a private set union (spec 9.1)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sfsl.arrays import LARGEST_DOMAIN
from sfsl.codec import Checked
from sfsl.crypto.secret import digest
from sfsl.errors import ParameterError
from sfsl.secagg.params import Layout, SumParams
from sfsl.union.encoding import Encoding
from sfsl.union.encodings import choose

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
