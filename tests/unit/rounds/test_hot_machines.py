"""The two machines of rounds over hot rows: whole rounds, and everything that does not belong."""

import math
from dataclasses import replace as with_
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cohort import CATEGORY_OF, DENSE, GOODS
from hot_cohort import HOT_GOODS, HotCohort, Purse, plan, train
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import InputError, Refused, RemoteError, TooFewClients, WrongPhase
from sfsl.rounds.exchanges import HotInvitation
from sfsl.rounds.hot_client import HotClient, learned_vector, require_hot
from sfsl.rounds.params import HotLimits
from sfsl.rounds.states import HOT_MOVES, Phase
from sfsl.secagg.messages import SessionParams, Survivors
from world import frozen

NAME = "c000"
DUE = {Phase.CHECKED_IN: "invitation", Phase.SHARED: "inbound", Phase.UPLOADED: "unmask-update"}
KINDS = ["survey", "train"]


# -- whole rounds ------------------------------------------------------------------------------


@pytest.mark.parametrize("active", [False, True], ids=["curious", "active"])
def test_a_survey_counts_owners(active: bool) -> None:
    cohort = HotCohort(6, "survey", active=active, marks=8, drop={"inbound": {"c001"}})
    outcome = cohort.finish()
    assert outcome.survivors == ("c000", "c002", "c003", "c004", "c005")
    counts = np.zeros(GOODS, int)
    for name in outcome.survivors:
        counts[cohort.real[name]] += 1
    np.testing.assert_array_equal(cohort.server.sums.words, counts)
    hot = outcome.hot.hot_set()
    assert hot.surveyed == 5
    np.testing.assert_array_equal(np.frombuffer(hot.rows["goods"], "<i8"), np.flatnonzero(counts))
    np.testing.assert_array_equal(np.frombuffer(hot.owners["goods"], "<f4"), counts[counts > 0])
    assert not outcome.applied.commit.tables  # no model moved


@pytest.mark.parametrize("active", [False, True], ids=["curious", "active"])
def test_a_round_adds_up_what_was_learned(active: bool) -> None:
    """Without noise the sum is that of the updates, up to rounding by less than a word each."""
    cohort = HotCohort(6, active=active, drop={"unmask-update": {"c005"}})
    outcome = cohort.finish()
    assert len(outcome.survivors) == 6
    unit = cohort.params.clip / cohort.params.levels
    dense = sum(np.asarray(one.dense) for one in cohort.trained.values())
    np.testing.assert_allclose(cohort.server.sums.words[:DENSE] * unit, dense, atol=6 * unit)
    row = int(HOT_GOODS[2])
    due = sum(
        np.asarray(one.rows["goods"].deltas)[one.rows["goods"].rows.positions_of([row])[0]]
        for one in cohort.trained.values()
        if one.rows["goods"].rows.holds(np.array([row]))[0]
    )
    np.testing.assert_allclose(
        cohort.server.sums.words[DENSE + 6 : DENSE + 9] * unit, np.zeros(3) + due, atol=6 * unit
    )
    assert set(outcome.union) == {"goods", "category"}
    clicks, others = outcome.scores
    # Each has 0, 1, …, 7 and 8 ones in its bins: more than its share of the clip, and cut to it.
    assert 0 < clicks[7] < 6 * 7
    assert clicks[7] > clicks[3] >= others[0]


def test_cold_rows_do_not_enter() -> None:
    cold = [row for row in range(GOODS) if row not in HOT_GOODS and CATEGORY_OF[row] not in range(4)]
    cohort = HotCohort(5, real={f"c{i:03d}": cold[:6] for i in range(5)})
    cohort.finish()
    rows = cohort.server.sums.words[DENSE : DENSE + 68]
    assert not rows.any()
    assert cohort.server.sums.words[:DENSE].any()


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_are_left(kind: str) -> None:
    cohort = HotCohort(6, kind, drop={"inbound": {"c001", "c002"}})
    with pytest.raises(TooFewClients):
        cohort.finish()
    with pytest.raises(WrongPhase):
        _ = cohort.server.outcome


# -- money -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_paid_once_before_the_vector_leaves(kind: str) -> None:
    cohort = HotCohort(6, kind, rho=0.5, survey_rho=0.25, drop={"inbound": {"c001"}})
    cohort.until("unmask-update")
    due = 0.5 if kind == "train" else 0.25
    for name, purse in cohort.purses.items():
        spent = {} if name == "c001" else {cohort.session.round_id: pytest.approx(due, rel=1e-6)}
        assert purse.spent == spent
    cohort.finish()
    assert sum(len(purse.spent) for purse in cohort.purses.values()) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_cannot_pay_has_left(kind: str) -> None:
    cohort = HotCohort(6, kind, rho=0.5, survey_rho=0.25).until("inbound")
    cohort.purses[NAME].fails = True
    client = cohort.clients[NAME]
    with pytest.raises(OSError, match="no room"):
        cohort.answer(NAME, "inbound", cohort.outbound[NAME])
    assert client.phase is Phase.LEFT
    with pytest.raises(RemoteError):
        cohort.answer(NAME, "inbound", cohort.outbound[NAME])


def test_a_survey_of_rows_that_cannot_be_read_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = HotCohort(6, "survey", survey_rho=0.25).until("inbound")
    client, before = cohort.clients[NAME], frozen(cohort.clients[NAME])

    def unreadable(self: Purse) -> Any:
        raise InputError("a row that the catalogue does not have")

    with monkeypatch.context() as patch:
        patch.setattr(Purse, "owned", unreadable)
        with pytest.raises(InputError):
            cohort.answer(NAME, "inbound", cohort.outbound[NAME])
    assert frozen(client) == before
    assert not cohort.purses[NAME].spent
    cohort.finish()


BAD: dict[str, dict[str, Any]] = {
    "another shape": {"dense": np.zeros(DENSE + 1)},
    "text": {"dense": "many"},
    "no rows": {"rows": {}},
    "histograms of another size": {"scores": (np.zeros(3), np.zeros(3))},
}
BEYOND: dict[str, dict[str, Any]] = {
    "NaN": {"dense": np.full(DENSE, math.nan)},
    "infinity": {"dense": np.array([math.inf, 0, 0, 0])},
    "histograms that are none": {"scores": (np.full(8, math.nan), np.zeros(8))},
}


@pytest.mark.parametrize("name", BAD)
def test_an_update_that_cannot_be_changes_nothing(name: str) -> None:
    cohort = HotCohort(6, rho=0.5).until("inbound")
    assert cohort.plan.published is not None
    client = cohort.clients[NAME]
    download = client.handle_model(cohort.outbound[NAME], cohort.plan.published)
    before, picture = client.state, frozen(client)
    good = train(0, cohort.real[NAME], download)
    with pytest.raises(InputError):
        client.create_update(with_(good, **BAD[name]))
    assert client.state is before
    assert frozen(client) == picture
    assert not cohort.purses[NAME].spent
    client.create_update(good)
    assert client.phase is Phase.UPLOADED


@pytest.mark.parametrize("name", BEYOND)
def test_who_learned_beyond_all_numbers_adds_nothing_and_is_not_missed(name: str) -> None:
    cohort = HotCohort(6, rho=math.inf).until("inbound")
    assert cohort.plan.published is not None
    client = cohort.clients[NAME]
    download = client.handle_model(cohort.outbound[NAME], cohort.plan.published)
    good = train(0, cohort.real[NAME], download)
    args = (cohort.plan.params, download.asked)
    assert learned_vector(*args, good, SystemRandomness()).any()
    assert not learned_vector(*args, with_(good, **BEYOND[name]), SystemRandomness()).any()
    answer = client.create_update(with_(good, **BEYOND[name]))
    assert len(answer.words) == 4 * cohort.plan.params.length
    assert client.phase is Phase.UPLOADED


# -- what a client's owner allows --------------------------------------------------------------


def invited(cohort: HotCohort, **changes: Any) -> HotInvitation:
    message = cohort.outbound[NAME]
    return replace(message, round=replace(message.round, **changes))


CLAIMS: dict[str, dict[str, Any]] = {
    "less noise": {"deviation": 1.0},
    "a tenth of the noise": {"deviation": 10.0},
    "no noise": {"deviation": 0.0},
    "more noise than there is": {"deviation": 2.0**29},
    "another clip": {"clip": 3.0},
    "another model": {"model": None},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_that_no_owner_allows(name: str) -> None:
    cohort = HotCohort(6, rho=0.5, limits=HotLimits(max_rho=0.51, corruption=0.0))
    client = cohort.clients[NAME]
    before, picture = client.state, frozen(client)
    changes = CLAIMS[name]
    if "model" in changes:
        changes = {"model": replace(cohort.params.model, dense=DENSE + 1)}
    with pytest.raises(Refused):
        cohort.answer(NAME, "invitation", invited(cohort, **changes))
    assert client.state is before
    assert frozen(client) == picture
    cohort.finish()


def test_a_client_counts_the_honest_ones_itself() -> None:
    """The server counts on nobody who colludes; the client thinks that two of ten do."""
    fine = HotCohort(10, rho=0.5, limits=HotLimits(max_rho=0.51, corruption=0.0))
    fine.finish()
    wary = HotCohort(10, rho=0.5, limits=HotLimits(max_rho=0.51, corruption=0.2))
    with pytest.raises(Refused, match="costs"):
        wary.exchange()
    with pytest.raises(Refused, match="honest"):
        HotCohort(10, rho=0.5, limits=HotLimits(max_rho=9.0, corruption=0.9)).exchange()


def test_some_take_part_in_no_such_round() -> None:
    cohort = HotCohort(4)
    own = cohort.clients[NAME]._own
    other = HotClient.join(NAME, with_(own, policy=replace(own.policy, hot=None)))
    other.create_keys()
    with pytest.raises(Refused, match="does not take part"):
        other.handle_invitation(cohort.outbound[NAME])


# -- what does not belong ----------------------------------------------------------------------


def client_in(kind: str, phase: Phase, active: bool) -> Any:
    cohort = HotCohort(4, kind, active=active)
    if phase is Phase.FINISHED:
        cohort.finish()
        return cohort.clients[NAME]
    due = DUE.get(phase, "inbound")
    cohort.until("survivors-update" if active and phase is Phase.UPLOADED else due)
    if phase is Phase.TRAINING:
        assert cohort.plan.published is not None
        cohort.clients[NAME].handle_model(cohort.outbound[NAME], cohort.plan.published)
    return cohort.clients[NAME]


@pytest.mark.parametrize("active", [False, True], ids=["curious", "active"])
@pytest.mark.parametrize(
    ("kind", "phase"),
    [(kind, phase) for kind in KINDS for phase in (*DUE, Phase.FINISHED)] + [("train", Phase.TRAINING)],
    ids=lambda one: getattr(one, "name", one),
)
def test_client(kind: str, phase: Phase, active: bool) -> None:
    """All that does not belong, one after the other, at one client: it is what it was after each."""
    cohort, messages = HotCohort(4, kind, active=active), {}
    while cohort.order:
        messages[cohort.order[0]] = cohort.outbound[NAME]
        cohort.exchange()
    client = client_in(kind, phase, active)
    assert client.phase is phase
    before, session, picture = client.state, client.session.state, frozen(client)

    def refused(handler: str, *given: Any) -> None:
        with pytest.raises(RemoteError):
            getattr(client, handler)(*given)
        assert client.state is before
        assert client.session.state is session
        assert frozen(client) == picture

    due = "survivors-update" if active and phase is Phase.UPLOADED else DUE.get(phase)
    published = cohort.plan.published
    for exchange, message in messages.items():
        if exchange == "inbound":
            other = ["handle_survey"] if kind == "train" else ["handle_model"]
            right = [] if exchange == due else ["handle_survey" if kind == "survey" else "handle_model"]
            for handler in other + right:
                refused(handler, message, *([published] if handler == "handle_model" else []))
        elif exchange != due:
            refused(cohort.course.step(exchange).handler, message)
    if due != "survivors-update":
        refused("handle_survivors", Survivors(messages["inbound"].round_id, 0, (0, 1, 2, 3), ()))
    refused("create_keys")
    if phase is not Phase.TRAINING:
        refused("create_update", None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_server(kind: str, place: int) -> None:
    """Answers of all other exchanges, while the server waits for those of one."""
    honest, said = HotCohort(4, kind), []
    receive = honest.server.receive

    def listening(name: str, message: Any) -> None:
        if name == NAME:
            said.append(message)
        receive(name, message)

    honest.server.receive = listening  # type: ignore[method-assign]
    honest.finish()
    server = HotCohort(4, kind)
    for _ in range(place):
        server.exchange()
    picture = frozen(server.server)
    for early in said[place + 1 :]:
        with pytest.raises(RemoteError):
            server.server.receive(NAME, early)
        assert frozen(server.server) == picture
    for again in said[:place]:
        server.server.receive(NAME, again)  # silently
        assert frozen(server.server) == picture


def test_a_second_invitation_comes_too_late_whatever_is_in_it() -> None:
    cohort = HotCohort(4, "survey")
    invitation = cohort.outbound[NAME]
    client = client_in("survey", Phase.SHARED, False)
    for one in (invitation, replace(invitation, round=replace(invitation.round, deviation=0.0))):
        with pytest.raises(WrongPhase, match="takes no HotInvitation now"):
            client.handle_invitation(one)


def test_the_table_leads_from_the_first_phase_to_every_other() -> None:
    reached = {Phase.NEW}
    for move in HOT_MOVES:
        assert move.phase in reached
        reached.update(move.after)  # type: ignore[arg-type]
    unused = {Phase.UNITING, Phase.AWAITS_UNION, Phase.REQUESTED}
    assert reached == set(Phase) - unused


@pytest.mark.parametrize(("neighbours", "threshold"), [(2, 2), (40, 36), (92, 20)])
def test_a_graph_thinner_than_its_plan_is_refused(neighbours: int, threshold: int) -> None:
    """Few neighbours, or few of them enough to open a secret: those who collude could open it alone."""
    params = plan("train", 6, rho=0.5).params
    policy = HotCohort(4).clients[NAME]._own.policy
    policy = replace(policy, hot=HotLimits(max_rho=9.0, corruption=0.1))
    session = SessionParams(bytes(16), 1000, threshold, neighbours, False, params.sums(), 800)
    with pytest.raises(Refused, match="neighbours"):
        require_hot(policy, params, session)
    assert require_hot(policy, params, replace(session, neighbours=92, threshold=36)) < 9
