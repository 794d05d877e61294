"""A client that is put away between every two messages says what one says that is not, byte for byte."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort import MAPS, MODEL, Cohort
from hot_cohort import HotCohort
from sfsl.crypto.secret import Identity
from sfsl.errors import StateError, WrongPhase
from sfsl.rounds import RoundClient, RoundServer
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.snapshots import HotSnapshot, RoundSnapshot, decode_client, encode_client, revive
from sfsl.secagg import Client
from sfsl.testing import SeededRandomness

LIMIT = 10**7


class Twins:
    """One client twice, with the same chance: ``lasting`` is an object, ``passing`` is bytes in between."""

    def __init__(self, cohort: Cohort, name: str, identity: Identity | None) -> None:
        self.cohort, self.name = cohort, name
        self.lasting, _ = self._client(identity)
        passing, self.own = self._client(identity)
        self.keys = self.lasting.create_keys()
        assert passing.create_keys() == self.keys
        self.kept = encode_client(passing)

    def _client(self, identity: Identity | None) -> tuple[RoundClient, Own]:
        cohort, randomness = self.cohort, SeededRandomness(self.name)
        session = Client(
            self.name,
            cohort.policy.session,
            randomness,
            sums=2,
            identity=identity,
            identities=cohort.pinned,
        )
        own = Own(
            cohort.answers[self.name],
            MODEL,
            MAPS,
            cohort.policy,
            randomness,
            identity=identity,
            identities=cohort.pinned,
        )
        return RoundClient(session, own), own

    def answer(self, step: str, message: Any) -> bytes:
        passing = self._revived()
        said = [CODEC.encode(self._said(client, step, message)) for client in (self.lasting, passing)]
        assert said[0] == said[1]
        assert passing.phase is self.lasting.phase
        if passing.phase.name != "FINISHED":
            self.kept = encode_client(passing)
            assert encode_client(self._revived()) == self.kept
        return said[0]

    def _revived(self) -> RoundClient:
        kept = decode_client(self.kept)
        assert isinstance(kept, RoundSnapshot)
        return revive(RoundClient, kept, self.own)

    def _said(self, client: RoundClient, step: str, message: Any) -> Any:
        if step != "submodel":
            handler = step if step in ("invitation", "inbound", "union") else step.split("-")[0]
            return getattr(client, f"handle_{handler}")(message)
        return client.create_update(self.cohort.train(self.name, client.handle_submodel(message)))


def steps(active: bool) -> list[str]:
    lists = ["survivors"] if active else []
    return ["invitation", "inbound", *lists, "unmask", "union", "submodel", *lists, "unmask"]


@settings(max_examples=25, deadline=None)
@given(st.booleans(), st.booleans(), st.dictionaries(st.integers(0, 6), st.integers(0, 5), max_size=2))
def test_snapshots_change_nothing(active: bool, everything: bool, gone: dict[int, int]) -> None:
    """``gone``: who falls silent before which step."""
    cohort = Cohort(6, active=active, everything=everything)
    identities = {name: cohort.sessions[name]._identity for name in cohort.names}
    twins = {name: Twins(cohort, name, identities[name]) for name in cohort.names}
    keys = [one.keys for one in twins.values()]
    server = RoundServer(cohort.session, cohort.params, keys, cohort.store, MAPS, cohort.pinned)
    outbound = dict(server.invitations())
    silent: set[str] = set()
    for number, step in enumerate(steps(active)):
        if number in gone and len(silent) < 1:
            silent.add(cohort.names[gone[number]])
        for name, message in outbound.items():
            if name not in silent:
                answer = twins[name].answer(step, CODEC.decode(CODEC.encode(message), limit=LIMIT))
                server.receive(name, CODEC.decode(answer, limit=LIMIT))
        outbound = dict(server.close_phase())
    assert set(server.outcome.survivors) >= set(cohort.names) - silent


def test_a_snapshot_holds_no_secret_that_is_not_needed_any_more() -> None:
    """By step: which private keys, seeds and shares are in what is kept."""
    cohort = Cohort(4)
    twins = {name: Twins(cohort, name, None) for name in cohort.names}
    one = twins["c1"]
    state: Any = one.lasting.session.state
    named = {"channel": state.channel.private.reveal()}
    for number, secrets in enumerate(state.secrets):
        named[f"mask {number}"] = secrets.mask.private.reveal()
        named[f"seed {number}"] = secrets.seed.reveal()

    def held() -> set[str]:
        return {name for name, secret in named.items() if secret in one.kept}

    server = RoundServer(
        cohort.session, cohort.params, [each.keys for each in twins.values()], cohort.store, MAPS, None
    )
    outbound = dict(server.invitations())
    found, shares, asked = [held()], [], []
    for step in steps(active=False)[:-1]:
        for name, message in outbound.items():
            answer = twins[name].answer(step, CODEC.decode(CODEC.encode(message), limit=LIMIT))
            server.receive(name, CODEC.decode(answer, limit=LIMIT))
        outbound = dict(server.close_phase())
        found.append(held())
        kept: Any = decode_client(one.kept)
        shares.append([len(box) for box in kept.session.boxes])
        asked.append(len(kept.asked))
    every, update = set(named), {"mask 1", "seed 1"}
    assert found == [every, every - {"channel"}, update, update, update, set()]
    assert shares == [[132], [132] * 4, [66] * 4, [66] * 4, [66] * 4]
    assert asked == [0, 0, 0, 2, 0]


class HotTwins(HotCohort):
    """A cohort of hot rows of which each client is there twice, with the same chance: as an object, and as
    bytes that are ``kept`` between every two messages."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.kept = {name: encode_client(client) for name, client in self.clients.items()}

    def answer(self, name: str, exchange: str, message: Any) -> Any:
        kept, own = decode_client(self.kept[name]), self.clients[name]._own
        assert isinstance(kept, HotSnapshot)
        drawn = SeededRandomness(f"{name} {exchange}"), SeededRandomness(f"{name} {exchange}")
        lasting, passing = self.clients[name], revive(HotClient, kept, replace(own, randomness=drawn[1]))
        assert encode_client(passing) == self.kept[name]
        lasting._own, lasting._rounding = replace(own, randomness=drawn[0]), drawn[0]
        lasting.session._randomness = drawn[0]
        said = super().answer(name, exchange, message)
        self.clients[name] = passing
        assert CODEC.encode(super().answer(name, exchange, message)) == CODEC.encode(said)
        assert passing.phase is lasting.phase
        self.clients[name] = lasting
        if passing.phase.name != "FINISHED":
            self.kept[name] = encode_client(passing)
        return said


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["survey", "train"]),
    st.booleans(),
    st.sampled_from([math.inf, 0.1]),
    st.dictionaries(st.sampled_from(["inbound", "unmask-update"]), st.integers(0, 5), max_size=1),
)
def test_snapshots_of_hot_rounds_change_nothing(
    kind: str, active: bool, rho: float, gone: dict[str, int]
) -> None:
    """With noise, which the same chance makes the same. ``gone``: who falls silent before which exchange."""
    drop = {exchange: {f"c{place:03d}"} for exchange, place in gone.items()}
    twins = HotTwins(6, kind, active=active, rho=rho, survey_rho=rho, drop=drop)
    survivors = set(twins.finish().survivors)
    assert survivors == set(twins.names) - drop.get("inbound", set())
    for name in survivors:  # as an object and as bytes, to the last digit
        assert twins.purses[name].spent == {twins.session.round_id: 2 * twins.plan.rho(6)}


def test_a_snapshot_of_a_hot_round_holds_no_secret_that_is_not_needed_any_more() -> None:
    """Keys and seeds until the vector is masked, shares until the sum is open, parameters in between."""
    twins = HotTwins(4, "train")
    name = twins.names[1]
    state: Any = twins.clients[name].session.state
    (own,) = state.secrets
    named = {"channel": state.channel.private, "mask": own.mask.private, "seed": own.seed}
    found, shares, told = [], [], []
    while twins.order:
        kept: Any = decode_client(twins.kept[name])
        found.append({key for key, secret in named.items() if secret.reveal() in twins.kept[name]})
        shares.append([len(box) for box in kept.session.boxes])
        told.append(kept.params is not None)
        twins.exchange()
    assert found == [{"channel", "mask", "seed"}, {"mask", "seed"}, set()]
    assert shares == [[], [66], [66] * 4]
    assert told == [False, True, False]
    assert isinstance(twins.clients[name], HotClient)
    with pytest.raises(WrongPhase, match="FINISHED waits for no message"):
        encode_client(twins.clients[name])


def test_a_snapshot_that_is_none_is_refused() -> None:
    twins = HotTwins(4, "survey")
    kept = twins.kept["c001"]
    for bad in (b"", kept[:-1], kept + b"x", b"\x02" + kept[1:]):
        with pytest.raises(StateError, match="cannot be read"):
            decode_client(bad)
