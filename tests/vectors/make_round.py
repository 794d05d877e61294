"""Vectors of whole sessions: every message in order, and what a client must refuse on the way."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from sfsl.codec import Message
from sfsl.crypto.ring import RINGS
from sfsl.crypto.secret import Identity, KeyPair, Secret
from sfsl.secagg import Client, Layout, Policy, Server, SessionParams, Start, SumParams, TableShape
from sfsl.secagg.masking import parse_requesters, request_bitmaps
from sfsl.secagg.messages import (
    CODEC,
    InboundShares,
    Keys,
    Member,
    Roster,
    SealedShares,
    SignedRequest,
    UnmaskRequest,
    binding,
    request_parts,
)
from sfsl.secagg.tree import Tree
from vectors.values import Json, Recorder, plain, some, sum_of

POLICY = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=1000)


class Recording:
    """One session on the real state machines, with every message written down."""

    def __init__(
        self,
        name: str,
        about: str,
        clients: Mapping[str, Sequence[Json]],
        *,
        threshold: int,
        sums: Sequence[SumParams],
        active: bool = False,
        neighbours: int | None = None,
        least_survivors: int | None = None,
    ) -> None:
        self.name, self.about = name, about
        self.inputs = clients
        self.params = SessionParams(
            round_id=some(f"round {name}", 16),
            clients=len(clients),
            threshold=threshold,
            neighbours=neighbours,
            active=active,
            sums=tuple(sums),
            least_survivors=least_survivors,
        )
        self.identities = {one: Secret(some(f"identity {name} {one}")) for one in clients} if active else {}
        signers = {one: Identity(secret) for one, secret in self.identities.items()}
        self.pinned = {one: signer.public for one, signer in signers.items()} if active else None
        self.random = {one: Recorder(f"round {name} {one}") for one in clients}
        self.clients = {
            one: Client(
                one,
                POLICY,
                self.random[one],
                sums=len(sums),
                identity=signers.get(one),
                identities=self.pinned,
            )
            for one in clients
        }
        self.messages: list[Json] = []
        self.opened: list[Json] = []

    def up(self, client: str, message: Message) -> None:
        self.messages.append({"from": client, "to": ["server"]} | self._body(message))

    def answer(self, client: str, message: Message) -> None:
        self.up(client, message)
        self.server.receive(client, message)

    def down(self, messages: Mapping[str, Message]) -> None:
        """One entry per different message."""
        for client, message in messages.items():
            body = self._body(message)
            same = [
                one for one in self.messages if one["from"] == "server" and one.get("bytes") == body["bytes"]
            ]
            if same:
                same[0]["to"].append(client)
            else:
                self.messages.append({"from": "server", "to": [client]} | body)

    def _body(self, message: Message) -> Json:
        return {"type": message.__struct_config__.tag, "bytes": CODEC.encode(message).hex()}

    def check_in(self) -> None:
        keys = []
        for name, client in self.clients.items():
            keys.append(client.create_keys())
            self.up(name, keys[-1])
        self.server = Server(self.params, keys, self.pinned)

    def share(self) -> None:
        rosters = self.server.rosters()
        self.down(rosters)
        for name, roster in rosters.items():
            self.answer(name, self.clients[name].handle_roster(roster, self.inputs[name][0]["rows"]))

    def first_sum(self, drop: str) -> None:
        inbound = self.server.close_phase()
        self.down(inbound)
        for name, message in inbound.items():
            if name != drop:
                self.upload(name, self.clients[name].handle_inbound(message), 0)

    def next_sum(self, layout: Layout, context: bytes, drop: str) -> None:
        names = self.server.opened.survivors
        asked = {
            name: request_bitmaps(layout, [np.array(rows, np.intp) for rows in self.inputs[name][1]["rows"]])
            for name in names
        }
        told = self.server.start_sum(names, layout, asked, context)
        places = tuple(sorted(self.clients).index(name) for name in names)
        for name, requesters in told.items():
            self.messages.append(
                {
                    "from": "server",
                    "to": [name],
                    "type": "start",
                    "layout": plain(layout),
                    "participants": list(places),
                    "requesters": requesters.hex(),
                    "context": context.hex(),
                    "request": plain(asked[name]),
                }
            )
        for name, requesters in told.items():
            if name != drop:
                own = tuple(np.array(rows, np.intp) for rows in self.inputs[name][1]["rows"])
                bits = parse_requesters(requesters, len(places) - 1, own)
                self.upload(name, Start(layout, places, own, bits, context), 1)

    def upload(self, name: str, start: Start, number: int) -> None:
        mine = self.inputs[name][number]
        ring = RINGS[self.params.sums[number].ring]
        tables = [
            np.array(table, ring.dtype).reshape(-1, shape.width)
            for table, shape in zip(mine["tables"], start.layout.tables, strict=True)
        ]
        dense = np.array(mine["dense"], ring.dtype)
        self.answer(name, self.clients[name].create_masked(start, dense, tables))

    def open(self, silent: str = "") -> None:
        outbound = self.server.close_phase()
        self.down(outbound)
        if self.params.active:
            for name, lists in outbound.items():
                self.answer(name, self.clients[name].handle_survivors(lists))
            outbound = self.server.close_phase()
            self.down(outbound)
        for name, request in outbound.items():
            if name != silent:
                self.answer(name, self.clients[name].handle_unmask(request))
        self.server.close_phase()
        opened = self.server.opened
        self.opened.append(
            {
                "survivors": list(opened.survivors),
                "dense": plain(opened.dense),
                "tables": plain(opened.tables),
                "contributors": plain(opened.contributors),
            }
        )

    def finish(self) -> Json:
        return {
            "name": self.name,
            "about": self.about,
            "params": plain(self.params),
            "binding": binding(self.server.rosters()[min(self.clients)]).hex(),
            "clients": [
                {
                    "client": one,
                    "seed": f"round {self.name} {one}",
                    "random": self.random[one].drawn.hex(),
                    "identity": self.identities[one].reveal().hex() if self.identities else None,
                    "inputs": list(self.inputs[one]),
                }
                for one in self.clients
            ],
            "messages": self.messages,
            "opened": self.opened,
        }


def vector(dense: Sequence[int], rows: Sequence[Any] = (), tables: Sequence[Any] = ()) -> Json:
    return {"dense": list(dense), "rows": list(rows), "tables": list(tables)}


def dropout() -> Json:
    clients = {"ada": [vector([1, 2, 3])], "bob": [vector([10, 20, 30])], "cyd": [vector([2**32 - 1, 0, 5])]}
    about = "three clients, one word ring, bob drops out before his upload"
    session = Recording("dropout", about, clients, threshold=2, sums=[sum_of(3)])
    session.check_in()
    session.share()
    session.first_sum(drop="bob")
    session.open()
    return session.finish()


def active() -> Json:
    names = ("ada", "bob", "cyd", "dan")
    clients = {name: [vector([place, 2**64 - 1 - place])] for place, name in enumerate(names)}
    about = "active mode: signed keys, signed lists; ada drops out before her upload"
    session = Recording("active", about, clients, threshold=3, sums=[sum_of(2, "z64")], active=True)
    session.check_in()
    session.share()
    session.first_sum(drop="ada")
    session.open()
    return session.finish()


def rows() -> Json:
    top = 2**31 - 2
    clients = {
        "ada": [vector([1], [[0, 3, 8], [1]], [[[1, 2], [3, 4], [5, 6]], [[top]]])],
        "bob": [vector([2], [[3, 7, 8], [1, 2]], [[[10, 20], [30, 40], [50, top]], [[7], [8]]])],
        "cyd": [vector([3], [[0, 2, 8], []], [[[100, 200], [300, 400], [500, 600]], []])],
    }
    layout = Layout(dense=1, tables=(TableShape(rows=9, width=2), TableShape(rows=3, width=1)))
    one = SumParams(label="rows", ring="f31", min_contributors=2, layout=layout)
    about = "misaligned rows in two tables, rows asked for once are left out, cyd drops out before her upload"
    session = Recording("rows", about, clients, threshold=2, sums=[one])
    session.check_in()
    session.share()
    session.first_sum(drop="cyd")
    session.open()
    return session.finish()


def active_rows() -> Json:
    clients = {
        "ada": [vector([1], [[0, 3, 8], [1]], [[[1, 2], [3, 4], [5, 6]], [[7]]])],
        "bob": [vector([2], [[3, 7, 8], [1, 2]], [[[10, 20], [30, 40], [50, 60]], [[70], [80]]])],
        "cyd": [vector([3], [[0, 3, 8], [2]], [[[2**32 - 1, 200], [300, 400], [500, 600]], [[700]]])],
        "dan": [vector([4], [[2, 3], []], [[[1000, 2000], [3000, 4000]], []])],
    }
    layout = Layout(dense=1, tables=(TableShape(rows=9, width=2), TableShape(rows=3, width=1)))
    one = SumParams(label="rows", ring="z32", min_contributors=2, layout=layout)
    about = (
        "active mode with misaligned rows: everyone sees the signed requests of the others; "
        "rows asked for once are left out, dan drops out before his upload"
    )
    session = Recording("active-rows", about, clients, threshold=3, sums=[one], active=True)
    session.check_in()
    session.share()
    session.first_sum(drop="dan")
    session.open()
    return session.finish()


def sparse() -> Json:
    names = ("ada", "bob", "cyd", "dan", "eve")
    clients = {name: [vector([place, 1 << place])] for place, name in enumerate(names)}
    about = "a sparse graph of one cycle, four survivors promised; dan drops out before his upload"
    session = Recording(
        "sparse", about, clients, threshold=2, sums=[sum_of(2)], neighbours=2, least_survivors=4
    )
    session.check_in()
    session.share()
    session.first_sum(drop="dan")
    session.open()
    return session.finish()


def two_sums() -> Json:
    clients = {
        "ada": [vector([1, 2]), vector([7], [[0, 1]], [[[1, 1], [2, 2]]])],
        "bob": [vector([3, 2**31 - 2]), vector([8], [[1, 2]], [[[3, 3], [4, 4]]])],
        "cyd": [vector([5, 6]), vector([9], [[1]], [[[5, 5]]])],
    }
    layout = Layout(dense=1, tables=(TableShape(rows=3, width=2),))
    sums = [
        sum_of(2, "f31", "union"),
        SumParams(label="update", ring="z32", min_contributors=2, layout=None),
    ]
    about = (
        "two sums over one key setup; layout and context of the second are told at its start; bob drops in it"
    )
    session = Recording("two-sums", about, clients, threshold=2, sums=sums)
    session.check_in()
    session.share()
    session.first_sum(drop="")
    session.open()
    session.next_sum(layout, some("context of the second sum"), drop="bob")
    session.open()
    return session.finish()


# Name, how many of the server's messages the client has taken before, the message, the expected error.
Case = tuple[str, int, Message, str]


def refused_by_client(session: Json) -> list[Json]:
    """What one client of this session must refuse on the way; nothing changes by it."""
    who = "bob" if session["params"]["active"] else "ada"
    if session["name"] == "sparse":
        who = "eve"  # a neighbour of dan, who drops out
    taken: dict[str, Any] = {
        one["type"]: CODEC.decode(bytes.fromhex(one["bytes"]), limit=1 << 20)
        for one in session["messages"]
        if who in one["to"]
    }
    members = taken["roster"].members
    own = next(place for place, one in enumerate(members) if one.keys.client == who)
    if session["name"] == "active-rows":
        cases = refused_rows(session, taken["inbound-shares"])
    elif session["name"] == "rows":
        cases = refused_requesters(taken["inbound-shares"])
    elif session["name"] == "sparse":
        cases = refused_neighbours(session, taken["roster"], taken["unmask-request"], own)
    else:
        cases = [
            *refused_rosters(taken["roster"], own),
            *refused_inbound(taken["inbound-shares"], own),
            *refused_requests(taken["unmask-request"], own, active=session["params"]["active"]),
        ]
    return [
        {
            "name": name,
            "client": who,
            "after": after,
            "type": message.__struct_config__.tag,
            "bytes": CODEC.encode(message).hex(),
            "error": error,
        }
        for name, after, message, error in cases
    ]


def refused_rosters(roster: Roster, own: int) -> list[Case]:
    params, members = roster.params, roster.members
    other, third = (place for place, one in enumerate(members) if place != own and place < 3)
    channel = replace(members[own].keys, channel=some("stranger"))
    doubled = replace(members[other].keys, channel=members[third].keys.channel)
    small = replace(members[other].keys, channel=bytes(32))
    *low, top = members[other].keys.masks[0]
    second = replace(members[other].keys, masks=(bytes((*low, top | 0x80)),))
    bare = replace(members[other].keys, signature=None)
    mode = replace(params, active=not params.active, threshold=len(members))
    more = replace(params, sums=(*params.sums, sum_of(1, label="more")))
    fewer = replace(params, clients=len(members) - 1, threshold=len(members) - 1)
    cases = [
        ("another mode", Roster(mode, members), "Refused"),
        ("two sums for keys of one", Roster(more, members), "Refused"),
        ("a member missing", Roster(params, members[:-1]), "InvalidMessage"),
        ("a position too high", Roster(fewer, members), "InvalidMessage"),
        ("members out of order", Roster(params, members[::-1]), "InvalidMessage"),
        ("own keys changed", swapped_in(roster, own, channel), "Refused"),
        ("a key twice", swapped_in(roster, other, doubled), "Refused"),
        ("a key of small order", swapped_in(roster, other, small), "AuthenticationFailed"),
        ("a key not in canonical form", swapped_in(roster, other, second), "AuthenticationFailed"),
    ]
    if params.active:
        swapped = replace(members[other].keys, channel=some("stranger"))
        cases += [
            ("a key swapped under its signature", swapped_in(roster, other, swapped), "AuthenticationFailed"),
            ("a key not signed", swapped_in(roster, other, bare), "AuthenticationFailed"),
        ]
    return [(name, 0, message, error) for name, message, error in cases]


def refused_inbound(inbound: InboundShares, own: int) -> list[Case]:
    cases = [
        ("another round", replace(inbound, round_id=bytes(16)), "WrongRound"),
        ("boxes exchanged", replace(inbound, boxes=inbound.boxes[::-1]), "AuthenticationFailed"),
        ("a box from oneself", replace(inbound, senders=tuple(range(len(inbound.boxes)))), "InvalidMessage"),
        ("a box missing", replace(inbound, boxes=inbound.boxes[:-1]), "InvalidMessage"),
        ("too few left", replace(inbound, senders=(), boxes=()), "Refused"),
        ("requesters of no rows", replace(inbound, requesters=b"\x00"), "InvalidMessage"),
        (
            "a request of no rows",
            replace(inbound, requests=(SignedRequest((), bytes(64)),)),
            "InvalidMessage",
        ),
    ]
    return [(name, 1, message, error) for name, message, error in cases]


def refused_requesters(inbound: InboundShares) -> list[Case]:
    """What a client is told has one form. Here it is eight bits, of which the three zeros are listed."""
    bits = inbound.requesters[-1]
    assert inbound.requesters == told(1, 3, bytes((bits,)))
    cases = {
        "requesters: nothing": b"",
        "requesters: the bits themselves": bytes((bits ^ 0xFF,)),
        "requesters: a head cut short": inbound.requesters[:8],
        "requesters: ones listed, which are more": told(0, 5, bytes((bits ^ 0xFF,))),
        "requesters: zeros listed, as many as ones": told(1, 4, b"\x0f"),
        "requesters: neither ones nor zeros": told(2, 3, bytes((bits,))),
        "requesters: a zero more than is said": told(1, 2, bytes((bits,))),
        "requesters: more zeros than bits": told(1, 2**64 - 1, bytes((bits,))),
        "requesters: a byte short": told(1, 3, b""),
        "requesters: a byte over": told(1, 3, bytes((bits, 0))),
    }
    return [(name, 1, replace(inbound, requesters=data), "InvalidMessage") for name, data in cases.items()]


def told(kind: int, count: int, packed: bytes) -> bytes:
    return bytes((kind,)) + count.to_bytes(8, "little") + packed


def refused_rows(session: Json, inbound: InboundShares) -> list[Case]:
    """Active mode: what the server may try with the others' requests. The first sender is ada."""
    bound = bytes.fromhex(session["binding"])
    ada = Identity(Secret(bytes.fromhex(session["clients"][0]["identity"])))
    first, second, *rest = inbound.requests

    def with_first(request: SignedRequest) -> InboundShares:
        return replace(inbound, requests=(request, second, *rest))

    def signed(binding: bytes, sum_index: int, bitmaps: tuple[bytes, ...]) -> InboundShares:
        parts = request_parts(binding, sum_index, bitmaps)
        return with_first(SignedRequest(bitmaps, ada.sign("request", *parts)))

    nobody = told(0, 0, b"")
    one, other = first.bitmaps
    more = with_first(replace(first, bitmaps=(bytes((one[0] | 0x01, *one[1:])), other)))
    fewer = with_first(replace(first, bitmaps=(bytes((one[0] & 0x7F, *one[1:])), other)))
    longer = with_first(replace(first, bitmaps=(one, other + b"\x00")))
    cases = [
        ("a row added to a request", more, "AuthenticationFailed"),
        ("a row taken from a request", fewer, "AuthenticationFailed"),
        ("a bitmap lengthened", longer, "AuthenticationFailed"),
        (
            "requests exchanged between clients",
            replace(inbound, requests=(second, first, *rest)),
            "AuthenticationFailed",
        ),
        (
            "one request for two clients",
            replace(inbound, requests=(first, first, *rest)),
            "AuthenticationFailed",
        ),
        ("a request of another session", signed(bytes(32), 0, first.bitmaps), "AuthenticationFailed"),
        ("a request of another sum", signed(bound, 1, first.bitmaps), "AuthenticationFailed"),
        ("a request left out", replace(inbound, requests=inbound.requests[:-1]), "InvalidMessage"),
        ("the server's word instead", replace(inbound, requests=(), requesters=nobody), "InvalidMessage"),
        ("the server's word besides", replace(inbound, requesters=nobody), "InvalidMessage"),
        ("signed, but a table short", signed(bound, 0, (one,)), "InvalidMessage"),
        ("signed, but a byte long", signed(bound, 0, (one, other + b"\x00")), "InvalidMessage"),
        ("signed, but a bit beyond the end", signed(bound, 0, (one, b"\x10")), "InvalidMessage"),
    ]
    return [(name, 1, message, error) for name, message, error in cases]


def refused_by_server(session: Json) -> list[Json]:
    """Active mode: requests that the server must not take. The first to answer is ada, then bob."""
    ada, bob, *_ = [
        CODEC.decode(bytes.fromhex(one["bytes"]), limit=1 << 20)
        for one in session["messages"]
        if one["type"] == "sealed-shares"
    ]
    assert isinstance(ada, SealedShares)
    assert isinstance(bob, SealedShares)
    cases = {
        "a request not signed": replace(ada, request_signature=None),
        "another's signature": replace(ada, request_signature=bob.request_signature),
        "another's request": replace(ada, request=bob.request),
        "another's request with its signature": replace(
            ada, request=bob.request, request_signature=bob.request_signature
        ),
    }
    return [
        {"name": name, "client": "ada", "bytes": CODEC.encode(one).hex(), "error": "AuthenticationFailed"}
        for name, one in cases.items()
    ]


def refused_neighbours(session: Json, roster: Roster, request: UnmaskRequest, own: int) -> list[Case]:
    """A sparse graph: what the server may try with the roster, and with who survived."""
    everyone = [
        CODEC.decode(bytes.fromhex(one["bytes"]), limit=1 << 20)
        for one in session["messages"]
        if one["type"] == "keys"
    ]
    all_members = [Member(place, one) for place, one in enumerate(everyone) if isinstance(one, Keys)]
    tree, positions = Tree(all_members), [one.position for one in roster.members]
    stranger = next(place for place in range(len(all_members)) if place not in positions)
    other = next(place for place, one in enumerate(roster.members) if place != own)
    swapped = replace(roster.members[other].keys, channel=KeyPair(Secret(some("stranger"))).public)
    others = sorted({*positions, stranger} - {positions[other]})
    more, fewer = sorted({*positions, stranger}), sorted(set(positions) - {positions[other]})

    def of(places: list[int]) -> Roster:
        members = tuple(all_members[place] for place in places)
        return replace(roster, members=members, proof=tree.proof(places))

    wrong = bytes((roster.proof[0] ^ 1,)) + roster.proof[1:]
    elsewhere = replace(roster.params, round_id=some("elsewhere", 16))
    here = int.from_bytes(request.cohort, "big")
    bit = 1 << (8 * len(request.cohort) - 1)

    def told(bits: int, size: int = len(request.cohort)) -> UnmaskRequest:
        return replace(request, cohort=bits.to_bytes(size, "big"))

    far = next(place for place in range(len(all_members)) if place not in positions and here & bit >> place)
    near = next(place for place in request.survivors if place != all_members[own].position)
    rosters = [
        ("other neighbours", of(others), "Refused"),
        ("a neighbour more", of(more), "Refused"),
        ("a neighbour fewer", of(fewer), "Refused"),
        ("a wrong proof", replace(roster, proof=wrong), "Refused"),
        ("a proof too short", replace(roster, proof=roster.proof[:-32]), "InvalidMessage"),
        ("a proof too long", replace(roster, proof=roster.proof + bytes(32)), "InvalidMessage"),
        ("another root", replace(roster, root=some("another root")), "Refused"),
        ("no root", replace(roster, root=None), "InvalidMessage"),
        (
            "another round's graph",
            replace(roster, params=elsewhere),
            "Refused",
        ),
        ("keys replaced", replace(swapped_in(roster, other, swapped), proof=roster.proof), "Refused"),
    ]
    requests = [
        ("cohort: fewer survivors than promised", told(here & ~(bit >> far)), "Refused"),
        ("cohort: a neighbour that survived is missing", told(here & ~(bit >> near)), "Refused"),
        ("cohort: everyone", told(sum(bit >> place for place in range(len(all_members)))), "Refused"),
        ("cohort: a bit beyond its end", told(here | 1), "InvalidMessage"),
        ("cohort: a byte over", told(here << 8, len(request.cohort) + 1), "InvalidMessage"),
        ("cohort: nothing", replace(request, cohort=b""), "InvalidMessage"),
    ]
    return [
        *((name, 0, message, error) for name, message, error in rosters),
        *((name, 2, message, error) for name, message, error in requests),
    ]


def refused_requests(request: UnmaskRequest, own: int, *, active: bool) -> list[Case]:
    survivors, dropped = request.survivors, request.dropped
    others = tuple(place for place in survivors if place != own)
    both = tuple(sorted((*dropped, others[0])))
    lists = {
        "one both ways": replace(request, dropped=both),
        "one left out": replace(request, dropped=()),
        "oneself dropped": replace(request, survivors=tuple(sorted((*others, *dropped))), dropped=(own,)),
        "out of order": replace(request, survivors=survivors[::-1]),
        "too few survivors": replace(request, survivors=(own,), dropped=tuple(sorted((*dropped, *others)))),
    }
    ready = 3 if active else 2
    cases: list[Case] = [("unmask too early", 1, request, "WrongPhase")]
    cases += [(f"lists: {name}", ready, message, "Refused") for name, message in lists.items()]
    cases.append(("another sum", ready, replace(request, sum=1), "WrongRound"))
    if active:
        everyone = tuple(sorted((*survivors, *dropped)))
        (first, one), (second, two), *rest = request.signatures
        exchanged = replace(request, signatures=((first, two), (second, one), *rest))
        cases += [
            ("unmask before the lists were signed", 2, request, "WrongPhase"),
            (
                "not the lists that were signed",
                3,
                replace(request, survivors=everyone, dropped=()),
                "Refused",
            ),
            ("too few signatures", 3, replace(request, signatures=request.signatures[:-1]), "Refused"),
            ("signatures exchanged", 3, exchanged, "AuthenticationFailed"),
            ("a signer twice", 3, replace(request, signatures=((first, one),) * 3), "Refused"),
        ]
    return cases


def swapped_in(roster: Roster, place: int, keys: Keys) -> Roster:
    members = list(roster.members)
    members[place] = Member(members[place].position, keys)
    return replace(roster, members=tuple(members))


def round_() -> Json:
    sessions = [dropout(), active(), rows(), active_rows(), sparse(), two_sums()]
    for session in sessions:
        if session["name"] in ("dropout", "active", "rows", "active-rows", "sparse"):
            session["refused"] = refused_by_client(session)
        if session["name"] == "active-rows":
            session["refused_by_server"] = refused_by_server(session)
    return {
        "about": "Each client draws its random bytes from `random`, in the order of spec 2.1. An upload "
        "follows each `inbound-shares` or `start`, which is no message of this protocol (spec 4.7). "
        "`refused`: `client` must refuse this after so many messages from the server, unchanged. "
        "`refused_by_server`: the server must refuse this from `client` as the first answer to its roster.",
        "policy": plain(POLICY),
        "sessions": sessions,
    }
