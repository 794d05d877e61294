"""Every case of every vector file against the code, and whole sessions against a second client too."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature, InvalidTag

from sfsl import errors
from sfsl.codec import pack, unpack
from sfsl.crypto import ring as prg
from sfsl.crypto import secret as aead
from sfsl.crypto import secret as kdf
from sfsl.crypto.ring import F31, RINGS, MaskStream, ring_named
from sfsl.crypto.secret import (
    PRIME,
    Ed25519PublicKey,
    Identity,
    Interpolation,
    KeyPair,
    Secret,
    channel_keys,
    pair_mask_key,
    parse_share,
    require_canonical,
    require_contributory,
    split,
    unseal,
    verify,
)
from sfsl.errors import AuthenticationFailed, KeyMismatch, ParameterError, SfslError
from sfsl.secagg import Client, Layout, Policy, Server, SessionParams, Start, TableShape, plan_graph
from sfsl.secagg.graph import random_cycles, seed_of
from sfsl.secagg.masking import parse_requesters
from sfsl.secagg.messages import (
    CODEC,
    InboundShares,
    Keys,
    Member,
    Roster,
    SignedRequest,
    commitment,
    request_parts,
    require_seed,
    self_mask_key,
    size_limit,
    sum_context,
)
from sfsl.secagg.tree import Tree, leaf, root_of
from sfsl.testing import SeededRandomness
from vectors import make, reference
from vectors.values import plain, sum_of

HERE = Path(__file__).parent
hexed = bytes.fromhex


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HERE / name).read_text())
    return content


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["name"].replace(" ", "-")) for case in cases]


def error(name: str) -> type[SfslError]:
    kind: type[SfslError] = getattr(errors, name)
    return kind


class Tape:
    """A client's randomness, read from a file."""

    def __init__(self, data: str) -> None:
        self.rest = hexed(data)

    def bytes(self, count: int, /) -> bytes:
        taken, self.rest = self.rest[:count], self.rest[count:]
        assert len(taken) == count
        return taken


@pytest.mark.parametrize("path", sorted(HERE.glob("*.json")), ids=lambda path: path.name)
def test_every_file_has_a_version_and_an_origin(path: Path) -> None:
    content = load(path.name)
    assert content["version"] == 1
    assert len(content["origin"]) > 8
    assert (content["origin"] == make.ORIGIN) == (path.name in make.FILES)


@pytest.mark.parametrize("name", make.FILES)
def test_our_own_files_are_what_the_code_gives(name: str) -> None:
    assert make.text(name) == (HERE / name).read_text()


# -- published vectors -----------------------------------------------------------------------------


def test_x25519() -> None:
    vectors = load("rfc7748.json")
    for case in vectors["function"]:
        assert KeyPair(Secret(hexed(case["scalar"]))).agree(hexed(case["u"])).reveal().hex() == case["out"]
    outs = {case["times"]: case["out"] for case in vectors["iterated"]}
    scalar = u = (9).to_bytes(32, "little")
    for times in range(1, max(outs) + 1):
        scalar, u = KeyPair(Secret(scalar)).agree(u).reveal(), scalar
        assert outs.get(times, scalar.hex()) == scalar.hex()
    case = vectors["agreement"]
    alice, bob = (KeyPair(Secret(hexed(case[f"{name}_private"]))) for name in ("alice", "bob"))
    assert (alice.public.hex(), bob.public.hex()) == (case["alice_public"], case["bob_public"])
    assert alice.agree(bob.public).reveal().hex() == case["shared"]
    assert bob.agree(alice.public).reveal().hex() == case["shared"]


@pytest.mark.parametrize("u", load("rfc7748.json")["small_order"] + load("rfc7748.json")["wrong_length"])
def test_x25519_refuses_keys_of_small_order_and_wrong_length(u: str) -> None:
    with pytest.raises(AuthenticationFailed):
        KeyPair(Secret(hexed(load("rfc7748.json")["agreement"]["alice_private"]))).agree(hexed(u))
    with pytest.raises(AuthenticationFailed):
        require_contributory(hexed(u))


def test_hkdf() -> None:
    vectors = load("rfc5869.json")

    def okm(case: dict[str, Any]) -> str:
        salt, info, secret = hexed(case["salt"]), hexed(case["info"]), hexed(case["ikm"])
        theirs = reference.hkdf(secret, salt, info, case["length"])
        hkdf = kdf.HKDF(algorithm=kdf.SHA256(), length=case["length"], salt=salt, info=info)
        assert hkdf.derive(secret) == theirs
        return theirs.hex()

    for case in vectors["cases"]:
        assert okm(case) == case["okm"]
    for case in vectors["differ"]:
        original = vectors["cases"][case["case"]]
        assert okm(original | case["change"]) != original["okm"]
    framed = kdf.frame("label", b"part")
    assert kdf.derive(Secret(b"ikm"), "label", b"part").reveal() == reference.hkdf(b"ikm", b"", framed, 32)


def test_aes_counter_mode() -> None:
    case = load("sp800_38a.json")

    def encrypt(counter: str) -> str:
        stream = prg._counter_mode(Secret(hexed(case["key"])), int(counter, 16))
        return stream.update(hexed(case["plaintext"])).hex()

    assert encrypt(case["counter"]) == case["ciphertext"]
    for other in case["differ"]:
        assert encrypt(other["counter"]) != case["ciphertext"]
    # The second cipher: block by block, as the streams of the reference are made.
    blocks = b"".join(reference.block(hexed(case["key"]), int(case["counter"], 16) + j) for j in range(4))
    masked = bytes(a ^ b for a, b in zip(blocks, hexed(case["plaintext"]), strict=True))
    assert masked.hex() == case["ciphertext"]


def test_aes_gcm() -> None:
    vectors = load("gcm.json")

    def parts(case: dict[str, Any], what: str) -> tuple[bytes, bytes, bytes]:
        return hexed(case["nonce"]), hexed(case[what]), hexed(case["header"])

    for case in vectors["cases"]:
        cipher = aead.AESGCM(hexed(case["key"]))
        assert cipher.encrypt(*parts(case, "plaintext")).hex() == case["box"]
        assert cipher.decrypt(*parts(case, "box")).hex() == case["plaintext"]
    for change in vectors["refused"]:
        case = vectors["cases"][change["case"]] | change["change"]
        with pytest.raises(InvalidTag):
            aead.AESGCM(hexed(case["key"])).decrypt(*parts(case, "box"))


def test_ed25519() -> None:
    vectors = load("rfc8032.json")
    for case in vectors["cases"]:
        identity = Identity(Secret(hexed(case["seed"])))
        assert identity.public.hex() == case["public"]
        assert identity._key.sign(hexed(case["message"])).hex() == case["signature"]
        public = Ed25519PublicKey.from_public_bytes(identity.public)
        public.verify(hexed(case["signature"]), hexed(case["message"]))
    for change in vectors["refused"]:
        case = vectors["cases"][change["case"]] | change["change"]
        with pytest.raises((InvalidSignature, ValueError)):
            Ed25519PublicKey.from_public_bytes(hexed(case["public"])).verify(
                hexed(case["signature"]), hexed(case["message"])
            )


# -- our own primitives ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", [kdf, reference], ids=["code", "reference"])
def test_labels(side: Any) -> None:
    vectors = load("labels.json")

    def inputs(case: dict[str, Any]) -> tuple[Any, ...]:
        return case["label"], *map(hexed, case["parts"])

    for case in vectors["frame"]:
        assert side.frame(*inputs(case)).hex() == case["bytes"]
    for one, other in vectors["frames_that_differ"]:
        assert side.frame(*inputs(one)) != side.frame(*inputs(other))
    for case in vectors["digest"]:
        assert side.digest(*inputs(case)).hex() == case["digest"]
    for case in vectors["derive"]:
        secret = hexed(case["secret"])
        key = side.derive(Secret(secret) if side is kdf else secret, *inputs(case))
        assert (key.reveal() if side is kdf else key).hex() == case["key"]


def test_derived_keys() -> None:
    vectors = load("labels.json")
    case = vectors["channel_keys"]
    pair, peer, bound = KeyPair(Secret(hexed(case["private"]))), hexed(case["peer"]), hexed(case["binding"])
    assert pair.public.hex() == case["public"]
    sending, receiving = channel_keys(pair, peer, bound)
    assert (sending.reveal().hex(), receiving.reveal().hex()) == (case["sending"], case["receiving"])

    case = vectors["pair_mask_key"]
    context = hexed(case["context"])
    key = pair_mask_key(pair, peer, bound, context, case["low"], case["high"])
    assert key.reveal().hex() == case["key"]
    elsewhere = pair_mask_key(pair, peer, bound, context, case["low"], case["high"] + 1)
    assert elsewhere.reveal().hex() != case["key"]

    case = vectors["self_mask_key"]
    seed = Secret(hexed(case["seed"]))
    assert self_mask_key(seed, bound, context, case["position"]).reveal().hex() == case["key"]
    assert self_mask_key(seed, bound, bound, case["position"]).reveal().hex() != case["key"]
    assert (
        commitment(Secret(hexed(vectors["commitment"]["seed"]))).hex() == vectors["commitment"]["commitment"]
    )
    for case in vectors["sum_context"]:
        parts = (make_layout(case["layout"]), case["participants"], hexed(case["caller"]))
        assert sum_context(case["label"], *parts).hex() == case["context"]
    assert len({case["context"] for case in vectors["sum_context"]}) == len(vectors["sum_context"])


def test_request_signatures() -> None:
    case = load("labels.json")["request_signature"]
    identity = Identity(Secret(hexed(case["seed"])))
    bitmaps = tuple(map(hexed, case["bitmaps"]))
    parts = request_parts(hexed(case["binding"]), case["sum"], bitmaps)
    theirs = (hexed(case["binding"]), bytes((case["sum"],)), *bitmaps)
    assert identity.public.hex() == case["public"]
    assert reference.frame("sign request", *theirs).hex() == case["message"]
    assert identity.sign("request", *parts).hex() == case["signature"]
    reference.verify(identity.public, hexed(case["signature"]), "request", *theirs)
    for other in (
        request_parts(hexed(case["binding"]), 0, bitmaps),
        request_parts(hexed(case["binding"]), case["sum"], bitmaps[:1]),
        request_parts(hexed(case["binding"]), case["sum"], (b"".join(bitmaps), b"", b"")),
    ):
        with pytest.raises(AuthenticationFailed):
            verify(identity.public, hexed(case["signature"]), "request", *other)
        with pytest.raises(reference.Refused):
            reference.verify(identity.public, hexed(case["signature"]), "request", *other)


@pytest.mark.parametrize("case", named(load("labels.json")["public_keys"]))
def test_public_keys_are_canonical(case: dict[str, Any]) -> None:
    assert reference.canonical(hexed(case["key"])) == case.get("valid", False)
    if "valid" in case:
        require_canonical(hexed(case["key"]))
        return
    with pytest.raises(error(case["error"])):
        require_canonical(hexed(case["key"]))


def make_layout(fields: dict[str, Any]) -> Layout:
    layout: Layout = msgspec.convert(fields, Layout)
    return layout


def test_streams() -> None:
    vectors = load("streams.json")
    for case in vectors["streams"]:
        ring = RINGS[case["ring"]]
        words = ring.zeros(case["skip"] + len(hexed(case["words"])) // ring.word_bytes)
        MaskStream(Secret(hexed(case["key"])), ring).fill(words)
        assert words[case["skip"] :].tobytes().hex() == case["words"]
        if case["skip"] < 1000:
            theirs = reference.stream(hexed(case["key"]), case["ring"], len(words))
            assert theirs == words.tolist()
    for case in vectors["redraw_blocks"]:
        counter = (case["attempt"] << 96) + case["position"]
        assert counter.to_bytes(16, "big").hex() == case["counter"]
        stream = prg._counter_mode(Secret(hexed(case["key"])), counter)
        assert stream.update(bytes(4)).hex() == case["word"]
        assert reference.block(hexed(case["key"]), counter)[:4].hex() == case["word"]
    for case in vectors["redrawn"]:
        key, position = hexed(case["key"]), case["position"]
        assert MaskStream(Secret(key), F31)._redraw(position) == case["word"]
        assert reference.element(key, position, F31.modulus) == case["word"]


def test_the_redraw_vectors_redraw() -> None:
    """Otherwise they would test nothing."""
    once, twice = load("streams.json")["redrawn"]
    words = RINGS["z32"].zeros(once["position"] + 1)
    MaskStream(Secret(hexed(once["key"])), RINGS["z32"]).fill(words)
    assert int(words[-1]) & F31.modulus == F31.modulus
    first = reference.block(hexed(twice["key"]), 2**96 + twice["position"])[:4]
    assert int.from_bytes(first, "little") & F31.modulus == F31.modulus


@pytest.mark.parametrize("case", named(load("streams.json")["words"]))
def test_words_from_outside(case: dict[str, Any]) -> None:
    ring = ring_named(case["ring"])
    if "error" not in case:
        assert ring.from_bytes(hexed(case["bytes"]), case["count"]).tobytes().hex() == case["bytes"]
        return
    with pytest.raises(error(case["error"])):
        ring.from_bytes(hexed(case["bytes"]), case["count"])


def test_shamir() -> None:
    vectors = load("shamir.json")
    assert int(vectors["prime"], 16) == PRIME == reference.PRIME
    for case in vectors["split"]:
        secret, points, tape = hexed(case["secret"]), case["points"], Tape(case["random"])
        shares = split(Secret(secret), case["threshold"], points, tape)
        assert plain(shares) == case["shares"]
        assert not tape.rest
        theirs = reference.split(
            secret, case["threshold"], [point - 1 for point in points], reference.Tape(hexed(case["random"]))
        )
        assert theirs == shares
    published = hexed(vectors["commitment"])
    for case in vectors["open"]:
        require_seed(opened(case), published)
    for case in vectors["open_to_another_secret"]:
        with pytest.raises(KeyMismatch):
            require_seed(opened(case), published)


def opened(case: dict[str, Any]) -> Secret:
    secret = Interpolation(case["points"]).secret([parse_share(hexed(share)) for share in case["shares"]])
    if "secret" in case:
        assert secret.reveal().hex() == case["secret"]
        theirs = reference.reconstruct(case["points"], [hexed(share) for share in case["shares"]])
        assert theirs == int(case["secret"], 16)
    return secret


@pytest.mark.parametrize("case", named(load("shamir.json")["refused"]))
def test_shares_refused(case: dict[str, Any]) -> None:
    with pytest.raises(error(case["error"])):
        parse_share(hexed(case["share"])) if "share" in case else opened(case)


@pytest.mark.parametrize("case", load("shamir.json")["settings_refused"])
def test_sharing_settings_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        split(Secret(bytes(32)), case["threshold"], case["points"], SeededRandomness("unused"))


def box_parts(case: dict[str, Any]) -> tuple[Any, ...]:
    where = (case["kind"], hexed(case["round_id"]), case["sender"], case["receiver"])
    return Secret(hexed(case["key"])), hexed(case["box"]), *where


def test_sealing() -> None:
    for case in load("sealing.json")["open"]:
        key, box, *where = box_parts(case)
        assert unseal(key, box, *where).hex() == case["plaintext"]
        assert aead.seal(key, hexed(case["plaintext"]), *where) == box
        header = reference.frame("seal " + where[0], where[1], *map(reference.be32, where[2:]))
        theirs = reference.AESGCM(hexed(case["key"])).encrypt(bytes(12), hexed(case["plaintext"]), header)
        assert theirs == box


@pytest.mark.parametrize("case", named(load("sealing.json")["refused"]))
def test_boxes_refused(case: dict[str, Any]) -> None:
    with pytest.raises(error(case["error"])):
        unseal(*box_parts(case))


@pytest.mark.parametrize("case", load("packing.json")["sets"])
def test_packed_sets(case: dict[str, Any]) -> None:
    numbers, domain, data = case["numbers"], case["domain"], hexed(case["bytes"])
    assert pack(np.array(numbers, np.int64), domain) == data
    assert unpack(data, len(numbers), domain).tolist() == numbers
    assert reference.unpack_set(data, len(numbers), domain) == numbers
    assert reference.set_size(len(numbers), domain) == len(data)


@pytest.mark.parametrize("case", named(load("packing.json")["sets_refused"]))
def test_packed_sets_refused(case: dict[str, Any]) -> None:
    with pytest.raises(error(case["error"])):
        unpack(hexed(case["bytes"]), case["count"], case["domain"])
    with pytest.raises(reference.Refused):
        reference.unpack_set(hexed(case["bytes"]), case["count"], case["domain"])


@pytest.mark.parametrize("case", named(load("packing.json")["requesters"]))
def test_requesters(case: dict[str, Any]) -> None:
    data, bits = hexed(case["bytes"]), [int(bit) for bit in case["bits"]]
    (matrix,) = parse_requesters(data, 1, [np.arange(len(bits))])
    assert matrix.ravel().astype(int).tolist() == reference.read_requesters(data, len(bits)) == bits


@pytest.mark.parametrize("case", named(load("packing.json")["requesters_refused"]))
def test_requesters_refused(case: dict[str, Any]) -> None:
    with pytest.raises(error(case["error"])):
        parse_requesters(hexed(case["bytes"]), 1, [np.arange(case["size"])])
    with pytest.raises(reference.Refused):
        reference.read_requesters(hexed(case["bytes"]), case["size"])


def test_graph() -> None:
    vectors = load("graph.json")
    for case in vectors["cycles"]:
        settings = (case["clients"], case["neighbours"])
        seed = (hexed(case["round_id"]), hexed(case["root"]))
        assert plain(list(random_cycles(*settings, seed_of(*seed)))) == case["peers"]
        assert reference.cycles(*settings, *seed) == case["peers"]
    for case in vectors["refused"]:
        with pytest.raises(error(case["error"])):
            random_cycles(case["clients"], case["neighbours"], bytes(32))


def test_trees() -> None:
    for case in load("graph.json")["trees"]:
        count, positions, root = len(case["keys"]), case["positions"], hexed(case["root"])
        byte_fields = [bytes_of(keys) for keys in case["keys"]]
        keys = [msgspec.convert(fields, Keys) for fields in byte_fields]
        tree = Tree([Member(place, one) for place, one in enumerate(keys)])
        assert (tree.root, tree.proof(positions)) == (root, hexed(case["proof"]))
        leaves = {place: leaf(place, keys[place]) for place in positions}
        theirs = {place: byte_fields[place] for place in positions}
        assert root_of(leaves, count, hexed(case["proof"])) == root
        assert reference.root_of(theirs, count, hexed(case["proof"])) == root
        for wrong in case["refused"]:
            for found in (partial(root_of, leaves), partial(reference.root_of, theirs)):
                with suppress(errors.InvalidMessage, reference.Refused):
                    assert found(count, hexed(wrong["proof"])) != root


def bytes_of(keys: dict[str, Any]) -> dict[str, Any]:
    """The fields of keys as they were encoded."""
    many = {name: [hexed(one) for one in keys[name]] for name in ("masks", "commitments")}
    return keys | {"channel": hexed(keys["channel"])} | many


def test_graph_plans() -> None:
    vectors = load("graph.json")
    settings = ("clients", "dropout", "corruption", "failure")
    for case in vectors["plans"]:
        given = {name: case[name] for name in settings}
        plan, exact = plan_graph(**given), reference.plan(**given)
        assert exact is not None
        for name in ("neighbours", "threshold"):
            assert getattr(plan, name) == exact[name] == case[name]
        for name in ("opened", "split", "stuck"):
            assert getattr(plan, name) == pytest.approx(case[name], rel=1e-5)
            assert float(exact[name]) == pytest.approx(case[name], rel=1e-5)
    for case in vectors["plans_refused"]:
        given = {name: case[name] for name in settings}
        with pytest.raises(error(case["error"])):
            plan_graph(**given)
        assert reference.plan(**given) is None


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", named(load("codec.json")["messages"]))
def test_messages(case: dict[str, Any]) -> None:
    data = hexed(case["bytes"])
    message = CODEC.decode(data, limit=len(data))
    assert plain(message) == case["message"]
    assert CODEC.encode(message) == data
    theirs = reference.decode(data)
    assert plain_fields(theirs) == case["message"]
    assert reference.encode(theirs) == data
    assert reference.size(theirs) == len(data)


def plain_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain_fields(item) for name, item in value.items()}
    return [plain_fields(item) for item in value] if isinstance(value, list) else plain(value)


@pytest.mark.parametrize("case", named(load("codec.json")["refused"]))
def test_bytes_refused(case: dict[str, Any]) -> None:
    with pytest.raises(errors.DecodeError) as caught:
        CODEC.decode(hexed(case["bytes"]), limit=case["limit"])
    assert type(caught.value) is error(case["error"])


def test_every_message_type_has_a_vector() -> None:
    shown = {case["message"]["type"] for case in load("codec.json")["messages"]}
    assert shown == {kind.__struct_config__.tag for kind in CODEC.types}


def test_size_limits() -> None:
    for case in load("codec.json")["size_limits"]:
        fields = case["params"] | {"round_id": hexed(case["params"]["round_id"])}
        params = msgspec.convert(fields, SessionParams)
        layout = make_layout(case["layout"])
        assert size_limit(params, layout, case["word_bytes"]) == case["limit"]
        assert reference.size_limit(case["params"], case["layout"], case["word_bytes"]) == case["limit"]


@pytest.mark.parametrize(("clients", "sums"), [(2, 1), (2, 8), (300, 1), (512, 8)])
def test_the_largest_messages_are_within_the_limit(clients: int, sums: int) -> None:
    """Longest ids, all signatures, 64 tables in every sum: the frames that are largest beside words."""
    layout = Layout(dense=0, tables=tuple(TableShape(rows=1 + 8 * k, width=2**24) for k in range(64)))
    several = tuple(
        msgspec.structs.replace(
            sum_of(0, label=f"{number}".rjust(32, "s")), layout=layout, min_contributors=65535
        )
        for number in range(sums)
    )
    params = SessionParams(
        round_id=bytes(16),
        clients=clients,
        threshold=clients,
        neighbours=None,
        active=True,
        sums=several,
    )
    limit = size_limit(params, Layout(dense=0, tables=layout.tables), 0)
    keys = Keys("\U0001f98a" * 64, bytes(32), (bytes(32),) * sums, (bytes(32),) * sums, bytes(64))
    roster = Roster(params, tuple(Member(place, keys) for place in range(clients)))
    assert len(CODEC.encode(roster)) <= limit
    others = range(1, clients)
    request = SignedRequest(tuple(bytes(1 + k) for k in range(64)), bytes(64))
    boxes = (bytes(16 + 66 * sums),) * len(others)
    inbound = InboundShares(bytes(16), tuple(others), boxes, b"", (request,) * len(others))
    assert len(CODEC.encode(inbound)) <= limit
    assert reference.size(reference.decode(CODEC.encode(inbound))) == len(CODEC.encode(inbound))


# -- whole sessions --------------------------------------------------------------------------------

ROUND = load("round.json")
SESSIONS = [pytest.param(session, id=session["name"]) for session in ROUND["sessions"]]


class CodeClient:
    """Our client behind frames, for the same replay as the reference."""

    def __init__(self, session: dict[str, Any], who: dict[str, Any]) -> None:
        seeds = {one["client"]: one["identity"] for one in session["clients"]}
        identities = {name: Identity(Secret(hexed(seed))) for name, seed in seeds.items() if seed}
        self.tape = Tape(who["random"])
        self.inputs = iter(who["inputs"])
        self.client = Client(
            who["client"],
            Policy(**ROUND["policy"]),
            self.tape,
            sums=len(session["params"]["sums"]),
            identity=identities.get(who["client"]),
            identities={name: one.public for name, one in identities.items()} or None,
        )

    def keys(self) -> bytes:
        return CODEC.encode(self.client.create_keys())

    def answer(self, entry: dict[str, Any]) -> bytes:
        if entry["type"] == "start":
            return self._mask(self._start(entry))
        message: Any = CODEC.decode(hexed(entry["bytes"]), limit=1 << 20)
        if entry["type"] == "inbound-shares":
            return self._mask(self.client.handle_inbound(message))
        if entry["type"] == "roster":
            self.mine = next(self.inputs)
            return CODEC.encode(self._roster(message))
        if entry["type"] == "survivors":
            return CODEC.encode(self.client.handle_survivors(message))
        return CODEC.encode(self.client.handle_unmask(message))

    def refuse(self, entry: dict[str, Any]) -> None:
        message: Any = CODEC.decode(hexed(entry["bytes"]), limit=1 << 20)
        handle = {
            "roster": self._roster,
            "inbound-shares": self.client.handle_inbound,
            "survivors": self.client.handle_survivors,
            "unmask-request": self.client.handle_unmask,
        }[entry["type"]]
        rest = self.tape.rest
        with pytest.raises(error(entry["error"])):
            handle(message)
        self.tape.rest = rest  # a refusal may cost random bytes, nothing else

    def _roster(self, message: Any) -> Any:
        mine = getattr(self, "mine", {"rows": []})
        return self.client.handle_roster(message, [np.array(rows, np.intp) for rows in mine["rows"]])

    def _start(self, entry: dict[str, Any]) -> Start:
        self.mine = next(self.inputs)
        rows = tuple(np.array(some, np.intp) for some in self.mine["rows"])
        places = tuple(entry["participants"])
        bits = parse_requesters(hexed(entry["requesters"]), len(places) - 1, rows)
        return Start(make_layout(entry["layout"]), places, rows, bits, hexed(entry["context"]))

    def _mask(self, start: Start) -> bytes:
        tables = [
            np.array(table, np.uint64).reshape(-1, shape.width)
            for table, shape in zip(self.mine["tables"], start.layout.tables, strict=True)
        ]
        dense = np.array(self.mine["dense"], np.uint64)
        return CODEC.encode(self.client.create_masked(start, dense, tables))


class ReferenceClient:
    def __init__(self, session: dict[str, Any], who: dict[str, Any]) -> None:
        self.tape = reference.Tape(hexed(who["random"]))
        identity = hexed(who["identity"]) if who["identity"] else None
        sums = len(session["params"]["sums"])
        seeds = {one["client"]: one["identity"] for one in session["clients"] if one["identity"]}
        known = {name: Identity(Secret(hexed(seed))).public for name, seed in seeds.items()}
        self.client = reference.Client(who["client"], self.tape, sums, identity, known)
        self.inputs = iter(who["inputs"])

    def keys(self) -> bytes:
        return self.client.keys()

    def answer(self, entry: dict[str, Any]) -> bytes:
        client, data = self.client, hexed(entry.get("bytes", ""))
        if entry["type"] == "roster":
            self.mine = getattr(self, "mine", None) or next(self.inputs)
            return client.roster(data, self.mine["rows"])
        if entry["type"] == "inbound-shares":
            return client.inbound(data, self.mine["dense"], self.mine["tables"])
        if entry["type"] == "start":
            self.mine = next(self.inputs)
            client.rows = self.mine["rows"]
            layout, places = entry["layout"], entry["participants"]
            others = [place for place in places if place != client.position]
            asked = client.requesters(layout, others, hexed(entry["requesters"]), [])
            told = (layout, places, asked, hexed(entry["context"]))
            return client.mask(*told, self.mine["dense"], self.mine["tables"])
        return client.survivors(data) if entry["type"] == "survivors" else client.unmask(data)

    def refuse(self, entry: dict[str, Any]) -> None:
        with pytest.raises(reference.Refused):
            self.answer(entry)


def conversation(session: dict[str, Any], name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What a client was sent, in order, and what it sent."""
    sent_to = [entry for entry in session["messages"] if name in entry["to"]]
    sent_by = [entry["bytes"] for entry in session["messages"] if entry["from"] == name]
    return sent_to, sent_by


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("kind", [CodeClient, ReferenceClient], ids=["code", "reference"])
def test_clients_say_the_same_bytes(session: dict[str, Any], kind: Any) -> None:
    for who in session["clients"]:
        client = kind(session, who)
        received, sent = conversation(session, who["client"])
        assert client.keys().hex() == sent[0]
        answers = [client.answer(entry).hex() for entry in received[: len(sent) - 1]]
        assert answers == sent[1:]
        assert not client.tape.rest


@pytest.mark.parametrize("session", SESSIONS)
def test_the_written_randomness_is_the_seeds(session: dict[str, Any]) -> None:
    for who in session["clients"]:
        drawn = hexed(who["random"])
        assert SeededRandomness(who["seed"]).bytes(len(drawn)) == drawn


def make_server(session: dict[str, Any], entries: Iterator[dict[str, Any]]) -> Server:
    """The server after check-in; takes the clients' keys from the front of ``entries``."""
    everyone = [one["client"] for one in session["clients"]]
    keys = [CODEC.decode(hexed(next(entries)["bytes"]), limit=1 << 20) for _ in everyone]
    params = msgspec.convert(
        session["params"] | {"round_id": hexed(session["params"]["round_id"])}, SessionParams
    )
    seeds = {one["client"]: one["identity"] for one in session["clients"]}
    pinned = {name: Identity(Secret(hexed(seed))).public for name, seed in seeds.items() if seed}
    return Server(params, keys, pinned or None)


@pytest.mark.parametrize("session", SESSIONS)
def test_the_server_says_the_same_bytes_and_opens_the_total(session: dict[str, Any]) -> None:
    entries = iter(session["messages"])
    server = make_server(session, entries)
    outbound = {name: CODEC.encode(roster).hex() for name, roster in server.rosters().items()}
    results = []
    starts: list[dict[str, Any]] = []
    for entry in entries:
        if entry["type"] == "start":
            starts.append(entry)
            if server.phase.name == "UNMASK":
                assert server.close_phase() == {}
                results.append(server.opened)
            continue
        if starts:
            told = server.start_sum(
                [one["to"][0] for one in starts],
                make_layout(starts[0]["layout"]),
                {one["to"][0]: [hexed(bitmap) for bitmap in one["request"]] for one in starts},
                hexed(starts[0]["context"]),
            )
            assert {one["to"][0]: one["requesters"] for one in starts} == {
                name: bits.hex() for name, bits in told.items()
            }
            starts = []
        if entry["from"] == "server":
            if not outbound:
                outbound = {name: CODEC.encode(one).hex() for name, one in server.close_phase().items()}
            assert {outbound.pop(name) for name in entry["to"]} == {entry["bytes"]}
        else:
            server.receive(entry["from"], CODEC.decode(hexed(entry["bytes"]), limit=1 << 20))
    server.close_phase()
    results.append(server.opened)
    assert [
        {
            "survivors": list(one.survivors),
            "dense": plain(one.dense),
            "tables": plain(one.tables),
            "contributors": plain(one.contributors),
        }
        for one in results
    ] == session["opened"]


@pytest.mark.parametrize("session", SESSIONS)
def test_the_total_is_the_plain_sum_of_the_survivors(session: dict[str, Any]) -> None:
    inputs = {one["client"]: one["inputs"] for one in session["clients"]}
    for number, (summed, opened) in enumerate(zip(session["params"]["sums"], session["opened"], strict=True)):
        modulus = RINGS[summed["ring"]].modulus
        mine = [inputs[name][number] for name in opened["survivors"]]
        assert opened["dense"] == [
            sum(each) % modulus for each in zip(*(m["dense"] for m in mine), strict=True)
        ]
        for table, (totals, counts) in enumerate(zip(opened["tables"], opened["contributors"], strict=True)):
            for row, (total, count) in enumerate(zip(totals, counts, strict=True)):
                asked = [m for m in mine if row in m["rows"][table]]
                everyone = [each for each in inputs.values() if row in each[number]["rows"][table]]
                if len(everyone) < summed["min_contributors"]:
                    assert count == 0
                    assert not any(total)
                    continue
                assert count == len(asked)
                values = [m["tables"][table][m["rows"][table].index(row)] for m in asked]
                assert total == [sum(each) % modulus for each in zip(*values, strict=True)] or not values


REFUSED = [
    pytest.param(session, case, id=f"{session['name']}-{case['name'].replace(' ', '-')}")
    for session in ROUND["sessions"]
    for case in session.get("refused", ())
]


@pytest.mark.parametrize(("session", "case"), REFUSED)
def test_a_client_refuses_and_goes_on_unchanged(session: dict[str, Any], case: dict[str, Any]) -> None:
    refuses_and_goes_on(CodeClient, session, case)


BY_THE_REFERENCE = [one for one in REFUSED if one.values[0]["name"] in ("rows", "active-rows", "sparse")]


@pytest.mark.parametrize(("session", "case"), BY_THE_REFERENCE)
def test_the_reference_refuses_bad_requests_rosters_and_cohorts(
    session: dict[str, Any], case: dict[str, Any]
) -> None:
    refuses_and_goes_on(ReferenceClient, session, case)


def refuses_and_goes_on(kind: Any, session: dict[str, Any], case: dict[str, Any]) -> None:
    who = next(one for one in session["clients"] if one["client"] == case["client"])
    client = kind(session, who)
    received, sent = conversation(session, case["client"])
    client.keys()
    answers = []
    for number, entry in enumerate(received):
        if number == case["after"]:
            client.refuse(case)
        answers.append(client.answer(entry).hex())
    assert answers == sent[1:]


REFUSED_BY_SERVER = [
    pytest.param(session, case, id=f"{session['name']}-{case['name'].replace(' ', '-')}")
    for session in ROUND["sessions"]
    for case in session.get("refused_by_server", ())
]


@pytest.mark.parametrize(("session", "case"), REFUSED_BY_SERVER)
def test_the_server_refuses_and_takes_the_real_one(session: dict[str, Any], case: dict[str, Any]) -> None:
    server = make_server(session, iter(session["messages"]))
    with pytest.raises(error(case["error"])):
        server.receive(case["client"], CODEC.decode(hexed(case["bytes"]), limit=1 << 20))
    real = next(
        one for one in session["messages"] if (one["from"], one["type"]) == (case["client"], "sealed-shares")
    )
    server.receive(case["client"], CODEC.decode(hexed(real["bytes"]), limit=1 << 20))


def test_sizes_in_the_specification() -> None:
    """The formulas of spec 4.3 are exact for every message of every session."""
    for session in ROUND["sessions"]:
        for entry in session["messages"]:
            if "bytes" in entry:
                data = hexed(entry["bytes"])
                assert reference.size(reference.decode(data)) == len(data)
