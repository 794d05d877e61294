"""Private set union: the union of the clients' index sets, and nothing else (spec 9)."""

from sfsl.union.encoding import Encoding, hash_strings
from sfsl.union.protocol import (
    UnionClient,
    UnionParams,
    UnionResult,
    UnionServer,
    choose,
    planned_capacity,
    private_set_union,
)

__all__ = [
    "Encoding", "UnionClient", "UnionParams", "UnionResult", "UnionServer", "choose", "hash_strings",
    "planned_capacity", "private_set_union",
]  # fmt: skip
