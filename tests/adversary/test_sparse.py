"""A server on a sparse graph: whom it shows a client as its neighbours, and whom it says survived."""

from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, remove

import sfsl.secagg.client
import sfsl.secagg.states
from sfsl.codec import read_bits
from sfsl.crypto.secret import KeyPair, Secret, channel_keys, digest, unseal
from sfsl.errors import AuthenticationFailed, Refused
from sfsl.secagg import Client
from sfsl.secagg.graph import peers_of
from sfsl.secagg.messages import CODEC, InboundShares, Member, Roster, UnmaskRequest, commitment
from sfsl.secagg.states import CheckedIn
from sfsl.secagg.tree import Tree
from sfsl.testing import SeededRandomness
from world import World, frozen

ATTACKS, attack = collector()
changed = msgspec.structs.replace
OWN = 0  # the position of the victim, c0


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


def sparse(**options: Any) -> World:
    return World(n=10, threshold=3, neighbours=4, **options)


def everyone(world: World) -> list[Member]:
    return [Member(place, world.keys[name]) for place, name in enumerate(world.names)]


def roster_of(world: World, members: list[Member], places: list[int]) -> Roster:
    """A roster of these places, proved to be in the tree of these members."""
    tree = Tree(members)
    return Roster(world.params, tuple(members[k] for k in places), tree.root, tree.proof(places))


def honest_roster(world: World, members: list[Member]) -> Roster:
    """A roster of the members, each in the place it has in the list, with the neighbours due to c0's keys."""
    own = next(place for place, one in enumerate(members) if one.keys == world.keys["c0"])
    near = peers_of(world.params, Tree(members).root, own)
    return roster_of(world, members, sorted([own, *near]))


def reads_the_seed(world: World, roster: Roster, private: dict[int, KeyPair]) -> bool:
    """c0 answers a roster; whoever has these channel keys opens its boxes and rebuilds its seed."""
    sealed = world.clients["c0"].handle_roster(roster)
    bound = sfsl.secagg.states.binding(roster)
    places = [member.position for member in roster.members if member.position != OWN]
    shares = {}
    for place, box in zip(places, sealed.boxes, strict=True):
        if place in private and len(shares) < world.params.threshold:
            _, key = channel_keys(private[place], world.keys["c0"].channel, bound)
            plain = unseal(key, box, "shares", world.params.round_id, OWN, place)
            shares[world.names[place]] = plain[33:]
    return commitment(world.reconstruct(shares)) == world.keys["c0"].commitments[0]


def channel_of(client: Client) -> KeyPair:
    assert isinstance(client.state, CheckedIn)
    return client.state.channel


# -- neighbours -----------------------------------------------------------------------------------


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "_require_neighbours"))
def choosing_colluding_clients_as_neighbours() -> bool:
    """Three of ten collude, as many as the threshold. The server makes them neighbours of its victim."""
    world = sparse().check_in()
    near = peers_of(world.params, Tree(everyone(world)).root, OWN)
    colluding = sorted([place for place in range(1, 10) if place not in near][:3])
    private = {place: channel_of(world.clients[world.names[place]]) for place in colluding}
    return reads_the_seed(world, roster_of(world, everyone(world), [OWN, *colluding]), private)


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "_require_neighbours"))
def showing_a_client_fewer_neighbours() -> bool:
    world = sparse().check_in()
    near = peers_of(world.params, Tree(everyone(world)).root, OWN)
    return bool(world.clients["c0"].handle_roster(roster_of(world, everyone(world), [OWN, *near[1:]])).boxes)


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "require_proof"))
def replacing_the_keys_of_neighbours() -> bool:
    """The root that all others see stays, so that the sum still comes out; the victim's boxes are read."""
    world = sparse().check_in()
    roster, randomness = world.rosters["c0"], SeededRandomness("server")
    pairs = {one.position: KeyPair.generate(randomness) for one in roster.members if one.position != OWN}
    members = [
        Member(one.position, changed(one.keys, channel=pairs[one.position].public))
        if one.position in pairs
        else one
        for one in roster.members
    ]
    return reads_the_seed(world, changed(roster, members=tuple(members)), pairs)


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "require_proof"))
def replacing_the_keys_of_one_member() -> bool:
    world = sparse().check_in()
    roster = world.rosters["c0"]
    *rest, last = roster.members
    swapped = changed(last.keys, channel=KeyPair(Secret(b"\x07" * 32)).public)
    shown = changed(roster, members=(*rest, Member(last.position, swapped)))
    return bool(world.clients["c0"].handle_roster(shown).boxes)


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "require_proof"))
def a_wrong_proof() -> bool:
    world = sparse().check_in()
    roster = world.rosters["c0"]
    wrong = roster.proof[:-1] + bytes((roster.proof[-1] ^ 1,))
    return bool(world.clients["c0"].handle_roster(changed(roster, proof=wrong)).boxes)


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "require_proof"))
def exchanging_the_places_of_two_neighbours() -> bool:
    world = sparse().check_in()
    roster = world.rosters["c0"]
    first, second, *rest = roster.members[1:]
    swapped = (Member(first.position, second.keys), Member(second.position, first.keys), *rest)
    return bool(
        world.clients["c0"].handle_roster(changed(roster, members=(roster.members[0], *swapped))).boxes
    )


@attack(refusal=Refused, weaken=remove(sfsl.secagg.client, "require_proof"))
def grinding_the_order_of_the_roster() -> bool:
    """The server deals out places at will, with the right neighbours and proof for each order, until enough
    colluders are near. Ids in order leave it one order."""
    world = sparse().check_in()
    colluding = {world.keys[name] for name in ("c1", "c2", "c3")}
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(9) + 1
        keys = [world.keys["c0"], *(world.keys[world.names[place]] for place in order)]
        roster = honest_roster(world, [Member(place, one) for place, one in enumerate(keys)])
        if sum(one.keys in colluding for one in roster.members) == 3:
            return bool(world.clients["c0"].handle_roster(roster).boxes)


def unbound(roster: Roster) -> bytes:
    """A binding that leaves the roster out of the keys."""
    return digest("roster", CODEC.encode(Roster(roster.params, ())))


@attack(
    refusal=AuthenticationFailed,
    weaken=lambda patch: patch.setattr(sfsl.secagg.states, "binding", unbound),
)
def another_root_for_one_client() -> bool:
    """c0 alone is shown a roster in which others have other keys: its neighbours cannot open its boxes."""
    world = sparse().check_in()
    for trial in range(100):
        members = everyone(world)
        odd = members[9].keys
        members[9] = Member(9, changed(odd, channel=KeyPair(Secret(bytes((trial, *bytes(31))))).public))
        roster = honest_roster(world, members)
        known = {one.position for one in world.rosters["c0"].members} - {OWN, 9}
        common = sorted(known & {one.position for one in roster.members})
        if common:
            break
    sealed = {name: world.clients[name].handle_roster(world.rosters[name]) for name in world.names[1:]}
    sealed["c0"] = world.clients["c0"].handle_roster(roster)
    shown = world.rosters | {"c0": roster}
    place, name = common[0], world.names[common[0]]
    senders = tuple(one.position for one in world.rosters[name].members if one.position != place)
    boxes = []
    for sender in senders:
        receivers = [one.position for one in shown[world.names[sender]].members if one.position != sender]
        boxes.append(sealed[world.names[sender]].boxes[receivers.index(place)])
    inbound = InboundShares(world.params.round_id, senders, tuple(boxes), b"", ())
    return OWN in world.clients[name].handle_inbound(inbound).participants


# -- survivors ------------------------------------------------------------------------------------


def cohort(world: World, request: UnmaskRequest, *, without: int, far: bool = True) -> UnmaskRequest:
    """The request with so many survivors fewer, among those who are far from c0 or near."""
    bits = read_bits(request.cohort, world.params.clients).copy()
    near = {one.position for one in world.rosters["c0"].members}
    places = [place for place in range(len(bits)) if bits[place] and (place in near) != far and place != OWN]
    bits[places[:without]] = False
    return changed(request, cohort=np.packbits(bits).tobytes())


@attack(refusal=Refused, weaken=remove(Client, "_require_cohort"))
def opening_the_sum_of_fewer_survivors_than_promised() -> bool:
    """Nine were promised and nine uploaded; the server says that one of them is not in the sum."""
    world = sparse(least_survivors=9).to_unmask(drop={"c9"})
    return bool(world.clients["c0"].handle_unmask(cohort(world, world.requests["c0"], without=1)).shares)


@attack(refusal=Refused, weaken=remove(Client, "_require_cohort"))
def survivors_that_contradict_the_lists() -> bool:
    world = sparse(least_survivors=2).to_unmask()
    told = cohort(world, world.requests["c0"], without=1, far=False)
    return bool(world.clients["c0"].handle_unmask(told).shares)


@attack(refusal=Refused, weaken=remove(Client, "_require_cohort"))
def counting_a_neighbour_that_dropped_as_a_survivor() -> bool:
    world = sparse(least_survivors=9).check_in()
    near = next(one.keys.client for one in world.rosters["c0"].members if one.position != OWN)
    world = sparse(least_survivors=9).to_unmask(drop={near})
    told = changed(world.requests["c0"], cohort=b"\xff\xc0")
    return bool(world.clients["c0"].handle_unmask(told).shares)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_a_refusal_changes_nothing(one: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client that refuses is as it was before."""
    seen = []

    def watched(step: str) -> None:
        honest = getattr(Client, step)

        def handle(self: Client, *given: Any) -> Any:
            before = frozen(self)
            try:
                return honest(self, *given)
            except Exception:
                seen.append(frozen(self) == before)
                raise

        monkeypatch.setattr(Client, step, handle)

    for step in ("handle_roster", "handle_inbound", "handle_unmask"):
        watched(step)
    assert_stopped(one)
    assert seen == [True]
