"""What a lying server or client can do to a union: make it fail, loudly; see the spec for what remains."""

from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector

import sfsl.union.protocol
from sfsl.errors import (
    InputError,
    InvalidMessage,
    Refused,
    RemoteError,
    UnionFailed,
    WrongPhase,
    WrongRound,
)
from sfsl.secagg import Client, Policy, Server, SessionParams
from sfsl.testing import SeededRandomness
from sfsl.union import UnionClient, UnionParams, UnionServer, private_set_union
from sfsl.union.protocol import CODEC, Invitation, Union, choose

ATTACKS, attack = collector()
changed = msgspec.structs.replace


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


def wire(message: Any) -> Any:
    return CODEC.decode(CODEC.encode(message), limit=1 << 22)


class Parties:
    """Four parties on the way to a union, one exchange per method."""

    def __init__(
        self, sets: dict[str, set[int]] | None = None, capacity: int = 40, round_id: bytes = b"r" * 16
    ) -> None:
        self.sets = sets or {f"c{i}": {i, 10, 100 + i} for i in range(4)}
        self.randomness = SeededRandomness("union")
        self.union = UnionParams(domain=1000, encoding="sketch", capacity=capacity, seed=bytes(32))
        self.params = SessionParams(
            round_id=b"r" * 16,
            clients=len(self.sets),
            threshold=3,
            neighbours=None,
            active=False,
            sums=(self.union.sum_params(),),
        )
        policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=10**5)
        self.sessions = {name: Client(name, policy, self.randomness) for name in self.sets}
        self.clients = {
            name: UnionClient(session, sorted(self.sets[name]), self.randomness)
            for name, session in self.sessions.items()
        }
        keys = [client.create_keys() for client in self.clients.values()]
        self.session = Server(self.params, keys, context=self.union.context())
        self.server = UnionServer(self.session, self.union)

    def invited(self) -> "Parties":
        for name, invitation in self.server.invitations().items():
            self.server.receive(name, self.clients[name].handle_invitation(wire(invitation)))
        self.inbound: dict[str, Any] = self.server.close_phase()
        return self

    def masked(self) -> "Parties":
        self.invited()
        for name, inbound in self.inbound.items():
            self.server.receive(name, wire(self.clients[name].handle_inbound(inbound)))
        self.requests: dict[str, Any] = self.server.close_phase()
        return self

    def opened(self) -> dict[str, Any]:
        self.masked()
        for name, request in self.requests.items():
            self.server.receive(name, wire(self.clients[name].handle_unmask(request)))
        return {name: wire(message) for name, message in self.server.close_phase().items()}


def test_the_honest_run() -> None:
    parties = Parties()
    delivered = parties.opened()
    expected = sorted(set().union(*parties.sets.values()))
    for name, message in delivered.items():
        assert parties.clients[name].handle_union(message).tolist() == expected
    assert parties.server.union.tolist() == expected


# -- a lying server -------------------------------------------------------------------------------


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(UnionParams, "sum_params", lambda self: announced_sum[0]),
)
def announcing_another_sum_than_the_union_needs() -> bool:
    parties = Parties()
    honest = parties.server.invitations()["c0"]
    longer = changed(honest.roster.params.sums[0], ring="z32")
    announced_sum[:] = [longer]
    roster = changed(honest.roster, params=changed(honest.roster.params, sums=(longer,)))
    return bool(parties.clients["c0"].handle_invitation(Invitation(roster, honest.union)).boxes)


announced_sum: list[Any] = []


def forgetful(patch: pytest.MonkeyPatch) -> None:
    honest = UnionClient.handle_union

    def careless(self: UnionClient, union: Union) -> Any:
        self._awaits_union = True
        return honest(self, union)

    patch.setattr(UnionClient, "handle_union", careless)


@attack(refusal=WrongPhase, weaken=forgetful)
def a_second_union_for_the_same_round() -> bool:
    """Two unions of one round would let the server ask twice which rows a client wants."""
    parties = Parties()
    message = parties.opened()["c0"]
    client = parties.clients["c0"]
    return bool(len(client.handle_union(message)) and len(client.handle_union(message)))


@attack(refusal=WrongPhase, weaken=forgetful)
def a_union_before_anything_was_opened() -> bool:
    parties = Parties().masked()
    return bool(len(parties.clients["c0"].handle_union(Parties().opened()["c0"])))


@attack(
    refusal=InvalidMessage,
    weaken=lambda patch: patch.setattr(sfsl.union.protocol, "most_indices", lambda encoding: 10**9),
)
def a_union_larger_than_the_round_can_hold() -> bool:
    """The whole domain as 'union' would make a client answer for every row there is."""
    from sfsl.codec import pack

    parties = Parties({f"c{i}": {i} for i in range(4)}, capacity=4)
    parties.union = changed(parties.union, domain=2000)
    message = parties.opened()["c0"]
    client = parties.clients["c0"]
    client._encoding = choose("sketch", 2000, 4, bytes(32))
    everything = pack(np.arange(2000), 2000)
    return len(client.handle_union(changed(message, count=2000, packed=everything))) == 2000


def test_unions_of_other_rounds_and_broken_ones_are_refused() -> None:
    parties = Parties()
    message = parties.opened()["c0"]
    client = parties.clients["c0"]
    with pytest.raises(WrongRound):
        client.handle_union(changed(message, round_id=bytes(16)))
    for bad in (
        changed(message, packed=message.packed[:-1]),
        changed(message, packed=message.packed + b"\0"),
        changed(message, count=message.count - 1),
        changed(message, packed=bytes(len(message.packed))),
    ):
        with pytest.raises(InvalidMessage):
            client.handle_union(bad)
    assert client.handle_union(message).tolist() == parties.server.union.tolist()


def test_different_stories_about_the_parameters_give_noise_not_a_union() -> None:
    """c0 is told another hash seed: its masks are bound to it, so the sum does not decode."""
    parties = Parties()
    for name, invitation in parties.server.invitations().items():
        if name == "c0":
            invitation = changed(invitation, union=changed(invitation.union, seed=b"x" * 32))
        parties.server.receive(name, parties.clients[name].handle_invitation(invitation))
    parties.inbound = parties.server.close_phase()
    parties.invited = lambda: parties  # type: ignore[method-assign]
    with pytest.raises(UnionFailed):
        parties.opened()
    with pytest.raises(WrongPhase):
        parties.server.close_phase()  # a failed union is over
    with pytest.raises(WrongPhase):
        _ = parties.server.union


# -- lying clients --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_sends_noise_makes_the_union_fail_loudly(seed: int) -> None:
    parties = Parties().invited()
    encoding = parties.union.build()
    noise = np.random.default_rng(seed).integers(0, 2**31 - 1, encoding.length, dtype=np.uint32)
    for name, inbound in parties.inbound.items():
        if name == "c0":
            session = parties.sessions[name]
            start = session.handle_inbound(inbound, parties.union.context())
            answer = session.create_masked(start, noise)
        else:
            answer = parties.clients[name].handle_inbound(inbound)
        parties.server.receive(name, answer)
    for name, request in parties.server.close_phase().items():
        parties.server.receive(name, parties.sessions[name].handle_unmask(request))
    with pytest.raises(UnionFailed):
        parties.server.close_phase()


@pytest.mark.parametrize(
    ("indices", "says"),
    [({1000}, "domain"), ({-1}, "domain"), (set(range(41)), "41 indices")],
)
def test_a_set_that_does_not_fit_is_declined_never_trimmed(indices: set[int], says: str) -> None:
    parties = Parties({"c0": indices, "c1": {1}, "c2": {2}, "c3": {3}})
    with pytest.raises(InputError, match=says):
        parties.clients["c0"].handle_invitation(parties.server.invitations()["c0"])
    # The others still finish.
    for name in ("c1", "c2", "c3"):
        invitation = parties.server.invitations()[name]
        parties.server.receive(name, parties.clients[name].handle_invitation(invitation))
    parties.inbound = parties.server.close_phase()
    parties.invited = lambda: parties  # type: ignore[method-assign]
    assert [len(message.packed) > 0 for message in parties.opened().values()] == [True] * 3
    assert parties.server.union.tolist() == [1, 2, 3]


def test_too_small_a_capacity_says_which_would_do() -> None:
    sets = {f"c{i}": set(range(500 * i, 500 * i + 500)) for i in range(10)}
    with pytest.raises(UnionFailed) as caught:
        # The estimate is one of chance: about one in a hundred is below 5,000. This seed's is a usual one.
        private_set_union(
            sets, domain=10**6, encoding="sketch", capacity=1000, randomness=SeededRandomness("a usual one")
        )
    enough = caught.value.capacity
    assert 5000 <= enough <= 7000
    again = private_set_union(sets, domain=10**6, encoding="sketch", capacity=enough)
    assert again.indices.tolist() == list(range(5000))


def test_a_set_over_the_capacity_says_whose_and_which_would_do() -> None:
    sets = {"a": range(300), "b": [1], "c": [2]}
    with pytest.raises(InputError, match=r"'a' brings 300 .* capacity of 900"):
        private_set_union(sets, domain=10**6, encoding="sketch", capacity=50)
    assert len(private_set_union(sets, domain=10**6, encoding="sketch", capacity=900).indices) == 300


def test_odd_but_legal_sets() -> None:
    assert private_set_union({"a": [], "b": []}, domain=10).indices.tolist() == []
    assert private_set_union({"a": [3, 3, 3], "b": [3]}, domain=10).indices.tolist() == [3]
    everything = private_set_union({"a": range(1000), "b": []}, domain=1000)
    assert everything.indices.tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("sets", "options", "says"),
    [
        ({"a": [1]}, {}, "at least two"),
        ({"a": [1.5], "b": [1]}, {}, "whole numbers"),
        ({"a": ["x"], "b": [1]}, {}, "whole numbers"),
        ({"a": [1], "b": [10]}, {}, "client 'b'.*domain"),
        ({"a": [1], "b": [2]}, {"encoding": "cuckoo"}, "no encoding"),
        ({"a": [1], "b": [2]}, {"capacity": 0}, "capacity"),
        ({"a": [1], "b": [2]}, {"domain": 0}, "domain"),
        ({"a": [1], "b": [2]}, {"domain": 2**63 + 1}, "2\\^63"),
        ({"a": [1], "b": [2]}, {"dropped": ["z"]}, "z"),
    ],
)
def test_bad_input(sets: Any, options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        private_set_union(sets, **{"domain": 10, **options})
    assert type(caught.value).__module__ == "sfsl.errors"


def test_a_refused_message_changes_nothing() -> None:
    parties = Parties()
    invitation = parties.server.invitations()["c0"]
    client = parties.clients["c0"]
    with pytest.raises(RemoteError):
        client.handle_invitation(changed(invitation, union=changed(invitation.union, capacity=39)))
    assert client.handle_invitation(invitation).boxes
