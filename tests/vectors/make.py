"""Makes our own known-answer files from the code. Run it when the protocol's version changes, not before.

    python tests/vectors/make.py            write the files
    python tests/vectors/make.py --check    fail if they differ from what the code gives

The other files of this folder are published vectors, typed in from their sources.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from sfsl.codec import pack
from sfsl.crypto.ring import F31, RINGS, MaskStream, _counter_mode
from sfsl.crypto.secret import (
    PRIME,
    SHARE_BYTES,
    Identity,
    Interpolation,
    KeyPair,
    Secret,
    channel_keys,
    derive,
    digest,
    frame,
    pair_mask_key,
    parse_share,
    seal,
    split,
)
from sfsl.secagg import Layout, TableShape, plan_graph
from sfsl.secagg.graph import random_cycles, seed_of
from sfsl.secagg.masking import pack_requesters
from sfsl.secagg.messages import Keys, Member, commitment, request_parts, self_mask_key, sum_context
from sfsl.secagg.tree import Tree
from vectors.make_codec import codec
from vectors.make_round import round_, told
from vectors.values import Json, Recorder, plain, some

HERE = Path(__file__).parent
ORIGIN = "sfsl, made by tests/vectors/make.py"


# -- primitives ------------------------------------------------------------------------------------


def labels() -> Json:
    framed = [
        ("channel", []),
        ("x", [b""]),
        ("x", [b"", b""]),
        ("x", [b"ab", b"c"]),
        ("sign keys", [b"\x00" * 5]),
    ]
    same_bytes_elsewhere = [
        [("x", [b"ab", b"c"]), ("x", [b"a", b"bc"])],
        [("x", []), ("x", [b""])],
        [("x", [b""]), ("x", [b"", b""])],
        [("ab", [b"c"]), ("a", [b"bc"])],
        [("sum", [b"a"]), ("roster", [b"a"])],
        [("a", [frame("b")]), ("a", [frame("c")])],
    ]
    secret, bound, context = some("labels secret"), some("labels binding"), some("labels context")
    one, other = (KeyPair(Secret(some(f"labels key {k}"))) for k in (1, 2))
    sending, receiving = channel_keys(one, other.public, bound)
    layout = Layout(dense=3, tables=(TableShape(rows=300, width=2),))
    signer, bitmaps = Identity(Secret(some("labels identity"))), (b"\x80\x01", b"", b"\x40")

    def described(label: str, parts: Sequence[bytes]) -> Json:
        return {"label": label, "parts": plain(list(parts))}

    return {
        "frame": [described(label, parts) | {"bytes": frame(label, *parts).hex()} for label, parts in framed],
        "frames_that_differ": [[described(*one), described(*other)] for one, other in same_bytes_elsewhere],
        "derive": [
            described(label, parts)
            | {"secret": secret.hex(), "key": derive(Secret(secret), label, *parts).reveal().hex()}
            for label, parts in framed
        ],
        "digest": [
            described(label, parts) | {"digest": digest(label, *parts).hex()} for label, parts in framed
        ],
        "channel_keys": {
            "private": one.private.reveal().hex(),
            "public": one.public.hex(),
            "peer": other.public.hex(),
            "binding": bound.hex(),
            "sending": sending.reveal().hex(),
            "receiving": receiving.reveal().hex(),
        },
        "pair_mask_key": {
            "private": one.private.reveal().hex(),
            "public": one.public.hex(),
            "peer": other.public.hex(),
            "binding": bound.hex(),
            "context": context.hex(),
            "low": 3,
            "high": 260,
            "key": pair_mask_key(one, other.public, bound, context, 3, 260).reveal().hex(),
        },
        "self_mask_key": {
            "seed": secret.hex(),
            "binding": bound.hex(),
            "context": context.hex(),
            "position": 260,
            "key": self_mask_key(Secret(secret), bound, context, 260).reveal().hex(),
        },
        "commitment": {"seed": secret.hex(), "commitment": commitment(Secret(secret)).hex()},
        "sum_context": [
            {
                "label": "update",
                "layout": plain(layout),
                "participants": participants,
                "caller": caller.hex(),
                "context": sum_context("update", layout, participants, caller).hex(),
            }
            for participants, caller in (([0, 2, 260], b""), ([0, 2, 260], b"union"), (None, b""))
        ],
        "request_signature": {
            "seed": some("labels identity").hex(),
            "public": signer.public.hex(),
            "binding": bound.hex(),
            "sum": 1,
            "bitmaps": plain(bitmaps),
            "message": frame("sign request", *request_parts(bound, 1, bitmaps)).hex(),
            "signature": signer.sign("request", *request_parts(bound, 1, bitmaps)).hex(),
        },
        "public_keys": [
            {"name": name, "key": value.to_bytes(32, "little").hex()} | verdict
            for name, value, verdict in (
                ("an ordinary one", int.from_bytes(one.public, "little"), {"valid": True}),
                ("the largest", 2**255 - 20, {"valid": True}),
                ("p", 2**255 - 19, {"error": "AuthenticationFailed"}),
                ("9 written as p + 9", 2**255 - 10, {"error": "AuthenticationFailed"}),
                ("the largest of 255 bits", 2**255 - 1, {"error": "AuthenticationFailed"}),
                ("9 with the top bit set", 2**255 + 9, {"error": "AuthenticationFailed"}),
            )
        ],
    }


# Keys found by search: the first has a word equal to p among its first 1024, the second redraws twice.
REDRAWN_KEY, REDRAWN_WORD = (3996810).to_bytes(32, "big"), 525
TWICE_KEY, TWICE_WORD = bytes(range(32)), 180662058


def streams() -> Json:
    def case(ring: str, key: bytes, skip: int, count: int) -> Json:
        stream = MaskStream(Secret(key), RINGS[ring])
        stream.fill(RINGS[ring].zeros(skip))
        words = RINGS[ring].zeros(count)
        stream.fill(words)
        return {"ring": ring, "key": key.hex(), "skip": skip, "words": words.tobytes().hex()}

    key = some("streams key")
    return {
        "streams": [
            *(case(ring, key, 0, 5) for ring in RINGS),
            *(case(ring, key, 65534, 5) for ring in RINGS),
            case("f31", REDRAWN_KEY, REDRAWN_WORD - 1, 3),
        ],
        "redraw_blocks": [
            {
                "key": key.hex(),
                "position": position,
                "attempt": attempt,
                "counter": ((attempt << 96) + position).to_bytes(16, "big").hex(),
                "word": _counter_mode(Secret(key), (attempt << 96) + position).update(bytes(4)).hex(),
            }
            for position, attempt in ((0, 1), (1, 1), (0, 2), (2**33, 1))
        ],
        "redrawn": [
            {
                "about": "word 525 of this stream is p and is redrawn once",
                "key": REDRAWN_KEY.hex(),
                "position": REDRAWN_WORD,
                "word": MaskStream(Secret(REDRAWN_KEY), F31)._redraw(REDRAWN_WORD),
            },
            {
                "about": "if this word were p: its first redraw is p too, so the second counts",
                "key": TWICE_KEY.hex(),
                "position": TWICE_WORD,
                "word": MaskStream(Secret(TWICE_KEY), F31)._redraw(TWICE_WORD),
            },
        ],
        "words": [
            {"name": "largest element", "ring": "f31", "count": 1, "bytes": "feffff7f", "valid": True},
            {"name": "p itself", "ring": "f31", "count": 1, "bytes": "ffffff7f", "error": "InvalidMessage"},
            {
                "name": "top bit set",
                "ring": "f31",
                "count": 1,
                "bytes": "00000080",
                "error": "InvalidMessage",
            },
            {
                "name": "a word short",
                "ring": "z32",
                "count": 2,
                "bytes": "00000000",
                "error": "InvalidMessage",
            },
            {
                "name": "a byte over",
                "ring": "z32",
                "count": 1,
                "bytes": "0000000000",
                "error": "InvalidMessage",
            },
            {
                "name": "half a word",
                "ring": "z64",
                "count": 1,
                "bytes": "00000000",
                "error": "InvalidMessage",
            },
            {"name": "largest word", "ring": "z64", "count": 1, "bytes": "ff" * 8, "valid": True},
        ],
    }


def shamir() -> Json:
    secrets = {"ordinary": some("shamir secret"), "zero": bytes(32), "largest": b"\xff" * 32}
    splits, dealt = [], {}
    for name, secret in secrets.items():
        randomness = Recorder(f"shamir {name}")
        points = [1, 2, 3, 5, 300]
        dealt[name] = split(Secret(secret), 3, points, randomness)
        splits.append(
            {
                "name": name,
                "secret": secret.hex(),
                "threshold": 3,
                "points": points,
                "random": randomness.drawn.hex(),
                "shares": plain(dealt[name]),
            }
        )

    def opened(points: Sequence[int], shares: Sequence[bytes]) -> Json:
        secret = Interpolation(points).secret([parse_share(share) for share in shares])
        return {"points": list(points), "shares": plain(list(shares)), "secret": secret.reveal().hex()}

    a, b = dealt["ordinary"], dealt["largest"]
    wanted = commitment(Secret(secrets["ordinary"])).hex()
    top = (PRIME - 1).to_bytes(SHARE_BYTES, "big").hex()
    return {
        "prime": hex(PRIME),
        "split": splits,
        "commitment": wanted,
        "open": [
            {"name": "the first three"} | opened((1, 2, 3), a[:3]),
            {"name": "in another order"} | opened((300, 2, 5), (a[4], a[1], a[3])),
            {"name": "more than needed"} | opened((1, 2, 3, 5, 300), a),
        ],
        "open_to_another_secret": [
            {"name": "too few"} | opened((1, 2), a[:2]),
            {"name": "shares of two secrets"} | opened((1, 2, 3), (a[0], a[1], b[2])),
            {"name": "shares exchanged"} | opened((1, 2, 3), (a[1], a[0], a[2])),
        ],
        "refused": [
            {"name": "a share equal to the prime", "share": hex_share(PRIME), "error": "InvalidMessage"},
            {"name": "a share of 34 bytes", "share": "00" + hex_share(1), "error": "InvalidMessage"},
            {"name": "a share of 32 bytes", "share": "01" * 32, "error": "InvalidMessage"},
            {"name": "an empty share", "share": "", "error": "InvalidMessage"},
            {
                "name": "a result of 2^256 or more",
                "points": [1, 2],
                "shares": [top, top],
                "error": "KeyMismatch",
            },
            {"name": "a point twice", "points": [1, 1], "shares": [top, top], "error": "ParameterError"},
        ],
        "settings_refused": [
            {"threshold": 1, "points": [1, 2, 3]},
            {"threshold": 4, "points": [1, 2, 3]},
            {"threshold": 2, "points": [1, 1, 3]},
            {"threshold": 2, "points": [0, 1, 3]},
        ],
    }


def hex_share(value: int) -> str:
    return value.to_bytes(SHARE_BYTES, "big").hex()


def sealing() -> Json:
    key, round_id, text = some("sealing key"), some("sealing round", 16), some("sealing plaintext", 66)
    box = seal(Secret(key), text, "shares", round_id, 3, 260)
    honest = {
        "key": key.hex(),
        "kind": "shares",
        "round_id": round_id.hex(),
        "sender": 3,
        "receiver": 260,
        "box": box.hex(),
    }
    meddled = {
        "another key": {"key": some("another").hex()},
        "another kind": {"kind": "keys"},
        "another round": {"round_id": some("another", 16).hex()},
        "another sender": {"sender": 4},
        "another receiver": {"receiver": 259},
        "reflected to the sender": {"sender": 260, "receiver": 3},
        "a changed ciphertext": {"box": bytes((box[0] ^ 1, *box[1:])).hex()},
        "a changed tag": {"box": bytes((*box[:-1], box[-1] ^ 1)).hex()},
        "a byte short": {"box": box[:-1].hex()},
        "less than a tag": {"box": box[:15].hex()},
        "nothing": {"box": ""},
    }
    empty = seal(Secret(key), b"", "shares", round_id, 0, 1)
    return {
        "open": [
            honest | {"plaintext": text.hex()},
            honest | {"sender": 0, "receiver": 1, "box": empty.hex(), "plaintext": ""},
        ],
        "refused": [
            {"name": name} | honest | change | {"error": "AuthenticationFailed"}
            for name, change in meddled.items()
        ],
    }


def packing() -> Json:
    def packed(*numbers: int, domain: int) -> Json:
        data = pack(np.array(numbers, np.int64), domain)
        return {"numbers": list(numbers), "domain": domain, "bytes": data.hex()}

    def told_of(name: str, first: str, *others: str) -> Json:
        """The first one's rows are those where it has a 1."""
        asked = np.array([[bit == "1" for bit in line] for line in (first, *others)])
        bits = "".join(bit for line in others for bit, own in zip(line, first, strict=True) if own == "1")
        return {"name": name, "bits": bits, "bytes": pack_requesters([asked], len(asked))[0].hex()}

    refused_sets = [
        ("not ascending", 2, 16, "50c0"),
        ("one twice", 2, 16, "90c0"),
        ("a bit beyond the low bits", 2, 16, "89c0"),
        ("a bit beyond the high bits", 2, 16, "88d0"),
        ("one too few", 2, 16, "8880"),
        ("one too many", 2, 16, "88e0"),
        ("a byte short", 2, 16, "88"),
        ("a byte over", 2, 16, "88c000"),
        ("a number beyond the domain", 2, 10, "b050"),
        ("a bit beyond the bitmap", 5, 9, "f0c0"),
        ("a bitmap of four where five are said", 5, 9, "f000"),
        ("a bitmap of a sparse set", 2, 16, "6000"),
        ("an empty set with a byte", 0, 16, "00"),
        ("more numbers than there are", 17, 16, "ffff80"),
    ]
    refused = [
        ("no row, and a byte", 0, b"\x00"),
        ("no row, and an empty set", 0, told(0, 0, b"")),
        ("nothing", 16, b""),
        ("the bits themselves", 16, b"\x60\x00"),
        ("a head cut short", 16, told(0, 0, b"")[:-1]),
        ("neither ones nor zeros", 16, told(2, 2, b"\x88\xc0")),
        ("ones listed, which are more", 16, told(0, 9, b"\xff\x80")),
        ("zeros listed, which are more", 16, told(1, 9, b"\xff\x80")),
        ("zeros listed, as many as ones", 16, told(1, 8, b"\xff\x00")),
        ("all ones listed", 3, told(0, 3, b"\xe0")),
        ("all zeros listed", 3, told(1, 3, b"\xe0")),
        ("no ones listed, and a byte", 16, told(0, 0, b"\x00")),
        ("more than there are", 16, told(0, 2**64 - 1, b"\xff\xff")),
        ("another number than said", 16, told(0, 3, b"\x88\xc0")),
        ("a byte short", 16, told(0, 2, b"\x88")),
        ("a byte over", 16, told(0, 2, b"\x88\xc0\x00")),
        ("a bit beyond the end", 9, told(0, 4, b"\xf0\x40")),
        ("not ascending", 16, told(0, 2, b"\x50\xc0")),
    ]
    return {
        "sets": [
            packed(domain=5),
            packed(0, domain=1),
            packed(1, 2, domain=16),
            packed(0, 15, domain=16),
            packed(0, 4, 5, 15, domain=16),
            packed(0, 2, 3, 4, 15, domain=16),
            packed(*range(9), domain=9),
            packed(0, 1, 2**31, 2**40 - 1, domain=2**40),
            packed(2**63 - 1, domain=2**63),
        ],
        "sets_refused": [
            {"name": name, "count": count, "domain": domain, "bytes": data, "error": "InvalidMessage"}
            for name, count, domain, data in refused_sets
        ],
        "requesters": [
            told_of("no row", "000", "101", "111"),
            told_of("no one else", "101"),
            told_of("no one else asked", "1011", "0100", "0000"),
            told_of("everyone asked for everything", "1111", "1111", "1111"),
            told_of("few ones", "11111111", "01100000", "00000000"),
            told_of("few zeros", "11111111", "10011111", "11111111"),
            told_of("as many ones as zeros", "1111", "1010", "0110"),
            told_of("five bits", "11111", "10100"),
            told_of("more zeros", "10101", "10001", "00100"),
            told_of("more ones", "10101", "10001", "10101"),
        ],
        "requesters_refused": [
            {"name": name, "size": size, "bytes": data.hex(), "error": "InvalidMessage"}
            for name, size, data in refused
        ],
    }


def graph() -> Json:
    seed, root = some("graph round", 16), some("graph root")
    return {
        "cycles": [
            {
                "round_id": seed.hex(),
                "root": root.hex(),
                "clients": clients,
                "neighbours": neighbours,
                "peers": plain(list(random_cycles(clients, neighbours, seed_of(seed, root)))),
            }
            for clients, neighbours in ((3, 2), (5, 4), (10, 2), (12, 6))
        ],
        "trees": [tree(count, positions) for count, positions in TREES],
        "refused": [
            {"clients": 10, "neighbours": 3, "error": "ParameterError"},
            {"clients": 10, "neighbours": 10, "error": "ParameterError"},
            {"clients": 10, "neighbours": 0, "error": "ParameterError"},
        ],
        "plans": [
            settings | plain_plan(plan_graph(**settings))
            for settings in (
                {"clients": 40, "dropout": 0.1, "corruption": 0.05, "failure": 1e-2},
                {"clients": 60, "dropout": 0.0, "corruption": 0.2, "failure": 1e-4},
                {"clients": 60, "dropout": 0.2, "corruption": 0.0, "failure": 1e-3},
            )
        ],
        "plans_refused": [
            {"clients": 20, "dropout": 0.4, "corruption": 0.4, "failure": 1e-9, "error": "ParameterError"},
            {"clients": 20, "dropout": 0.5, "corruption": 0.5, "failure": 0.1, "error": "ParameterError"},
        ],
    }


TREES = ((2, [0]), (3, [2]), (5, [1, 4]), (6, [0, 1, 2, 3, 4, 5]), (11, [0, 7, 10]), (13, [3, 4, 12]))


def tree(count: int, positions: list[int]) -> Json:
    """All keys of a roster by their seeds, some positions, and the proof for these."""
    names = [f"member {count} {place:02d}" for place in range(count)]
    keys = [Keys(name, some(f"{name} k"), (some(f"{name} m"),), (some(f"{name} c"),), None) for name in names]
    made = Tree([Member(place, one) for place, one in enumerate(keys)])
    proof = made.proof(positions)
    return {
        "keys": plain(keys),
        "root": made.root.hex(),
        "positions": positions,
        "proof": proof.hex(),
        "refused": [
            {"name": name, "proof": data.hex()}
            for name, data in (
                ("a hash more", proof + bytes(32)),
                ("a byte more", proof + b"\x00"),
                ("a hash less", proof[:-32]),
                ("a hash changed", bytes(32) + proof[32:]),
            )
            if data != proof
        ],
    }


def plain_plan(plan: Any) -> Json:
    return {
        "neighbours": plan.neighbours,
        "threshold": plan.threshold,
        "opened": float(f"{plan.opened:.6g}"),
        "split": float(f"{plan.split:.6g}"),
        "stuck": float(f"{plan.stuck:.6g}"),
    }


FILES: dict[str, Callable[[], Json]] = {
    "labels.json": labels,
    "streams.json": streams,
    "shamir.json": shamir,
    "sealing.json": sealing,
    "packing.json": packing,
    "graph.json": graph,
    "codec.json": codec,
    "round.json": round_,
}


def text(name: str) -> str:
    return json.dumps({"version": 1, "origin": ORIGIN} | FILES[name](), indent=1, ensure_ascii=True) + "\n"


def main(arguments: Sequence[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    stale = []
    for name in FILES:
        path = HERE / name
        if not arguments:
            path.write_text(text(name))
        elif not path.exists() or path.read_text() != text(name):
            stale.append(name)
    if stale:
        sys.stderr.write(f"these differ from what the code gives: {', '.join(stale)}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
