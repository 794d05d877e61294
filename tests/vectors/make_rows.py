"""Makes rows.json: commitments to rows, proofs of some of them, and what is refused, from the code (spec
round 3.1).

python tests/vectors/make_rows.py            write the file
python tests/vectors/make_rows.py --check    fail if it differs from what the code gives
"""

import sys
from collections.abc import Sequence
from pathlib import Path

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from sfsl.rounds.commitment import HASH, CommittedRows
from vectors.values import Json, some
from vectors.vector_file import write_or_check

PLACE = Path(__file__).parent / "rows.json"
BINDING = some("rows binding")
# Rows and width of each table's union; some have levels with a hash that has no partner.
SHAPES = ((11, 3), (6, 2))
SOME = ((0, 3, 4, 10), (5,))


def table(rows: int, width: int, kind: str) -> np.ndarray:
    return (np.arange(rows * width).reshape(rows, width) / 8 - rows).astype(kind)


def case(
    name: str,
    places: Sequence[Sequence[int]],
    shapes: Sequence[tuple[int, int]] = SHAPES,
    kind: str = "<f4",
    *,
    proves: bool = True,
) -> Json:
    tables = [table(*shape, kind) for shape in shapes]
    made = CommittedRows(tables, BINDING, proves=proves)
    asked = [np.isin(np.arange(len(one)), some) for one, some in zip(tables, places, strict=True)]
    return {
        "name": name,
        "union": [one.tobytes().hex() for one in tables],
        "shapes": [{"rows": rows, "width": width} for rows, width in shapes],
        "places": [list(some) for some in places],
        "rows": [one[some].tobytes().hex() for one, some in zip(tables, asked, strict=True)],
        "root": made.root.hex(),
        "proof": made.proof(asked).hex(),
    }


def swapped(data: bytes, size: int) -> bytes:
    """The first two pieces of this size."""
    return data[size : 2 * size] + data[:size] + data[2 * size :]


def refused() -> list[Json]:
    honest = case("", SOME)
    rows, proof, root = honest["rows"], bytes.fromhex(honest["proof"]), bytes.fromhex(honest["root"])
    first, row = bytes.fromhex(rows[0]), 4 * SHAPES[0][1]
    other = CommittedRows([table(*shape, "<f4") for shape in SHAPES], some("another binding"), proves=True)
    asked = [np.isin(np.arange(count), some) for (count, _), some in zip(SHAPES, SOME, strict=True)]

    def but(name: str, **changes: object) -> Json:
        return honest | {"name": name} | changes

    def proved(name: str, changed: bytes) -> Json:
        return but(name, proof=changed.hex())

    return [
        but("one bit of a row", rows=[(first[:-1] + bytes([first[-1] ^ 1])).hex(), rows[1]]),
        but("dead rows", rows=[bytes(len(first)).hex(), rows[1]]),
        but("two rows swapped", rows=[swapped(first, row).hex(), rows[1]]),
        but("rows of other places", places=[[0, 3, 5, 10], [5]]),
        but("another root", root=bytes(HASH).hex()),
        but("one bit of the root", root=(bytes([root[0] ^ 1]) + root[1:]).hex()),
        but("the commitment of another session", root=other.root.hex(), proof=other.proof(asked).hex()),
        proved("one bit of the proof", proof[:-1] + bytes([proof[-1] ^ 1])),
        proved("two hashes swapped", swapped(proof, HASH)),
        proved("no proof", b""),
        proved("a hash less", proof[:-HASH]),
        proved("a hash more", proof + bytes(HASH)),
        proved("a byte less", proof[:-1]),
        proved("a byte more", proof + b"\0"),
        case("a proof of no rows", ((), ())) | {"proof": bytes(HASH).hex()},
    ]


def content() -> Json:
    return {
        "binding": BINDING.hex(),
        "taken": [
            case("some rows of two tables", SOME),
            case("rows beside each other", ((0, 1, 6, 7), (0, 1))),
            case("the last row alone", ((), (5,))),
            case("every row", (range(11), range(6))),
            case("no row", ((), ())),
            case("one table of one row", ((0,),), ((1, 2),)),
            case("half precision", SOME, kind="<f2"),
        ],
        "digests": [case("outside active mode", SOME, proves=False)],
        "refused": refused(),
    }


def main(arguments: Sequence[str]) -> int:
    return write_or_check(arguments, __doc__, PLACE, content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
