"""Makes log.json: entries, heads, proofs and what is refused, from the code (spec log).

python tests/vectors/make_log.py            write the file
python tests/vectors/make_log.py --check    fail if it differs from what the code gives
"""

import sys
from collections.abc import Sequence
from pathlib import Path

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec

from sfsl.crypto.merkle import Tree
from sfsl.crypto.secret import Identity, Secret
from sfsl.service.log import leaf_of, sign_head, vouch
from sfsl.service.messages import CODEC, LogEntry, LogHead, LogProof
from sfsl.service.signing import client_id
from vectors.values import Json, some
from vectors.vector_file import write_or_check

PLACE = Path(__file__).parent / "log.json"
NOW = 1_800_000_000_000
DEPLOYMENT = some("log deployment", 16)
LOG, AUTHORITY, WITNESS, STRANGER = (
    Identity(Secret(some(f"log {who}"))) for who in ("key", "authority", "witness", "stranger")
)
CLIENTS = [Identity(Secret(some(f"log client {number}"))) for number in range(11)]
ENTRIES = [vouch(AUTHORITY, DEPLOYMENT, one.public) for one in CLIENTS]
TREE = Tree(map(leaf_of, ENTRIES))
TRUST: Json = {
    "deployment": DEPLOYMENT.hex(),
    "log": LOG.public.hex(),
    "authorities": [AUTHORITY.public.hex()],
    "witnesses": [WITNESS.public.hex()],
    "least-witnesses": 1,
}


def head(size: int, tree: Tree = TREE, *, by: Identity = LOG, witness: Identity | None = WITNESS) -> LogHead:
    signed = sign_head(by, LogHead(DEPLOYMENT, size, tree.root_at(size), NOW + size))
    return signed if witness is None else sign_head(witness, signed)


def proof(of: Sequence[int], size: int, since: int, tree: Tree = TREE, /, **changes: object) -> LogProof:
    made = LogProof(
        head(size, tree),
        tree.consistency(since, size),
        tuple(of),
        tuple(ENTRIES[place] for place in of),
        tree.proof(of, size) if of else b"",
    )
    return msgspec.structs.replace(made, **changes)


def case(name: str, made: LogProof, known: LogHead | None, places: Sequence[int], error: str = "") -> Json:
    return {
        "name": name,
        "known": None if known is None else CODEC.encode(known).hex(),
        "clients": sorted(client_id(CLIENTS[place].public) for place in places),
        "proof": CODEC.encode(made).hex(),
    } | ({"error": error} if error else {})


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def content() -> Json:
    forged = Tree([leaf_of(LogEntry(STRANGER.public)), *map(leaf_of, ENTRIES[1:])])
    some_of = (0, 3, 4, 10)
    unvouched = (msgspec.structs.replace(ENTRIES[0], voucher=b""), *(ENTRIES[one] for one in some_of[1:]))
    return {
        "trust": TRUST,
        "entries": [
            {"public_key": one.public_key.hex(), "voucher": one.voucher.hex(), "leaf": leaf_of(one).hex()}
            for one in ENTRIES
        ],
        "roots": [TREE.root_at(size).hex() for size in range(len(ENTRIES) + 1)],
        "taken": [
            case("a first head", proof((), 5, 0), None, ()),
            case("the same head", proof((), 5, 5), head(5), ()),
            case("one member", proof((2,), 5, 0), None, (2,)),
            case("a cohort, and a log that has grown", proof(some_of, 11, 5), head(5), some_of),
            case("from a size that is a power of two", proof(some_of, 11, 4), head(4), some_of),
            case("everyone", proof(range(11), 11, 10), head(10), range(11)),
        ],
        "refused": [
            case("rewritten", proof((), 11, 5, forged), head(5), (), "Forked"),
            case("rewritten at the same size", proof((), 5, 5, forged), head(5), (), "Forked"),
            case("rolled back", proof((), 4, 0), head(5), (), "Forked"),
            case("without a proof", proof((), 11, 5, consistency=b""), head(5), (), "Forked"),
            case(
                "by another key", proof((), 5, 0, head=head(5, by=STRANGER)), None, (), "AuthenticationFailed"
            ),
            case("not witnessed", proof((), 5, 0, head=head(5, witness=None)), None, (), "Refused"),
            case(
                "a stranger's witness", proof((), 5, 0, head=head(5, witness=STRANGER)), None, (), "Refused"
            ),
            case("one member left out", proof((0, 3), 11, 0), None, (0, 3, 4), "AuthenticationFailed"),
            case("another member", proof((0, 4), 11, 0), None, (0, 3), "AuthenticationFailed"),
            case(
                "no voucher", proof(some_of, 11, 0, entries=unvouched), None, some_of, "AuthenticationFailed"
            ),
            case(
                "a hash too many", proof((2,), 5, 0, inclusion=bytes(96 + 32)), None, (2,), "InvalidMessage"
            ),
            case("another place", proof((2,), 5, 0, places=(1,)), None, (2,), "AuthenticationFailed"),
            case(
                "a hash too few",
                proof((2,), 5, 0, inclusion=TREE.proof((2,), 5)[:-32]),
                None,
                (2,),
                "InvalidMessage",
            ),
            case(
                "one bit of a hash",
                proof((2,), 5, 0, inclusion=flipped(TREE.proof((2,), 5))),
                None,
                (2,),
                "AuthenticationFailed",
            ),
            *(
                case(
                    name,
                    proof((), 11, 5, consistency=changed(TREE.consistency(5, 11))),
                    head(5),
                    (),
                    "Forked",
                )
                for name, changed in (
                    ("one bit of the proof of growth", flipped),
                    ("a hash less in the proof of growth", lambda made: made[:-32]),
                    ("a hash more in the proof of growth", lambda made: made + bytes(32)),
                    ("a byte more in the proof of growth", lambda made: made + b"\0"),
                )
            ),
        ],
    }


def main(arguments: Sequence[str]) -> int:
    return write_or_check(arguments, __doc__, PLACE, content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
