"""Private set union: the union of the clients' index sets, and nothing else (spec 9)."""

from sfsl.union.client import UnionClient
from sfsl.union.encoding import Encoding
from sfsl.union.encodings import choose
from sfsl.union.facade import UnionResult, private_set_union
from sfsl.union.params import UnionParams
from sfsl.union.server import UnionServer
from sfsl.union.sizing import planned_capacity
from sfsl.union.strings import hash_strings

__all__ = [
    "Encoding",
    "UnionClient",
    "UnionParams",
    "UnionResult",
    "UnionServer",
    "choose",
    "hash_strings",
    "planned_capacity",
    "private_set_union",
]
