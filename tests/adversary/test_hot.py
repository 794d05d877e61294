"""What servers and clients may try in rounds over hot rows, and how much noise is in what opens.

Every attack runs against the code as it is, where it gains nothing, and against a copy without the check
that stops it, where it succeeds (``attacks``).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from adversary.attacks import (
    Attack,
    Weaken,
    assert_gains_when_weakened,
    assert_stopped,
    collector,
    forget,
    remove,
)
from hot_cohort import HotCohort
from sfsl.errors import Deceived, Refused, TooFewClients, WrongPhase
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.rounds import hot_client
from sfsl.rounds.exchanges import HOT, SURVEY
from sfsl.rounds.hot import HotParams, HotSet, Published, blob_digest
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.hot_server import honest_of
from sfsl.rounds.params import HotLimits
from sfsl.secagg import states as at
from sfsl.secagg.client import Client

ATTACKS, attack = collector()
NAME = "c000"
LIMITS = HotLimits(max_rho=0.51, corruption=0.1)


def all_of(*weakenings: Weaken) -> Weaken:
    def weaken(patch: pytest.MonkeyPatch) -> None:
        for one in weakenings:
            one(patch)

    return weaken


def cohort(kind: str = "train", **changes: Any) -> HotCohort:
    planned: dict[str, Any] = {"rho": 0.5, "survey_rho": 0.5, "corruption": 0.1, "limits": LIMITS}
    return HotCohort(10, kind, **(planned | changes))


def lured(kind: str = "train", threshold: int | None = None, **claims: Any) -> bool:
    """Whether a client shares its secrets for a round with these claims, whose sum is as they say."""
    one = cohort(kind)
    message = one.outbound[NAME]
    params = replace(message.round, **claims)
    session = replace(message.roster.params, sums=params.sums())
    session = replace(session, threshold=threshold or session.threshold)
    roster = replace(message.roster, params=session)
    return bool(one.answer(NAME, "invitation", replace(message, roster=roster, round=params)).boxes)


# -- claims about noise ------------------------------------------------------------------------

trusting = remove(hot_client, "require_hot", 0.1)


@attack(refusal=Refused, weaken=trusting)
def half_the_noise() -> bool:
    return lured(deviation=cohort().params.deviation / 2)


@attack(refusal=Refused, weaken=trusting)
def no_noise_at_all() -> bool:
    return lured(deviation=0.0)


@attack(refusal=Refused, weaken=trusting)
def a_lower_threshold() -> bool:
    """Honest survivors are counted from the threshold; the noise is that of a higher one."""
    return lured(threshold=3)


@attack(refusal=Refused, weaken=trusting)
def a_larger_clip_than_the_owner_allows() -> bool:
    return lured(clip=3.0)


@attack(refusal=Refused, weaken=trusting)
def more_words_for_a_clip_under_the_same_noise() -> bool:
    return lured(levels=10 * cohort().params.levels)


@attack(refusal=Refused, weaken=trusting)
def a_survey_with_huge_marks() -> bool:
    return lured("survey", marks=2**24)


@attack(refusal=Refused, weaken=remove(HotParams, "sums", cohort().params.sums()))
def another_sum_than_the_rounds() -> bool:
    """The vector of a round with few rows would be put under the masks of one with many."""
    one = cohort()
    message = one.outbound[NAME]
    params = replace(message.round, rows={"goods": 1, "category": 1})
    return bool(one.answer(NAME, "invitation", replace(message, round=params)).boxes)


# -- the same question twice -------------------------------------------------------------------


@attack(
    refusal=WrongPhase, weaken=all_of(forget(HotClient, "handle_invitation"), forget(Client, "handle_roster"))
)
def a_second_invitation() -> bool:
    one = cohort()
    message = one.outbound[NAME]
    first = one.answer(NAME, "invitation", message)
    return bool(one.answer(NAME, "invitation", message).boxes != first.boxes)


@attack(
    refusal=WrongPhase,
    weaken=all_of(
        forget(HotClient, "handle_survey"), forget(Client, "handle_inbound"), forget(Client, "create_masked")
    ),
)
def a_replayed_inbound_message() -> bool:
    """Two vectors of one client under the same masks: their noise would average out."""
    one = cohort("survey").until("inbound")
    with pytest.MonkeyPatch.context() as patch:
        ready = one.clients[NAME].session
        patch.setattr(type(ready), "create_masked", _from_ready(type(ready).create_masked))
        first = one.answer(NAME, "inbound", one.outbound[NAME])
        second = one.answer(NAME, "inbound", one.outbound[NAME])
    return bool(first.words != second.words)


def _from_ready(create: Any) -> Any:
    """A weakened session forgets that its boxes are open; here it remembers, to mask at all."""

    def masked(self: Any, start: Any, *given: Any) -> Any:
        before = self.state
        if not hasattr(before, "alive"):
            shares = dict(before.shares)
            self._state = at.Ready(before.place, 0, before.secrets, shares, start.participants)
        try:
            return create(self, start, *given)
        finally:
            if not hasattr(before, "alive"):
                self._state = before

    return masked


# -- other models for one ----------------------------------------------------------------------


def other_blob(one: HotCohort) -> bytes:
    assert one.plan.published is not None
    blob = one.plan.published.blob
    return bytes([blob[0] ^ 1]) + blob[1:]


def told_apart(one: HotCohort, params: HotParams, published: Published) -> bool:
    """Whether the sum comes out right although the first client was told another story."""
    vectors = dict[str, Any]()
    with noted(one, vectors):
        while one.order:
            exchange = one.order[0]
            if exchange == "invitation":
                one.outbound[NAME] = replace(one.outbound[NAME], round=params)
            if exchange == "inbound":
                honest, one.plan = one.plan, with_(one.plan, published=published)
                one.outbound = {NAME: one.outbound[NAME], **one.outbound}
                answer = one.answer(NAME, "inbound", one.outbound.pop(NAME))
                one.plan = honest
                one.server.receive(NAME, answer)
            one.exchange()
    plain = sum(vectors.values())
    return bool(np.abs(one.server.sums.words - plain).max() < 10**6)


@attack(refusal=Deceived, weaken=remove(hot_client, "blob_digest", cohort().params.blob))
def another_model_for_one() -> bool:
    one = cohort()
    assert one.plan.published is not None
    return told_apart(one, one.params, Published(one.plan.published.hot, other_blob(one)))


@attack(refusal=Deceived, weaken=remove(HotSet, "digest", cohort().params.hot))
def another_set_of_hot_rows_for_one() -> bool:
    one = cohort()
    assert one.plan.published is not None
    other = replace(one.plan.published.hot, version=2)
    return told_apart(one, one.params, Published(other, one.plan.published.blob))


@attack(refusal=None, weaken=remove(HotParams, "context", bytes(32)))
def another_story_for_one() -> bool:
    """Parameters that name the other model: nothing to refuse, but the masks do not cancel."""
    one = cohort()
    assert one.plan.published is not None
    blob = other_blob(one)
    return told_apart(
        one, replace(one.params, blob=blob_digest(blob)), Published(one.plan.published.hot, blob)
    )


# -- who survived ------------------------------------------------------------------------------


@attack(refusal=Refused, weaken=remove(Client, "_require_enough"))
def fewer_survivors_than_the_noise_is_for() -> bool:
    """A client opens no sum of fewer than the threshold."""
    one = cohort().until("unmask-update")
    request = one.outbound[NAME]
    few = replace(request, survivors=request.survivors[:3], dropped=request.survivors[3:])
    return bool(one.answer(NAME, "unmask-update", few).shares)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_attack_gains_nothing(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_attack_succeeds_without_the_check(one: Attack) -> None:
    assert_gains_when_weakened(one)


# -- what nothing stops ------------------------------------------------------------------------


def test_a_lying_client_can_add_what_it_likes_to_the_sum_and_not_to_the_model() -> None:
    """Noise hides each vector, also from checks: nothing bounds what one liar adds but the ring. Of the sum
    the server takes what all clients can have said together (spec hot 9.1; ``test_hot_influence``)."""
    one = HotCohort(6)
    with pytest.MonkeyPatch.context() as patch:
        honest = hot_client.update_vector
        lie = np.zeros(one.params.length, np.int64)
        lie[0] = 2**30

        def lying(*given: Any) -> Any:
            return honest(*given) + (lie if one.current == NAME else 0)

        patch.setattr(hot_client, "update_vector", lying)
        outcome = one.finish()
    assert abs(one.server.sums.words[0] - 2**30) < 10**4
    dense = outcome.applied.commit.dense
    assert dense is not None
    # The rules of these tests add the average, and the clip is 1.
    assert 0.9 < abs(dense.values[0] - one.store.read_dense().values[0]) < 1


# -- noise in what opens -----------------------------------------------------------------------


@contextmanager
def noted(one: HotCohort, vectors: dict[str, Any], noises: dict[str, Any] | None = None) -> Iterator[None]:
    """Note what each client's vector is before its noise, and the noise."""
    honest: Callable[..., Any] = hot_client.with_noise

    def noting(params: HotParams, vector: Any, randomness: Any) -> Any:
        words = honest(params, vector, randomness)
        vectors[one.current] = vector.copy()
        if noises is not None:
            noises[one.current] = words.view(np.int32).astype(np.int64) - vector
        return words

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hot_client, "with_noise", noting)
        yield


CORRUPTION, FAULTS, CLIENTS = 0.2, 0.2, 10


def faulty_rounds(
    rounds: int, clients: int = CLIENTS, faults: float = FAULTS, corruption: float = CORRUPTION
) -> tuple[int, int, float]:
    """Run rounds in each of which a fifth of the clients is gone at some exchange. Return how many opened,
    the words of these, and the noise that no colluder knows, squared and in units of what was claimed: its
    mean over all words.

    Colluders tell the server their noise: as many of the survivors as the corruption allows. What is left
    has to be at least the variance that the clients paid for."""
    rng, squares, words, opened = np.random.default_rng(rounds), 0.0, 0, 0
    corrupt = math.floor(corruption * clients)
    for number in range(rounds):
        kind, active = ("survey", "train")[number % 2], number % 5 == 0 and clients == CLIENTS
        order = (SURVEY if kind == "survey" else HOT).order(active)
        drop: dict[str, set[str]] = {}
        for place in np.flatnonzero(rng.random(clients) < faults):
            drop.setdefault(str(rng.choice(order)), set()).add(f"c{place:03d}")
        one = HotCohort(
            clients,
            kind,
            active=active,
            seed=f"faults {number}",
            drop=drop,
            limits=HotLimits(max_rho=0.51, corruption=corruption),
            rho=0.5,
            survey_rho=0.5,
            corruption=corruption,
        )
        vectors, noises = dict[str, Any](), dict[str, Any]()
        with noted(one, vectors, noises):
            try:
                survivors = one.finish().survivors
            except TooFewClients:
                with pytest.raises(WrongPhase):
                    _ = one.server.sums
                continue
        honest, params = honest_of(one.plan.rules, clients), one.params
        assert len(survivors) - corrupt >= honest  # by construction
        claimed = honest * params.deviation**2
        for name in survivors:
            assert one.purses[name].spent[one.session.round_id] >= params.sensitivity**2 / (2 * claimed)
        known = sum(vectors[name] for name in survivors) + sum(noises[name] for name in survivors[:corrupt])
        squares += float(np.square(one.server.sums.words - known).sum()) / claimed
        words, opened = words + params.length, opened + 1
    return opened, words, squares / max(words, 1)


def test_whatever_opens_carries_the_noise_that_was_paid_for() -> None:
    """200 rounds with 20 % faults."""
    opened, words, noise = faulty_rounds(200)
    assert 100 <= opened < 200  # faults were there
    assert noise >= 1 - 5 * math.sqrt(2 / words)
    # Survivors above the threshold bring more: from 5 to 8 honest ones where 5 are counted on.
    assert noise <= 8 / 5


def test_so_it_is_on_a_sparse_graph(sparse: None) -> None:
    """40 clients with 36 neighbours each; a sum opens with 32 or more."""
    opened, words, noise = faulty_rounds(8, clients=40, faults=0.1, corruption=0.1)
    assert opened >= 4
    assert 1 - 5 * math.sqrt(2 / words) <= noise <= 36 / 28


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohorts of more than 30 sum on a sparse graph."""
    monkeypatch.setattr("sfsl.rounds.params.MAX_COMPLETE", 30)


def test_a_server_that_promises_fewer_survivors_on_a_sparse_graph(sparse: None) -> None:
    """Its noise is that of a round with more; and what was promised is kept to."""
    one = HotCohort(40, "survey", rho=0.5, survey_rho=0.5, corruption=0.1, limits=LIMITS)
    message = one.outbound[NAME]
    for fewer in (31, 10, None):
        session = replace(message.roster.params, least_survivors=fewer)
        with pytest.raises(Refused):
            one.answer(NAME, "invitation", replace(message, roster=replace(message.roster, params=session)))
    one.until("unmask-update")
    request = one.outbound[NAME]
    own = one.server._session.position(NAME)
    gone = tuple(place for place in request.survivors if place != own)[:9]
    bits = np.unpackbits(np.frombuffer(request.cohort, np.uint8)).astype(bool)
    bits[list(gone)] = False
    assert bits.sum() == 31  # one fewer than promised, and far more than the threshold of its neighbours
    left = tuple(place for place in request.survivors if place not in gone)
    few = replace(request, survivors=left, dropped=gone, cohort=np.packbits(bits).tobytes())
    with pytest.raises(Refused, match="31"):
        one.answer(NAME, "unmask-update", few)
    one.answer(NAME, "unmask-update", request)


def test_a_tenth_of_the_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same statistics on a weakened copy."""

    class Weak(DiscreteGaussian):
        def __init__(self, deviation: float) -> None:
            super().__init__(deviation / 10)

    monkeypatch.setattr(hot_client, "DiscreteGaussian", Weak)
    opened, words, noise = faulty_rounds(12)
    assert opened > 3
    assert noise < 0.1 < 1 - 5 * math.sqrt(2 / words)


@pytest.mark.slow
def test_a_thousand_rounds_with_faults() -> None:
    opened, words, noise = faulty_rounds(1000)
    assert opened > 500
    assert noise >= 1 - 5 * math.sqrt(2 / words)
