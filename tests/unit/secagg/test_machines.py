"""Every illegal (phase, message) pair raises and changes nothing, on both sides."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.errors import (
    InputError,
    InvalidMessage,
    ParameterError,
    Refused,
    RemoteError,
    TooFewClients,
    WrongPhase,
)
from sfsl.secagg import Client, Layout, Policy, Server, Start, SumParams
from sfsl.secagg.messages import Consistency, Survivors, TableShape, UnmaskRequest
from sfsl.secagg.states import Phase as ClientPhase
from sfsl.secagg.states import ServerPhase
from sfsl.testing import SeededRandomness
from world import World, frozen


def messages(active: bool) -> tuple[World, dict[str, Any]]:
    """All messages of one honest session: what c0 is sent, and what it sends."""
    world = World(n=4, threshold=3, active=active).share()
    sent: dict[str, Any] = {"roster": world.rosters["c0"], "inbound": world.inbound["c0"]}
    world.mask()
    outbound: dict[str, Any] = world.close()
    sent["survivors"] = Survivors(world.params.round_id, 0, (0, 1, 2, 3), ())
    if active:
        sent["survivors"] = outbound["c0"]
        for name, lists in outbound.items():
            world.server.receive(name, world.clients[name].handle_survivors(lists))
        outbound = world.close()
    sent["unmask"] = outbound["c0"]
    return world, sent


def client_in(phase: ClientPhase, active: bool) -> Client:
    """A client c0 in the given phase, in the very session of ``messages``."""
    world = World(n=4, threshold=3, active=active)
    client = world.clients["c0"]
    if phase is ClientPhase.NEW:
        return client
    if phase is ClientPhase.CHECKED_IN:
        return world.check_in().clients["c0"]
    world.share()
    if phase is ClientPhase.SHARED:
        return client
    if phase is ClientPhase.READY:
        world.starts()
        return client
    world.mask()
    if phase is ClientPhase.MASKED:
        return client
    requests: dict[str, Any] = world.close()
    if active:
        for name, lists in requests.items():
            world.server.receive(name, world.clients[name].handle_survivors(lists))
        if phase is ClientPhase.CONFIRMED:
            return client
        requests = world.close()
    client.handle_unmask(requests["c0"])
    return client


STEPS: dict[str, tuple[ClientPhase, Callable[[Client, dict[str, Any]], Any]]] = {
    "create_keys": (ClientPhase.NEW, lambda client, sent: client.create_keys()),
    "handle_roster": (ClientPhase.CHECKED_IN, lambda client, sent: client.handle_roster(sent["roster"])),
    "handle_inbound": (ClientPhase.SHARED, lambda client, sent: client.handle_inbound(sent["inbound"])),
    "create_masked": (
        ClientPhase.READY,
        lambda client, sent: client.create_masked(Start(Layout(dense=8), (0, 1, 2, 3)), np.arange(8)),
    ),
    "handle_survivors": (ClientPhase.MASKED, lambda client, sent: client.handle_survivors(sent["survivors"])),
    "handle_unmask": (ClientPhase.CONFIRMED, lambda client, sent: client.handle_unmask(sent["unmask"])),
}


@pytest.mark.parametrize("active", [False, True], ids=["curious", "active"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("phase", list(ClientPhase), ids=lambda phase: phase.name)
def test_client(phase: ClientPhase, step: str, active: bool) -> None:
    if phase is ClientPhase.CONFIRMED and not active:
        return
    legal, act = STEPS[step]
    if step == "handle_unmask" and not active:
        legal = ClientPhase.MASKED
    client = client_in(phase, active)
    assert client.phase is phase
    before, picture = client.state, frozen(client)
    _, sent = messages(active)
    if phase is legal and (active or step != "handle_survivors"):
        act(client, sent)
        moves = [move for move in client.moves if move.phase is phase and move.active in (None, active)]
        assert client.phase in moves[0].after
    else:
        with pytest.raises(WrongPhase):
            act(client, sent)
        assert client.state is before
        assert frozen(client) == picture


@pytest.mark.parametrize("phase", list(ServerPhase), ids=lambda phase: phase.name)
@pytest.mark.parametrize("kind", ["SealedShares", "MaskedVector", "Consistency", "UnmaskShares", "Roster"])
def test_server(phase: ServerPhase, kind: str) -> None:
    """A client's message in any phase but its own, and a server's message in any."""
    world = World(n=4, threshold=3, active=True).check_in()
    answers: dict[str, Any] = {"Roster": world.rosters["c0"]}
    c0 = world.clients["c0"]
    answers["SealedShares"] = c0.handle_roster(world.rosters["c0"])
    reached = {
        ServerPhase.SHARES: 0,
        ServerPhase.MASKED: 1,
        ServerPhase.CONSISTENCY: 2,
        ServerPhase.UNMASK: 3,
    }
    others = [name for name in world.names if name != "c0"]
    # Run the session without c0's answers being taken, up to the phase in question.
    steps: list[Callable[[Client, Any], Any]] = [
        lambda client, message: client.handle_roster(message),
        lambda client, message: client.create_masked(client.handle_inbound(message), np.arange(8)),
        lambda client, message: client.handle_survivors(message),
        lambda client, message: client.handle_unmask(message),
    ]
    outbound: dict[str, Any] = dict(world.rosters)
    for step in steps[: reached.get(phase, 4)]:
        for name in others:
            world.server.receive(name, step(world.clients[name], outbound[name]))
        outbound = world.close()
    if phase is ServerPhase.ABORTED:
        world = World(n=4, threshold=3, active=True).check_in()
        with pytest.raises(TooFewClients):
            world.server.close_phase()
    assert world.server.phase is phase
    full = World(n=4, threshold=3, active=True).to_unmask()
    answers["MaskedVector"] = full.uploads["c0"]
    answers["UnmaskShares"] = full.clients["c0"].handle_unmask(full.requests["c0"])
    answers["Consistency"] = msgspec.convert(
        {
            "type": "consistency",
            "round_id": full.params.round_id,
            "sum": 0,
            "sender": 0,
            "signature": bytes(64),
        },
        Consistency,
    )
    if kind == "SealedShares" and phase is ServerPhase.SHARES:
        world.server.receive("c0", answers[kind])
        return
    before, picture = world.server.state, frozen(world.server)
    with pytest.raises(RemoteError):
        world.server.receive("c0", answers[kind])
    assert world.server.state is before
    assert frozen(world.server) == picture


SPEC = Path(__file__).parents[3] / "docs" / "spec" / "secure-aggregation.md"
SAID_OTHERWISE = {"check-in": "Keys", "start of a sum, and the vector": "Start", "": "Layout"}


def drawn(title: str) -> set[tuple[str, str, str]]:
    """The table of states below ``title`` in the specification: what is taken where, and what follows."""
    below = SPEC.read_text(encoding="utf-8").split(f"**{title}.**")[1].split("\n\n", 1)[1]
    found = set()
    for row in below.split("\n\n")[0].splitlines()[2:]:
        phases, takes, *_, after = (cell.strip() for cell in row.strip("|").split("|"))
        named = re.findall(r"`(\w+)`", takes) or [SAID_OTHERWISE[takes]]
        for edge in product(*(re.findall(r"[A-Z][A-Z_]+", cell) for cell in (phases, after))):
            found.add((edge[0], named[0], edge[1]))
    return found


@pytest.mark.parametrize(
    ("title", "machine"), [("Client states", Client), ("Server states", Server)], ids=["client", "server"]
)
def test_the_specification_draws_the_table_that_the_code_follows(title: str, machine: Any) -> None:
    """That a server may abort in each phase is said in words there."""
    moves = {
        (move.phase.name, move.takes.__name__, after.name)
        for move in machine.moves
        for after in move.after
        if after.name != "ABORTED"
    }
    assert drawn(title) == moves


def test_an_aborted_or_finished_session_cannot_be_continued() -> None:
    world = World(n=3, threshold=3).check_in()
    with pytest.raises(TooFewClients):
        world.server.close_phase()
    with pytest.raises(WrongPhase):
        world.server.close_phase()
    with pytest.raises(WrongPhase):
        _ = world.server.opened
    done = World(n=3, threshold=3).to_unmask()
    done.unmask()
    with pytest.raises(WrongPhase):
        done.server.close_phase()
    with pytest.raises(WrongPhase):
        done.server.start_sum(done.names, Layout(dense=8), {})


def test_content_that_cannot_be_is_refused_and_changes_nothing() -> None:
    replace = msgspec.structs.replace  # the messages' own; Start is a dataclass
    world = World(n=4, threshold=3).share()
    inbound, client = world.inbound["c0"], world.clients["c0"]
    before = frozen(client)
    for bad in (
        replace(inbound, senders=(1, 2)),  # a box too many
        replace(inbound, senders=(3, 2, 1)),  # out of order
        replace(inbound, senders=(1, 2, 9)),  # a stranger
        replace(inbound, senders=(0, 1, 2)),  # itself
        replace(inbound, requesters=b"\0"),  # bits for rows it never asked for
        replace(inbound, boxes=(b"", *inbound.boxes[1:])),  # a box cut short
        replace(inbound, round_id=bytes(16)),
    ):
        with pytest.raises(RemoteError):
            client.handle_inbound(bad)
        assert frozen(client) == before
    assert client.handle_inbound(inbound).participants == (0, 1, 2, 3)

    world = World(n=4, threshold=3).to_unmask()
    server = world.server
    answer = world.clients["c1"].handle_unmask(world.requests["c1"])
    before = frozen(server)
    for bad in (
        replace(answer, shares=answer.shares[1:]),
        replace(answer, shares=(b"\xff" * 33, *answer.shares[1:])),  # not a field element
        replace(answer, sum=1),
    ):
        with pytest.raises(RemoteError):
            server.receive("c1", bad)
        assert frozen(server) == before


def test_starts_and_lists_that_cannot_be() -> None:
    world = World(n=4, threshold=3).share()
    client = world.clients["c0"]
    start = world.starts()["c0"]
    before = frozen(client)
    for bad in (
        replace(start, participants=(1, 2, 3)),  # without this client
        replace(start, participants=(0, 1, 2, 7)),  # a stranger
        replace(start, participants=(0, 2, 1, 3)),  # out of order
        replace(start, participants=(0, 1)),  # too few
        replace(start, layout=Layout(dense=9)),  # not what was announced
        replace(start, rows=(np.array([0]),)),  # rows of a table there is not
    ):
        with pytest.raises(RemoteError):
            client.create_masked(bad, np.arange(8))
        assert frozen(client) == before
    client.create_masked(start, np.arange(8))
    before = frozen(client)
    for survivors, dropped in (
        ((3, 2, 1, 0), ()),
        ((0, 1, 2, 3, 3), ()),
        ((0, 1), (3, 2)),
        ((), (0, 1, 2, 3)),
    ):
        with pytest.raises(Refused):
            client.handle_unmask(UnmaskRequest(world.params.round_id, 0, survivors, dropped, ()))
        assert frozen(client) == before


def test_starts_with_rows_that_their_requesters_do_not_match() -> None:
    table = SumParams(
        label="sum", ring="z32", min_contributors=1, layout=Layout(dense=0, tables=(TableShape(4, 2),))
    )
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=100)
    world = World(n=3, threshold=2, sums=(table,), policy=policy)
    world.share(rows={"c0": [[0, 3]], "c1": [[0]], "c2": [[0, 1]]})
    client, values = world.clients["c0"], [np.ones((2, 2), np.uint32)]
    start = world.starts()["c0"]
    (told,) = start.requesters
    before = frozen(client)
    for bad in (
        replace(start, rows=(), requesters=()),  # of no table, where the sum has one
        replace(start, rows=(*start.rows, *start.rows), requesters=(told, told)),
        replace(start, requesters=(told[:1],)),  # of fewer clients
        replace(start, requesters=(told[:, :1],)),  # of fewer rows
    ):
        with pytest.raises(InvalidMessage, match="requesters do not match"):
            client.create_masked(bad, [], values)
        assert frozen(client) == before
    client.create_masked(start, [], values)


@pytest.mark.parametrize(
    ("survivors", "dropped"),
    [
        ((3, 2, 1, 0), ()),
        ((0, 1, 2), ()),  # one is in neither
        ((0, 1, 2, 3), (3,)),  # and in both
        ((1, 2, 3), (0,)),  # this client answered
        ((0, 1), (2, 3)),  # too few
    ],
)
def test_in_active_mode_lists_that_cannot_be_are_not_even_signed(
    survivors: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    """A signature under them would help a server that shows others the same."""
    client = client_in(ClientPhase.MASKED, active=True)
    before = frozen(client)
    _, sent = messages(active=True)
    with pytest.raises(Refused):
        client.handle_survivors(
            msgspec.structs.replace(sent["survivors"], survivors=survivors, dropped=dropped)
        )
    assert frozen(client) == before
    client.handle_survivors(sent["survivors"])


@pytest.mark.parametrize("phase", [ClientPhase.NEW, ClientPhase.CHECKED_IN])
def test_what_a_client_knows_of_its_session_it_knows_in_one(phase: ClientPhase) -> None:
    client = client_in(phase, active=True)
    for ask in (lambda: client.binding, lambda: client.position, lambda: client.sign_request(())):
        with pytest.raises(WrongPhase, match="is in no session"):
            ask()
    joined = client_in(ClientPhase.SHARED, active=True)
    assert (len(joined.binding), joined.position) == (32, 0)


def test_who_is_asked_at_the_wrong_time_says_when_it_would_be_right() -> None:
    _, sent = messages(active=False)
    client = client_in(ClientPhase.SHARED, active=False)
    with pytest.raises(WrongPhase, match=r"takes no Roster now; that needs CHECKED_IN$"):
        client.handle_roster(sent["roster"])
    with pytest.raises(WrongPhase, match=r"takes no Survivors now; that needs another mode$"):
        client.handle_survivors(sent["survivors"])


def test_a_finished_client_has_forgotten_its_secrets() -> None:
    world = World(n=3, threshold=2).to_unmask()
    client = world.clients["c0"]
    assert "('secret'" in repr(frozen(client))
    client.handle_unmask(world.requests["c0"])
    assert "('secret'" not in repr(frozen(client))
    assert "('pair'" not in repr(frozen(client))
    assert client.state.__struct_fields__ == ("position",)


def test_a_second_sum_is_started_only_among_those_who_lasted() -> None:
    one, two = (
        SumParams(label=label, ring="z32", min_contributors=1, layout=Layout(dense=8)) for label in ("a", "b")
    )
    world = World(n=4, threshold=2, sums=(one, two)).to_unmask()
    world.unmask(drop={"c3"})
    assert world.server.answered == ("c0", "c1", "c2")
    for names, layout in (
        (["c0", "c1", "c3"], Layout(dense=8)),  # c3 missed an exchange
        (["c0", "c1", "c1"], Layout(dense=8)),
        (["c0", "c1", "nobody"], Layout(dense=8)),
        (["c0", "c1"], Layout(dense=9)),
    ):
        with pytest.raises(ParameterError):
            world.server.start_sum(names, layout, {})
    world.server.start_sum(["c0", "c1", "c2"], Layout(dense=8), {})
    assert world.server.phase is ServerPhase.MASKED


def test_a_second_sum_among_too_few_aborts_for_good() -> None:
    one, two = (
        SumParams(label=label, ring="z32", min_contributors=1, layout=Layout(dense=8)) for label in ("a", "b")
    )
    world = World(n=4, threshold=2, sums=(one, two)).to_unmask()
    world.unmask()
    with pytest.raises(TooFewClients):
        world.server.start_sum(["c0"], Layout(dense=8), {})
    with pytest.raises(WrongPhase):
        world.server.start_sum(world.names, Layout(dense=8), {})


@pytest.mark.parametrize("words", [bytes(31), bytes(36), b""])
def test_a_vector_of_the_wrong_length_is_refused(words: bytes) -> None:
    world = World(n=3, threshold=2).share()
    start = world.starts()["c0"]
    masked = world.clients["c0"].create_masked(start, world.vectors["c0"])
    before = frozen(world.server)
    with pytest.raises(RemoteError):
        world.server.receive("c0", msgspec.structs.replace(masked, words=words))
    assert frozen(world.server) == before
    world.server.receive("c0", masked)


def test_servers_are_built_only_from_fitting_keys() -> None:
    world = World(n=3, threshold=2).check_in()
    keys = list(world.keys.values())
    for bad, identities in (
        (keys[:2], None),
        ([keys[0], keys[0], keys[1]], None),
        ([msgspec.structs.replace(keys[0], masks=(keys[1].masks[0],)), *keys[1:]], None),
        ([msgspec.structs.replace(keys[0], commitments=(bytes(32), bytes(32))), *keys[1:]], None),
        (keys, {}),
    ):
        with pytest.raises(Exception, match=r".") as caught:
            Server(world.params, bad, identities)
        assert type(caught.value).__module__ == "sfsl.errors"


def test_values_that_do_not_fit_the_sum_are_the_callers_fault() -> None:
    world = World(n=3, threshold=2).share()
    start, client = world.starts()["c0"], world.clients["c0"]
    before = frozen(client)
    for dense, tables in ((np.arange(7), ()), (np.arange(8), ([[1]],)), (np.array([0.5] * 8), ())):
        with pytest.raises(InputError):
            client.create_masked(start, dense, tables)
        assert frozen(client) == before


@pytest.mark.parametrize("name", ["", "x" * 65, 7])
def test_client_ids(name: Any) -> None:
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=1)
    with pytest.raises(InputError, match="client id"):
        Client(name, policy, SeededRandomness(0))


def test_half_an_active_client_is_refused() -> None:
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=1)
    with pytest.raises(ValueError, match="identity"):
        Client("c", policy, SeededRandomness(0), identities={})
