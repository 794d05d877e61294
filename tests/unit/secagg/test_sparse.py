"""Sparse graphs: trees over rosters, neighbours that each client computes, survivors of the whole cohort."""

from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.crypto.ring import Z64
from sfsl.errors import InvalidMessage, ParameterError, Refused, TooFewClients, WrongPhase
from sfsl.secagg import Client, Policy, default_graph, plan_graph
from sfsl.secagg.facade import Session
from sfsl.secagg.graph import around, peers, peers_of
from sfsl.secagg.messages import CODEC, Keys, Member, Roster, UnmaskRequest, size_limit
from sfsl.secagg.states import SessionSnapshot, restored, snapshot
from sfsl.secagg.tree import Tree, leaf, root_of
from world import World, frozen, over_the_wire

changed = msgspec.structs.replace


def members_of(count: int) -> list[Member]:
    keys = [Keys(f"c{i:05d}", i.to_bytes(32, "big"), (bytes(32),), (bytes(32),), None) for i in range(count)]
    return [Member(position, one) for position, one in enumerate(keys)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 31, 100])
def test_any_members_prove_the_root(count: int) -> None:
    members, rng = members_of(count), np.random.default_rng(count)
    tree = Tree(members)
    for size in {1, count // 3 + 1, count}:
        places = np.sort(rng.choice(count, size, replace=False)).tolist()
        leaves = {place: leaf(place, members[place].keys) for place in places}
        proof = tree.proof(places)
        assert root_of(leaves, count, proof) == tree.root
        assert size < count or proof == b""
        with pytest.raises(InvalidMessage):
            root_of(leaves, count, proof + bytes(32))
        with pytest.raises(InvalidMessage):
            root_of(leaves, count, proof + b"\x00")
        if proof:
            with pytest.raises(InvalidMessage):
                root_of(leaves, count, proof[:-32])
            assert root_of(leaves, count, proof[:-32] + bytes(32)) != tree.root


def test_a_proof_is_compact() -> None:
    """Of 1,000 clients, 93 members with one proof, a third of what a path for each would take."""
    tree, places = Tree(members_of(1000)), np.random.default_rng(0).choice(1000, 93, replace=False)
    assert len(tree.proof(sorted(places.tolist()))) < 93 * 10 * 32 / 2.5


@pytest.mark.parametrize(("clients", "neighbours"), [(3, 2), (5, 4), (10, 2), (60, 12)])
def test_each_client_computes_its_own_neighbours(clients: int, neighbours: int) -> None:
    world = World(n=4)
    params = changed(world.params, clients=clients, threshold=2, neighbours=neighbours)
    root = bytes(range(32))
    graph = peers(params, root)
    assert [peers_of(params, root, place) for place in range(clients)] == [list(near) for near in graph]
    assert peers(params, bytes(32)) != graph or clients == 3 or neighbours == clients - 1


def test_neighbours_where_words_are_equal() -> None:
    rng = np.random.default_rng(0)
    for clients in (2, 3, 4, 9):
        for _ in range(200):
            words = rng.choice(np.array([0, 1, 2, 2**64 - 1], np.uint64), clients).astype(Z64.dtype)
            order = np.argsort(words, kind="stable").tolist()
            for own in range(clients):
                place = order.index(own)
                assert around(words, own) == (order[place - 1], order[(place + 1) % clients])


def test_a_client_keeps_the_root_and_not_the_proof() -> None:
    world = World(n=10, threshold=3, neighbours=4).check_in()
    world.clients["c0"].handle_roster(world.rosters["c0"])
    state: Any = world.clients["c0"].state
    assert world.rosters["c0"].proof
    assert (state.place.roster.proof, state.place.roster.root) == (b"", world.rosters["c0"].root)


@pytest.mark.parametrize("change", [{"root": None}, {"root": None, "proof": b""}])
def test_a_sparse_roster_without_a_root(change: dict[str, Any]) -> None:
    world = World(n=10, threshold=3, neighbours=4).check_in()
    with pytest.raises(InvalidMessage, match="root"):
        world.clients["c0"].handle_roster(changed(world.rosters["c0"], **change))


@pytest.mark.parametrize("change", [{"root": bytes(32)}, {"proof": bytes(32)}])
def test_a_complete_roster_with_a_root(change: dict[str, Any]) -> None:
    world = World(n=4).check_in()
    with pytest.raises(InvalidMessage, match="root"):
        world.clients["c0"].handle_roster(changed(world.rosters["c0"], **change))


def test_survivors_of_the_cohort_on_a_complete_graph() -> None:
    world = World(n=4).to_unmask()
    assert world.requests["c0"].cohort == b""
    with pytest.raises(InvalidMessage, match="besides"):
        world.clients["c0"].handle_unmask(changed(world.requests["c0"], cohort=b"\xf0"))


@pytest.mark.parametrize("fields", [{"least_survivors": 4}, {"neighbours": 2, "least_survivors": 5}])
def test_promises_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="surviv"):
        World(n=4, **fields)


def test_no_graph_of_more_than_512_neighbours() -> None:
    with pytest.raises(ParameterError, match="at most 512"):
        changed(World(n=4).params, clients=1000, neighbours=514)


def test_the_server_stops_where_fewer_survive_than_promised() -> None:
    """Before anyone is asked for a share, and as soon as it is certain."""
    with pytest.raises(TooFewClients, match="8 clients answered in phase masked, 9 are needed"):
        World(n=10, threshold=3, neighbours=4, least_survivors=9).to_unmask(drop={"c8", "c9"})
    with pytest.raises(TooFewClients, match="8 clients answered in phase shares, 9 are needed"):
        World(n=10, threshold=3, neighbours=4, least_survivors=9).share(drop={"c8", "c9"})


def test_who_falls_silent_after_the_upload_counts_as_a_survivor() -> None:
    world = World(n=10, threshold=2, neighbours=6, least_survivors=9).to_unmask(drop={"c9"})
    assert world.unmask(drop={"c7", "c8"}).tolist() == world.plain_sum(world.names[:9]).tolist()


def test_a_client_wants_its_own_least_cohort_of_survivors_too() -> None:
    policy = Policy(min_clients=10, min_threshold=2, min_contributors=1, max_words=100)
    world = World(n=10, threshold=2, neighbours=6, policy=policy).to_unmask(drop={"c9"})
    with pytest.raises(Refused, match="9 clients of the cohort survived, at least 10"):
        world.clients["c0"].handle_unmask(world.requests["c0"])


def test_a_client_of_a_sparse_graph_that_is_put_away_between_messages() -> None:
    world = World(n=10, threshold=3, neighbours=4, least_survivors=9)

    def passed() -> None:
        """Every client through bytes."""
        for name, client in world.clients.items():
            if client.phase.name == "FINISHED":
                continue
            kept = msgspec.msgpack.encode(snapshot(client.state))
            back = restored(msgspec.msgpack.decode(kept, type=SessionSnapshot))
            assert frozen(back) == frozen(client.state)
            world.clients[name] = Client(name, world.policy, world.randomness, state=back)

    world.check_in()
    passed()
    for name, roster in world.rosters.items():
        world.server.receive(name, over_the_wire(world.clients[name].handle_roster(roster)))
    passed()
    world.inbound = world.close()
    world.mask(drop={"c3"})
    passed()
    world.requests = world.close()
    assert world.unmask().tolist() == world.plain_sum(set(world.names) - {"c3"}).tolist()


def test_a_client_that_waits_for_nothing_is_not_put_away() -> None:
    """It has made no keys yet, or has answered all there was to answer."""
    world = World(n=10, threshold=3, neighbours=4, least_survivors=9)
    for client in world.clients.values():
        with pytest.raises(WrongPhase, match="that is NEW waits for no message"):
            snapshot(client.state)
    world.to_unmask()
    world.unmask()
    for client in world.clients.values():
        with pytest.raises(WrongPhase, match="that is FINISHED waits for no message"):
            snapshot(client.state)


def test_a_snapshot_says_itself_whether_lists_were_signed() -> None:
    world = World(n=4, threshold=3, active=True).share()
    world.mask()
    lists = world.close()["c0"]
    client = world.clients["c0"]
    masked = snapshot(client.state)
    client.handle_survivors(lists)
    confirmed = snapshot(client.state)
    assert restored(confirmed).phase.name == "CONFIRMED"
    assert restored(changed(masked, confirmed=confirmed.confirmed)).phase.name == "MASKED"
    assert restored(changed(confirmed, confirmed=None)).phase.name == "MASKED"


def test_what_was_kept_has_rows_of_as_many_tables_as_a_sum_may_have() -> None:
    kept = snapshot(World(n=10, threshold=3, neighbours=4).check_in().clients["c0"].state)
    for count, fits in ((64, True), (65, False)):
        data = msgspec.msgpack.encode(changed(kept, asked=(b"",) * count))
        if fits:
            assert len(msgspec.msgpack.decode(data, type=SessionSnapshot).asked) == count
        else:
            with pytest.raises(msgspec.ValidationError, match="length <= 64"):
                msgspec.msgpack.decode(data, type=SessionSnapshot)


def test_default_graphs() -> None:
    for clients in (513, 1000):
        plan = default_graph(clients)
        assert plan == plan_graph(clients, dropout=0.2, corruption=0.1, failure=2**-40)
        assert max(plan.opened, plan.split, plan.stuck) <= 2**-40
        assert plan.survivors == clients - int(np.ceil(0.2 * clients))
    assert plan_graph.cache_info().hits


def test_the_largest_sparse_messages_are_within_the_limit() -> None:
    """Longest ids, most neighbours, as many hashes beside them as there can be."""
    params = changed(World(n=4).params, clients=60_000, neighbours=512, least_survivors=60_000)
    limit = size_limit(params, params.first_layout, 0)
    keys = Keys("\U0001f98a" * 64, bytes(32), (bytes(32),), (bytes(32),), bytes(64))
    members = tuple(Member(117 * place, keys) for place in range(513))
    proof = Tree(members_of(60_000)).proof([one.position for one in members])
    assert len(CODEC.encode(Roster(params, members, bytes(32), proof))) <= limit
    everyone = tuple(range(513))
    request = UnmaskRequest(params.round_id, 0, everyone, (), (), bytes(7500))
    assert len(CODEC.encode(request)) <= limit
    small = changed(params, clients=514, least_survivors=514)
    proof = Tree(members_of(514)).proof(everyone)
    limit = size_limit(small, small.first_layout, 0)
    assert len(CODEC.encode(Roster(small, members, bytes(32), proof))) <= limit


def test_a_session_promises_survivors() -> None:
    names = [f"c{i}" for i in range(10)]
    session = Session(names, World(n=4).sums[0], None, 3, 4, active=False, least_survivors=9)
    assert session.params.least_survivors == 9
