"""What a curious or lying server, a lying client, or a late or replayed message could gain: nothing."""

from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, forget, remove

import sfsl.crypto.secret
import sfsl.secagg.client
import sfsl.secagg.messages
import sfsl.secagg.server
import sfsl.secagg.states
from sfsl.codec import Codec
from sfsl.crypto.ring import Z32
from sfsl.crypto.secret import Identity, KeyPair, Secret, channel_keys
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    DecodeError,
    InvalidMessage,
    KeyMismatch,
    Oversize,
    Refused,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.secagg import Client, Layout, Policy, Server, SumParams, TableShape
from sfsl.secagg.messages import CODEC, Member, Roster, UnmaskRequest, binding
from sfsl.secagg.states import Ready
from sfsl.testing import SeededRandomness
from world import World, over_the_wire, tampered

ATTACKS, attack = collector()
changed = msgspec.structs.replace


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


def both_secrets(world: World, victim: str, answers: dict[str, list[Any]]) -> bool:
    """From answers that list the victim as survivor (first) and as dropped (second): its vector."""
    place = world.names.index(victim)
    seed = world.reconstruct({name: pair[0].shares[place] for name, pair in answers.items()})
    key = world.reconstruct({name: pair[1].shares[place] for name, pair in answers.items()})
    return bool(np.array_equal(world.strip(victim, seed, key), world.vectors[victim]))


def request(world: World, survivors: list[int], dropped: list[int]) -> UnmaskRequest:
    return UnmaskRequest(world.params.round_id, 0, tuple(survivors), tuple(dropped), ())


# -- a server that wants one client's vector ------------------------------------------------------


@attack(refusal=WrongPhase, weaken=forget(Client, "handle_unmask"))
def asking_for_both_shares_of_one_client() -> bool:
    world = World(n=5, threshold=3).to_unmask()
    as_survivor = request(world, [0, 1, 2, 3, 4], [])
    as_dropped = request(world, [1, 2, 3, 4], [0])
    answers = {
        name: [world.clients[name].handle_unmask(one) for one in (as_survivor, as_dropped)]
        for name in ("c1", "c2", "c3")
    }
    return both_secrets(world, "c0", answers)


@attack(refusal=Refused, weaken=remove(Client, "_require_partition"))
def overlapping_lists() -> bool:
    world = World(n=5, threshold=3).to_unmask()
    answer = world.clients["c1"].handle_unmask(request(world, [0, 1, 2, 3, 4], [0]))
    return len(answer.shares) > len(world.names)


@attack(refusal=Refused, weaken=remove(Client, "_require_partition"))
def lists_that_leave_someone_out() -> bool:
    world = World(n=5, threshold=3).to_unmask()
    return bool(world.clients["c1"].handle_unmask(request(world, [1, 2, 3], [4])).shares)


@attack(refusal=Refused, weaken=remove(Client, "_require_partition"))
def listing_the_answering_client_as_dropped() -> bool:
    world = World(n=5, threshold=3).to_unmask()
    return bool(world.clients["c1"].handle_unmask(request(world, [0, 2, 3, 4], [1])).shares)


@attack(refusal=Refused, weaken=remove(Client, "_require_enough"))
def declaring_everyone_else_dropped() -> bool:
    """One survivor, four 'dropouts': the sum of one is the victim's vector."""
    world = World(n=5, threshold=3).to_unmask()
    only = request(world, [0], [1, 2, 3, 4])
    answer = world.clients["c0"].handle_unmask(only)
    return len(answer.shares) == 5


@attack(refusal=Refused, weaken=remove(Client, "_require_signatures"))
def different_lists_for_different_clients_in_active_mode() -> bool:
    """Half the cohort is told that c0 survived, half that it dropped."""
    world = World(n=7, threshold=5, active=True)
    world.share().mask()
    lists: dict[str, Any] = world.close()
    for name, message in lists.items():
        world.server.receive(name, world.clients[name].handle_survivors(message))
    requests: dict[str, Any] = world.close()
    told = changed(requests["c3"], survivors=(1, 2, 3, 4, 5, 6), dropped=(0,))
    honest = world.clients["c1"].handle_unmask(requests["c1"])
    lied_to = world.clients["c3"].handle_unmask(told)
    return bool(honest.shares[0] and lied_to.shares[0])


@attack(refusal=Refused, weaken=remove(Client, "_require_enough"))
def too_few_signatures_in_active_mode() -> bool:
    world = World(n=7, threshold=5, active=True).to_unmask()
    asked = world.requests["c1"]
    return bool(world.clients["c1"].handle_unmask(changed(asked, signatures=asked.signatures[:4])).shares)


@attack(refusal=AuthenticationFailed, weaken=remove(sfsl.secagg.client, "verify"))
def forged_signatures_in_active_mode() -> bool:
    world = World(n=7, threshold=5, active=True).to_unmask()
    asked = world.requests["c1"]
    forged = tuple((place, bytes(64)) for place, _ in asked.signatures)
    return bool(world.clients["c1"].handle_unmask(changed(asked, signatures=forged)).shares)


@attack(
    refusal=AuthenticationFailed,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_keys", lambda *_: None),
)
def swapping_a_clients_keys_in_active_mode() -> bool:
    """The server puts its own channel key in c1's place and reads what c0 seals for c1."""
    world = World(n=4, threshold=3, active=True).check_in()
    own = KeyPair.generate(SeededRandomness("server"))
    members = list(world.rosters["c0"].members)
    members[1] = changed(members[1], keys=changed(members[1].keys, channel=own.public))
    roster = Roster(world.params, tuple(members))
    answer = world.clients["c0"].handle_roster(roster)
    bound = binding(roster)
    key = channel_keys(own, world.keys["c0"].channel, bound)[1]
    plain = sfsl.crypto.secret.unseal(key, answer.boxes[0], "shares", world.params.round_id, 0, 1)
    return len(plain) == 66


def ignore_roster(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sfsl.secagg.states, "binding", lambda roster: bytes(32))


@attack(refusal=AuthenticationFailed, weaken=ignore_roster)
def different_rosters_for_different_clients() -> bool:
    """c0 is shown another threshold than the others: its boxes must not open for them."""
    world = World(n=4, threshold=3).check_in()
    members = world.rosters["c0"].members
    weaker = Roster(changed(world.params, threshold=2), members)
    for name in world.names:
        roster = weaker if name == "c0" else world.rosters[name]
        world.server.receive(name, world.clients[name].handle_roster(roster))
    inbound: dict[str, Any] = world.close()
    return bool(world.clients["c1"].handle_inbound(inbound["c1"]))


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_policy", lambda *_, **__: None),
)
def too_small_a_cohort() -> bool:
    policy = Policy(min_clients=10, min_threshold=2, min_contributors=1, max_words=100)
    world = World(n=3, threshold=2, policy=policy).check_in()
    return bool(world.clients["c0"].handle_roster(world.rosters["c0"]).boxes)


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_policy", lambda *_, **__: None),
)
def too_low_a_threshold() -> bool:
    policy = Policy(min_clients=2, min_threshold=4, min_contributors=1, max_words=100)
    world = World(n=5, threshold=2, policy=policy).check_in()
    return bool(world.clients["c0"].handle_roster(world.rosters["c0"]).boxes)


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_policy", lambda *_, **__: None),
)
def talking_a_client_out_of_active_mode() -> bool:
    world = World(n=4, threshold=3, active=True).check_in()
    roster = Roster(changed(world.params, active=False), world.rosters["c0"].members)
    return bool(world.clients["c0"].handle_roster(roster).boxes)


@attack(refusal=Refused, weaken=remove(Client, "_require_enough"))
def withholding_boxes_until_few_are_left() -> bool:
    world = World(n=5, threshold=3).share()
    inbound = world.inbound["c0"]
    few = changed(inbound, senders=inbound.senders[:1], boxes=inbound.boxes[:1])
    return bool(world.clients["c0"].handle_inbound(few).participants)


def share_a_stream(patch: pytest.MonkeyPatch) -> None:
    """Without either line of defence: doubles allowed, and places not bound into the key."""
    patch.setattr(sfsl.secagg.messages, "require_distinct", lambda keys: None)
    honest = sfsl.secagg.client.pair_mask_key
    patch.setattr(
        sfsl.secagg.client,
        "pair_mask_key",
        lambda own, peer, bound, ctx, low, high: honest(own, peer, bound, ctx, 0, 1),
    )


@attack(refusal=Refused, weaken=share_a_stream)
def one_key_in_two_places_of_the_roster() -> bool:
    """c0's mask key again at c2: for c1 between them the two streams are equal and cancel."""
    world = World(n=3, threshold=2).check_in()
    members = list(world.rosters["c1"].members)
    members[2] = changed(members[2], keys=changed(members[2].keys, masks=members[0].keys.masks))
    roster = Roster(world.params, tuple(members))
    answer = world.clients["c1"].handle_roster(roster)
    client = world.clients["c1"]
    shared: Any = client.state
    client._state = Ready(shared.place, 0, shared.secrets, shared.shares, (0, 1, 2))
    start = sfsl.secagg.client.Start(Layout(dense=8), (0, 1, 2))
    masked = client.create_masked(start, np.zeros(8, np.uint32))
    only_self_mask = Z32.zeros(8)
    context = sfsl.secagg.messages.sum_context("sum", Layout(dense=8), (0, 1, 2), b"")
    key = sfsl.secagg.messages.self_mask_key(shared.secrets[0].seed, binding(roster), context, 1)
    sfsl.secagg.client.Masker(Z32, only_self_mask, Layout(dense=8)).add(key)
    return bool(answer.boxes) and masked.words == only_self_mask.tobytes()


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_members", lambda *_: None),
)
def a_roster_without_the_clients_own_keys() -> bool:
    world = World(n=3, threshold=2).check_in()
    own = KeyPair.generate(SeededRandomness("other"))
    members = list(world.rosters["c0"].members)
    members[0] = changed(members[0], keys=changed(members[0].keys, masks=(own.public,)))
    return bool(world.clients["c0"].handle_roster(Roster(world.params, tuple(members))).boxes)


@attack(
    refusal=AuthenticationFailed,
    weaken=lambda patch: patch.setattr(KeyPair, "agree", lambda self, peer: Secret(bytes(32))),
)
def a_key_of_small_order() -> bool:
    """With a zero key every agreement gives the same secret, known to all."""
    world = World(n=3, threshold=2).check_in()
    members = list(world.rosters["c0"].members)
    members[1] = changed(members[1], keys=changed(members[1].keys, channel=bytes(32)))
    return bool(world.clients["c0"].handle_roster(Roster(world.params, tuple(members))).boxes)


@attack(
    refusal=AuthenticationFailed,
    weaken=lambda patch: patch.setattr(sfsl.secagg.server, "require_contributory", lambda public: None),
)
def checking_in_with_a_key_of_small_order() -> bool:
    """One such client would make every other client leave the round."""
    world = World(n=3, threshold=2).check_in()
    keys = [changed(one, channel=bytes(32)) if name == "c1" else one for name, one in world.keys.items()]
    return bool(Server(world.params, keys).rosters())


# -- two sums over one key setup (DESIGN §3) ------------------------------------------------------


def one_key_pair_for_all_sums(patch: pytest.MonkeyPatch) -> None:
    honest = Client.__init__

    def careless(self: Client, *args: Any, **options: Any) -> None:
        honest(self, *args, **options)
        secrets = self.state.secrets
        tampered(self, secrets=tuple(changed(one, mask=secrets[0].mask) for one in secrets))

    patch.setattr(Client, "__init__", careless)
    patch.setattr(sfsl.secagg.messages, "require_distinct", lambda keys: None)


@attack(refusal=None, weaken=one_key_pair_for_all_sums)
def surviving_one_sum_and_dropping_in_the_next() -> bool:
    """In the first sum c0's self-mask is opened, in the second its mask key. Together they must not
    open what it sent in the first."""
    one, two = (
        SumParams(label=label, ring="z32", min_contributors=1, layout=Layout(dense=8)) for label in ("a", "b")
    )
    world = World(n=5, threshold=3, sums=(one, two)).to_unmask()
    opened = {name: world.clients[name].handle_unmask(one) for name, one in world.requests.items()}
    for name, answer in opened.items():
        world.server.receive(name, answer)
    world.server.close_phase()
    assert np.array_equal(world.server.opened.dense, world.plain_sum())
    seed = world.reconstruct({name: opened[name].shares[0] for name in ("c1", "c2", "c3")})

    world.server.start_sum(world.names, Layout(dense=8), {})
    start = sfsl.secagg.client.Start(Layout(dense=8), (0, 1, 2, 3, 4))
    for name in world.names[1:]:
        world.server.receive(name, world.clients[name].create_masked(start, world.vectors[name]))
    requests: dict[str, Any] = world.close()
    second = {name: world.clients[name].handle_unmask(one) for name, one in requests.items()}
    for name, answer in second.items():
        world.server.receive(name, answer)
    world.server.close_phase()
    assert np.array_equal(world.server.opened.dense, world.plain_sum(world.names[1:]))
    key = world.reconstruct({name: second[name].shares[0] for name in ("c1", "c2", "c3")})
    return bool(np.array_equal(world.strip("c0", seed, key), world.vectors["c0"]))


# -- two-time pads --------------------------------------------------------------------------------


@attack(refusal=WrongPhase, weaken=forget(Client, "create_masked"))
def making_a_client_mask_twice() -> bool:
    world = World(n=3, threshold=2).share()
    start = world.starts()["c0"]
    first = world.clients["c0"].create_masked(start, np.zeros(8, np.uint32))
    second = world.clients["c0"].create_masked(start, np.arange(8))
    difference = np.frombuffer(second.words, "<u4") - np.frombuffer(first.words, "<u4")
    return bool(np.array_equal(difference, np.arange(8)))


@attack(refusal=WrongPhase, weaken=forget(Client, "handle_roster"))
def inviting_a_client_twice_with_the_same_keys() -> bool:
    world = World(n=3, threshold=2).check_in()
    client = world.clients["c0"]
    other = Roster(changed(world.params, round_id=b"another-round-id"), world.rosters["c0"].members)
    return bool(client.handle_roster(world.rosters["c0"]).boxes and client.handle_roster(other).boxes)


@attack(refusal=ConflictingMessage, weaken=remove(sfsl.secagg.server, "require_same"))
def a_second_different_vector_from_one_client() -> bool:
    world = World(n=3, threshold=2).share().mask()
    other = changed(world.uploads["c0"], words=bytes(32))
    world.server.receive("c0", other)
    return True


# -- messages out of place ------------------------------------------------------------------------


@attack(refusal=WrongRound, weaken=remove(sfsl.secagg.server, "require_round"))
def replaying_a_vector_of_another_round() -> bool:
    world = World(n=3, threshold=2).share().mask(drop={"c0"})
    old = World(n=3, threshold=2, round_id=b"yesterdays-round").share().mask()
    world.server.receive("c0", old.uploads["c0"])
    world.requests = world.close()
    return not np.array_equal(world.unmask(drop={"c0"}), world.plain_sum())


@attack(refusal=WrongPhase, weaken=remove(Server, "_require_due"))
def a_vector_that_comes_late() -> bool:
    world = World(n=3, threshold=2).share()
    starts = world.starts()
    for name in ("c0", "c1"):
        world.server.receive(name, world.clients[name].create_masked(starts[name], world.vectors[name]))
    world.requests = world.close()
    state: Any = world.server.state
    before = state.total.total.copy()
    world.server.receive("c2", world.clients["c2"].create_masked(starts["c2"], world.vectors["c2"]))
    return not np.array_equal(state.total.total, before)


@attack(refusal=WrongPhase, weaken=remove(Server, "_require_due"))
def shares_opened_before_vectors_are_in() -> bool:
    world = World(n=3, threshold=2).to_unmask()
    answer = world.clients["c0"].handle_unmask(world.requests["c0"])
    early = World(n=3, threshold=2).share()
    early.server.receive("c0", answer)
    return True


@attack(refusal=UnexpectedSender, weaken=remove(Server, "_require_due"))
def coming_back_after_missing_an_exchange() -> bool:
    world = World(n=4, threshold=2).check_in()
    for name in ("c0", "c1", "c2"):
        world.server.receive(name, world.clients[name].handle_roster(world.rosters[name]))
    world.inbound = world.close()
    world.mask(drop={"c2"})
    stray = changed(world.uploads["c0"], sender=3)
    world.server.state.total.rows[3] = ()
    world.server.receive("c3", stray)
    return True


@attack(
    refusal=UnexpectedSender,
    weaken=lambda patch: patch.setattr(Server, "_require_sender", lambda self, client, claimed: claimed),
)
def answering_in_another_clients_name() -> bool:
    world = World(n=3, threshold=2).share()
    start = world.starts()
    forged = world.clients["c1"].create_masked(start["c1"], np.zeros(8, np.uint32))
    world.server.receive("c2", forged)
    return True


# -- lying clients, tampered content --------------------------------------------------------------


def one_channel_key_for_all(patch: pytest.MonkeyPatch) -> None:
    shared = Secret(bytes(32))
    patch.setattr(sfsl.secagg.client, "channel_keys", lambda *_: (shared, shared))
    patch.setattr(sfsl.crypto.secret, "_header", lambda *_: b"")


@attack(refusal=AuthenticationFailed, weaken=one_channel_key_for_all)
def a_share_from_the_wrong_sender() -> bool:
    world = World(n=4, threshold=3).share()
    inbound = world.inbound["c0"]
    swapped = (inbound.boxes[1], inbound.boxes[0], inbound.boxes[2])
    return bool(world.clients["c0"].handle_inbound(changed(inbound, boxes=swapped)))


@attack(refusal=AuthenticationFailed, weaken=one_channel_key_for_all)
def a_share_meant_for_someone_else() -> bool:
    world = World(n=4, threshold=3).share()
    inbound, other = world.inbound["c0"], world.inbound["c1"]
    return bool(
        world.clients["c0"].handle_inbound(changed(inbound, boxes=(inbound.boxes[0], *other.boxes[1:])))
    )


@attack(
    refusal=KeyMismatch,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_seed", lambda seed, published: seed),
)
def a_wrong_share_of_a_seed() -> bool:
    world = World(n=3, threshold=3).to_unmask()
    for name, asked in world.requests.items():
        answer = world.clients[name].handle_unmask(asked)
        if name == "c1":
            answer = changed(answer, shares=(answer.shares[1], *answer.shares[1:]))
        world.server.receive(name, answer)
    world.server.close_phase()
    return not np.array_equal(world.server.opened.dense, world.plain_sum())


@attack(
    refusal=KeyMismatch,
    weaken=lambda patch: patch.setattr(
        sfsl.secagg.messages, "require_key_pair", lambda private, published: KeyPair(private)
    ),
)
def a_wrong_share_of_a_mask_key() -> bool:
    world = World(n=4, threshold=3).to_unmask(drop={"c0"})
    for name, asked in world.requests.items():
        answer = world.clients[name].handle_unmask(asked)
        if name == "c1":
            answer = changed(answer, shares=(answer.shares[1], *answer.shares[1:]))
        world.server.receive(name, answer)
    world.server.close_phase()
    return not np.array_equal(world.server.opened.dense, world.plain_sum(world.names[1:]))


@attack(
    refusal=InvalidMessage,
    weaken=lambda patch: patch.setattr(
        type(Z32), "from_bytes", lambda self, data, count: np.frombuffer(data, self.dtype)[:count]
    ),
)
def words_outside_the_field() -> bool:
    field = SumParams(label="sum", ring="f31", min_contributors=1, layout=Layout(dense=8))
    world = World(n=3, threshold=2, sums=(field,)).share()
    starts = world.starts()
    masked = world.clients["c0"].create_masked(starts["c0"], world.vectors["c0"])
    world.server.receive("c0", changed(masked, words=b"\xff" * 32))
    return True


# -- rows -----------------------------------------------------------------------------------------


def row_world(least: int, wanted: int) -> World:
    table = SumParams(
        label="sum",
        ring="z32",
        min_contributors=least,
        layout=Layout(dense=0, tables=(TableShape(rows=4, width=2),)),
    )
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=wanted, max_words=100)
    return World(n=3, threshold=2, sums=(table,), policy=policy)


@attack(
    refusal=None,
    weaken=lambda patch: patch.setattr(
        sfsl.secagg.client,
        "rows_to_upload",
        lambda start, least: [np.ones(m.shape[1], bool) for m in start.requesters],
    ),
)
def a_row_that_would_be_opened_alone() -> bool:
    """Row 3 is asked for by c0 only. Its upload must not hold it, whatever the server says."""
    world = row_world(2, 2).share(rows={"c0": [[0, 3]], "c1": [[0]], "c2": [[0, 1]]})
    start = world.clients["c0"].handle_inbound(world.inbound["c0"])
    masked = world.clients["c0"].create_masked(start, [], [np.array([[1, 2], [7, 8]])])
    return len(masked.words) != 8


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_policy", lambda *_, **__: None),
)
def a_server_that_wants_to_open_lonely_rows() -> bool:
    world = row_world(1, 2).check_in()
    return bool(world.clients["c0"].handle_roster(world.rosters["c0"], [[0, 3]]).request)


def active_row_world() -> World:
    table = SumParams(
        label="sum",
        ring="z32",
        min_contributors=2,
        layout=Layout(dense=0, tables=(TableShape(rows=4, width=2),)),
    )
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=2, max_words=100)
    world = World(n=4, threshold=3, sums=(table,), policy=policy, active=True)
    return world.share(rows={"c0": [[0, 3]], "c1": [[0]], "c2": [[0, 1]], "c3": [[2]]})


@attack(refusal=AuthenticationFailed, weaken=remove(sfsl.secagg.messages, "verify_request"))
def inventing_a_requester_in_active_mode() -> bool:
    """Row 3 is c0's alone. The server says that c3 asked for it too, and would declare c3 dropped."""
    world = active_row_world()
    inbound = world.inbound["c0"]
    lie = changed(inbound.requests[2], bitmaps=(bytes((0b00110000,)),))
    start = world.clients["c0"].handle_inbound(changed(inbound, requests=(*inbound.requests[:2], lie)))
    masked = world.clients["c0"].create_masked(start, [], [np.array([[1, 2], [7, 8]])])
    return len(masked.words) == 16  # both rows, the lonely one too


@attack(refusal=AuthenticationFailed, weaken=remove(sfsl.secagg.messages, "verify_request"))
def passing_off_one_clients_request_as_anothers() -> bool:
    world = active_row_world()
    inbound = world.inbound["c0"]
    swapped = (inbound.requests[1], inbound.requests[0], inbound.requests[2])
    return bool(world.clients["c0"].handle_inbound(changed(inbound, requests=swapped)))


@attack(
    refusal=InvalidMessage,
    weaken=lambda patch: patch.setattr(
        Client,
        "read_requesters",
        lambda self, layout, others, rows, told, signed: (
            sfsl.secagg.client.parse_requesters(told, len(others), rows),
            b"",
        ),
    ),
)
def the_servers_word_for_requests_in_active_mode() -> bool:
    world = active_row_world()
    everyone = b"\1" + bytes(8)  # no zeros: all asked for all
    told = changed(world.inbound["c0"], requesters=everyone, requests=())
    return bool(world.clients["c0"].handle_inbound(told))


@attack(refusal=AuthenticationFailed, weaken=remove(sfsl.secagg.messages, "verify_request"))
def an_unsigned_request_in_active_mode() -> bool:
    """One such client would make all others leave; the server takes no request it cannot pass on."""
    table = Layout(dense=0, tables=(TableShape(rows=4, width=2),))
    one = SumParams(label="sum", ring="z32", min_contributors=2, layout=table)
    world = World(n=4, threshold=3, sums=(one,), active=True).check_in()
    answer = world.clients["c0"].handle_roster(world.rosters["c0"], [[0, 3]])
    world.server.receive("c0", changed(answer, request_signature=bytes(64)))
    return True


@attack(
    refusal=None,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "requests_digest", lambda bitmaps: bytes(32)),
)
def a_colluding_client_that_signs_two_requests() -> bool:
    """c3 signs two requests; c0 is shown one, c1 the other. Their pair stream must not match any more."""
    world = active_row_world()
    second = (bytes((0b10000000,)),)
    parts = sfsl.secagg.messages.request_parts(world.server.binding, 0, second)
    signed = world.identities["c3"].sign("request", *parts)
    inbound = world.inbound["c1"]
    other = changed(inbound.requests[2], bitmaps=second, signature=signed)
    start0 = world.clients["c0"].handle_inbound(world.inbound["c0"])
    start1 = world.clients["c1"].handle_inbound(changed(inbound, requests=(*inbound.requests[:2], other)))
    return start0.requests == start1.requests


@attack(
    refusal=InvalidMessage,
    weaken=lambda patch: patch.setattr(Client, "read_requesters", lambda *_: ((), b"")),
)
def strangers_among_the_participants() -> bool:
    world = active_row_world()
    client = world.clients["c0"]
    layout = world.sums[0].layout
    assert layout is not None
    signed = world.inbound["c0"].requests
    return client.read_requesters(layout, [1, 2, 9], client.state.asked, b"", signed) is not None


@attack(refusal=Refused, weaken=remove(Client, "_require_start"))
def more_words_than_the_client_allows() -> bool:
    table = Layout(dense=0, tables=(TableShape(rows=10, width=10),))
    one = SumParams(label="sum", ring="z32", min_contributors=1, layout=table)
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=50)
    world = World(n=3, threshold=2, sums=(one,), policy=policy)
    world.share(rows={name: [list(range(8))] for name in world.names})
    start = world.starts()["c0"]
    return bool(world.clients["c0"].create_masked(start, [], [np.zeros((8, 10), int)]).words)


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(sfsl.secagg.messages, "require_policy", lambda *_, **__: None),
)
def announcing_a_table_too_large_to_hold() -> bool:
    """A client that allowed it would allocate a bitmap of 2^30 rows just to say that it wants three."""
    huge = SumParams(
        label="sum",
        ring="z32",
        min_contributors=1,
        layout=Layout(dense=0, tables=(TableShape(rows=2**30, width=1),)),
    )
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=10**6)
    world = World(n=3, threshold=2, sums=(huge,), policy=policy).check_in()
    return bool(world.clients["c0"].handle_roster(world.rosters["c0"], [[1, 2, 3]]).request)


# -- bytes -----------------------------------------------------------------------------------------


def without_limit(patch: pytest.MonkeyPatch) -> None:
    honest = Codec.decode
    patch.setattr(Codec, "decode", lambda self, data, *, limit: honest(self, data, limit=2**40))


def without_canonical_form(patch: pytest.MonkeyPatch) -> None:
    def lenient(self: Codec, data: bytes, *, limit: int) -> Any:
        for end in range(len(data), 0, -1):
            try:
                return self._decoder.decode(data[1:end])
            except msgspec.MsgspecError:
                continue
        return None

    patch.setattr(Codec, "decode", lenient)


@attack(refusal=Oversize, weaken=without_limit)
def a_message_larger_than_any_can_be() -> bool:
    world = World(n=3, threshold=2).share()
    start = world.starts()["c0"]
    frame = CODEC.encode(world.clients["c0"].create_masked(start, world.vectors["c0"]))
    return CODEC.decode(frame, limit=len(frame) - 1) is not None


@attack(refusal=DecodeError, weaken=without_canonical_form)
def a_message_with_something_behind_it() -> bool:
    world = World(n=3, threshold=2).check_in()
    return CODEC.decode(CODEC.encode(world.keys["c0"]) + b"\0", limit=10_000) is not None


@attack(refusal=DecodeError, weaken=without_canonical_form)
def a_message_with_a_number_in_long_form() -> bool:
    """The same content in other bytes would be a 'different' message under the same mask."""
    world = World(n=3, threshold=2).share()
    frame = CODEC.encode(world.clients["c0"].create_masked(world.starts()["c0"], world.vectors["c0"]))
    longer = frame.replace(b"sender\x00", b"sender\xcc\x00")
    return longer != frame and CODEC.decode(longer, limit=10_000) is not None


@attack(
    refusal=DecodeError,
    weaken=lambda patch: patch.setattr(Codec, "decode", lambda self, data, *, limit: data),
)
def a_message_cut_short() -> bool:
    frame = CODEC.encode(World(n=3, threshold=2).clients["c0"].create_keys())
    return CODEC.decode(frame[:-1], limit=10_000) is not None


# -- what needs no attack table: silence and noise ------------------------------------------------


def test_an_identical_vector_is_taken_silently_and_counted_once() -> None:
    world = World(n=3, threshold=2).share().mask()
    world.server.receive("c0", world.uploads["c0"])
    world.requests = world.close()
    world.server.receive("c0", world.uploads["c0"])  # a retry that was long on the way
    assert np.array_equal(world.unmask(), world.plain_sum())


def test_telling_clients_different_contexts_gives_noise() -> None:
    """What the masks are bound to (hashes of union and model) must be the same for all."""
    world = World(n=3, threshold=2).share()
    for name, start in world.starts().items():
        context = b"one story" if name == "c0" else b"another"
        told = sfsl.secagg.client.Start(start.layout, start.participants, context=context)
        world.server.receive(name, world.clients[name].create_masked(told, world.vectors[name]))
    world.requests = world.close()
    # Not one of the eight words comes out right: a chance of 2^-29 per word to be wrong about this.
    assert not np.any(world.unmask() == world.plain_sum())


def test_stolen_identity_cannot_sign_for_another() -> None:
    world = World(n=3, threshold=3, active=True)
    thief = Identity.generate(SeededRandomness("thief"))
    world.identities["c1"] = thief
    world.clients["c1"] = world.client("c1")
    with pytest.raises(AuthenticationFailed):
        world.check_in()


def test_box_reaches_only_whom_it_was_sealed_for_even_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header alone stops a relabelled box, should keys ever coincide."""
    shared = Secret(bytes(32))
    monkeypatch.setattr(sfsl.secagg.client, "channel_keys", lambda *_: (shared, shared))
    world = World(n=4, threshold=3).share()
    inbound = world.inbound["c0"]
    with pytest.raises(AuthenticationFailed):
        world.clients["c0"].handle_inbound(changed(inbound, boxes=inbound.boxes[::-1]))


def test_roster_entry_is_one_client_only() -> None:
    world = World(n=3, threshold=2).check_in()
    members = world.rosters["c0"].members
    doubled = Roster(world.params, (members[0], Member(1, members[0].keys), members[2]))
    with pytest.raises(Refused):
        world.clients["c0"].handle_roster(over_the_wire(doubled))
