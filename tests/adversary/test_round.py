"""What a lying server or client could gain in a round, and messages out of place."""

from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, forget, remove

import sfsl.rounds.server
from cohort import MODEL, Cohort, Stepper
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    InvalidMessage,
    ParameterError,
    Refused,
    RemoteError,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.rounds import RoundClient, RoundParams, RoundPolicy, RoundServer
from sfsl.rounds.exchanges import Request

ATTACKS, attack = collector()
changed = msgspec.structs.replace


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


@attack(refusal=Refused, weaken=remove(RoundPolicy, "require"))
def another_model_than_the_clients_own() -> bool:
    """A server that declares the personal table shared would collect users' own rows."""
    step = Stepper(Cohort())
    tables = tuple(
        changed(table, kind="shared") if table.kind == "personal" else table for table in MODEL.tables
    )
    other = changed(step.cohort.params, model=changed(MODEL, tables=tables))
    honest = step.outbound["c0"]
    return bool(step.clients["c0"].handle_invitation(changed(honest, round=other)).boxes)


@attack(
    refusal=Refused,
    weaken=lambda patch: patch.setattr(
        RoundParams, "sums", lambda self: sums_told[0] if sums_told else honest_sums(self)
    ),
)
def a_smaller_ring_or_fewer_contributors_than_announced() -> bool:
    step = Stepper(Cohort(least=3))
    honest = step.outbound["c0"]
    fewer = (
        honest.roster.params.sums[0],
        changed(honest.roster.params.sums[1], min_contributors=3, ring="z64"),
    )
    sums_told[:] = [fewer]
    try:
        roster = changed(honest.roster, params=changed(honest.roster.params, sums=fewer))
        return bool(step.clients["c0"].handle_invitation(changed(honest, roster=roster)).boxes)
    finally:
        sums_told.clear()


sums_told: list[Any] = []
honest_sums = RoundParams.sums


@attack(refusal=WrongPhase, weaken=forget(RoundClient, "handle_union"))
def asking_twice_which_rows_a_client_wants() -> bool:
    """Two answers for one union would let the server average the instantaneous noise away."""
    step = Stepper(Cohort()).until("union")
    message = step.outbound["c0"]
    client = step.clients["c0"]
    first = client.handle_union(message)
    second = client.handle_union(message)
    return bool(first.bitmaps and second.bitmaps)


@attack(refusal=WrongPhase, weaken=forget(RoundClient, "create_update"))
def asking_for_an_update_before_the_submodel() -> bool:
    cohort = Cohort()
    step = Stepper(cohort).until("submodel")
    client = step.clients["c0"]
    download = client.handle_submodel(step.outbound["c0"])
    ready = client.session.state
    client.create_update(cohort.train("c0", download))
    client.session._state = ready
    return bool(client.create_update(cohort.train("c0", download)).words)


@attack(refusal=InvalidMessage, weaken=remove(RoundServer, "_require_derived"))
def asking_for_derived_rows_that_do_not_follow() -> bool:
    step = Stepper(Cohort(everything=False)).until("union")
    honest = step.clients["c0"].handle_union(step.outbound["c0"])
    goods, category = honest.bitmaps
    flipped = bytes((category[0] ^ 0x80,)) + category[1:]
    step.server.receive("c0", changed(honest, bitmaps=(goods, flipped)))
    return True


@attack(refusal=AuthenticationFailed, weaken=remove(sfsl.rounds.server, "verify_request"))
def an_unsigned_request_in_active_mode() -> bool:
    step = Stepper(Cohort(active=True)).until("union")
    honest = step.clients["c0"].handle_union(step.outbound["c0"])
    step.server.receive("c0", changed(honest, signature=None))
    return True


@attack(refusal=Refused, weaken=remove(RoundClient, "_require_size"))
def a_submodel_larger_than_the_client_allows() -> bool:
    cohort = Cohort()
    cohort.policy = changed(cohort.policy, max_rows=5)
    step = Stepper(cohort).until("union")
    return bool(step.clients["c0"].handle_union(step.outbound["c0"]).bitmaps)


def test_different_models_for_different_clients_give_noise() -> None:
    """c0 is shown another dense model. Its masks are bound to it, so nothing comes out."""
    cohort = Cohort()
    step = Stepper(cohort).until("submodel")
    dense = np.frombuffer(step.outbound["c0"].dense, "<f4").copy()
    dense[0] += 1
    step.outbound["c0"] = changed(step.outbound["c0"], dense=dense.tobytes())
    outcome = step.finish()
    honest = Stepper(Cohort()).finish()
    ours, theirs = outcome.applied.commit.dense, honest.applied.commit.dense
    assert outcome.applied.dense_refused or not np.allclose(ours.values, theirs.values, atol=0.05)


def test_a_client_that_failed_after_its_exposure_has_left() -> None:
    cohort = Cohort()
    cohort.answers["c0"].real = np.arange(61)  # beyond the domain: the set does not fit
    step = Stepper(cohort).until("inbound")
    with pytest.raises(ValueError, match="domain"):
        step.clients["c0"].handle_inbound(step.outbound["c0"])
    with pytest.raises(WrongPhase):
        step.clients["c0"].handle_inbound(step.outbound["c0"])


def test_a_cohort_whose_sum_could_overflow_is_declined() -> None:
    cohort = Cohort()
    update = cohort.params.update
    small = changed(update, rows=changed(update.rows, cohort=5), dense=changed(update.dense, cohort=5))
    step = Stepper(cohort)
    invitation = step.outbound["c0"]
    told = changed(invitation, round=changed(invitation.round, update=small))
    with pytest.raises(Refused, match="overflow"):
        step.clients["c0"].handle_invitation(told)
    fresh = Cohort()
    fresh.params = changed(fresh.params, update=small)
    with pytest.raises(ParameterError, match="overflow"):
        Stepper(fresh)


def test_another_index_space_than_the_models_is_declined() -> None:
    step = Stepper(Cohort())
    invitation = step.outbound["c0"]
    union = changed(invitation.round.union, domain=61)
    told = changed(invitation, round=changed(invitation.round, union=union))
    with pytest.raises(Refused, match="index space"):
        step.clients["c0"].handle_invitation(told)


def test_an_answer_is_drawn_once_even_if_it_is_then_declined() -> None:
    cohort = Cohort()
    cohort.policy = changed(cohort.policy, max_rows=5)
    step = Stepper(cohort).until("union")
    client = step.clients["c0"]
    with pytest.raises(Refused):
        client.handle_union(step.outbound["c0"])
    with pytest.raises(WrongPhase):
        client.handle_union(step.outbound["c0"])


def test_requests_out_of_place() -> None:
    step = Stepper(Cohort()).until("union")
    honest = step.clients["c0"].handle_union(step.outbound["c0"])
    server = step.server
    with pytest.raises(WrongRound):
        server.receive("c0", changed(honest, round_id=bytes(16)))
    with pytest.raises(UnexpectedSender):
        server.receive("c1", honest)
    with pytest.raises(UnexpectedSender):
        server.receive("stranger", honest)
    with pytest.raises(InvalidMessage):
        server.receive("c0", changed(honest, bitmaps=honest.bitmaps[:1]))
    with pytest.raises(InvalidMessage):
        server.receive("c0", changed(honest, bitmaps=(honest.bitmaps[0] + b"\0", honest.bitmaps[1])))
    server.receive("c0", honest)
    server.receive("c0", honest)  # a retry
    with pytest.raises(ConflictingMessage):
        server.receive("c0", changed(honest, bitmaps=(bytes(len(honest.bitmaps[0])), honest.bitmaps[1])))
    early = Stepper(Cohort()).until("inbound")
    with pytest.raises(WrongPhase):
        early.server.receive("c0", honest)


def test_broken_submodels_are_refused_and_the_client_goes_on() -> None:
    cohort = Cohort()
    step = Stepper(cohort).until("submodel")
    honest, client = step.outbound["c0"], step.clients["c0"]
    infinite = np.full(4, np.inf, "<f4").tobytes()
    for bad in (
        changed(honest, round_id=bytes(16)),
        changed(honest, rows=honest.rows[:1]),
        changed(honest, rows=(honest.rows[0][:-4], honest.rows[1])),
        changed(honest, dense=honest.dense + b"\0\0\0\0"),
        changed(honest, dense=infinite),
        changed(honest, requesters=honest.requesters + b"\0"),
    ):
        with pytest.raises(RemoteError):
            client.handle_submodel(bad)
    client.create_update(cohort.train("c0", client.handle_submodel(honest)))


def test_nan_in_an_update_never_leaves() -> None:
    cohort = Cohort()
    step = Stepper(cohort).until("submodel")
    client = step.clients["c0"]
    trained = cohort.train("c0", client.handle_submodel(step.outbound["c0"]))
    poisoned = type(trained)(np.full(4, np.nan), trained.samples, trained.rows, trained.scores)
    with pytest.raises(ValueError, match="NaN"):
        client.create_update(poisoned)
    assert client.create_update(trained).words


def test_a_request_is_a_clients_message_only() -> None:
    step = Stepper(Cohort())
    with pytest.raises(RemoteError):
        step.server.receive("c0", step.outbound["c0"])
    assert isinstance(Request.__name__, str)
