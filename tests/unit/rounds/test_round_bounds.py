"""Bounds of a round at their boundary and beyond, which guard refuses, and what is left unsaid."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from cohort import CATEGORIES, DENSE, GOODS, MODEL, WIDTH, Cohort, Stepper
from hot_cohort import HotCohort, rules
from sfsl.errors import (
    InvalidMessage,
    ParameterError,
    Refused,
    StateError,
    TooFewClients,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.rounds import IndexSpace, RoundServer, ScoreBins
from sfsl.rounds.client import histogram_words
from sfsl.rounds.params import (
    ANYTHING,
    ExactLimits,
    HotLimits,
    HotRules,
    RoundRules,
    plan_round,
    plan_session,
)
from sfsl.rounds.server import as_downloaded
from sfsl.rounds.snapshots import decode_client, encode_client, revive
from sfsl.secagg import TableShape
from sfsl.submodel import ModelSpec, RowSet, Table, UpdateParams
from sfsl.submodel.update import MOST_PULL

changed = msgspec.structs.replace
NAME = "c0"
PARAMS = Cohort(6).params


# -- bins ----------------------------------------------------------------------------------------------


def test_bins_are_equally_likely_under_a_logistic_distribution() -> None:
    bins = ScoreBins(bins=4, centre=0.5, scale=2.0)
    assert (ScoreBins(bins=1).centre, ScoreBins(bins=1).scale) == (0.0, 1.0)
    assert ScoreBins(bins=1).edges.size == 0
    edges, middles = bins.log_odds
    thirds = 2 * math.log(3)
    np.testing.assert_allclose(edges, [-math.inf, 0.5 - thirds, 0.5, 0.5 + thirds, math.inf])
    np.testing.assert_allclose(middles, 0.5 + 2 * np.log([1 / 7, 3 / 5, 5 / 3, 7]))
    np.testing.assert_allclose(bins.edges, 1 / (1 + np.exp(-edges[1:-1])))


def test_bins_follow_the_scores_that_were_counted() -> None:
    """As wide as scores were apart and as they have moved; where all share a bin, a little of its scale."""
    bins = ScoreBins(bins=4, centre=0.5, scale=2.0)
    _, middles = bins.log_odds
    after = bins.after([1, 0, 0, 2], [0, 0, 1, 0])
    centre = (middles[0] + 2 * middles[3] + middles[2]) / 4
    spread = math.sqrt(sum((middles[at] - centre) ** 2 for at in (0, 2, 3, 3)) / 4)
    assert after.bins == 4
    assert after.centre == pytest.approx(centre)
    assert after.scale == pytest.approx(0.6 * spread + 0.8 * abs(centre - 0.5))
    together = bins.after([0, 0, 5, 0], [0, 0, 1, 0])
    assert together.centre == pytest.approx(middles[2])
    assert together.scale == pytest.approx(0.6 * 2.0 / 32 + 0.8 * (middles[2] - 0.5))
    far = ScoreBins(bins=64, centre=50.0, scale=50.0)
    ends = np.eye(64, dtype=int)[[0, 63]]
    assert far.after(ends[1], ends[1]) == far
    assert changed(far, centre=-50.0).after(ends[0], ends[0]).centre == -50.0
    near = ScoreBins(bins=1, scale=1e-6)
    assert near.after([1], [1]) == near


# -- index space and layout ----------------------------------------------------------------------------

TWO = ModelSpec(
    tables=(
        Table(name="goods", rows=5, width=1),
        Table(name="user", rows=9, width=1, kind="personal"),
        Table(name="shops", rows=3, width=2),
    ),
    dense=1,
)


def test_shared_tables_one_behind_the_other() -> None:
    space = IndexSpace(TWO)
    assert space.domain == 8
    rows = {"goods": np.array([0, 4]), "shops": np.array([0, 2])}
    np.testing.assert_array_equal(space.indices(rows), [0, 4, 5, 7])
    split = space.rows(np.array([0, 4, 5, 7]))
    assert {name: one.rows.tolist() for name, one in split.items()} == {"goods": [0, 4], "shops": [0, 2]}
    assert space.indices({name: np.zeros(0, np.int64) for name in rows}).dtype == np.int64


def test_how_many_rows_an_index_space_may_have() -> None:
    def of(rows: int) -> ModelSpec:
        return ModelSpec(
            tables=(Table(name="a", rows=rows, width=1), Table(name="b", rows=1, width=1)), dense=0
        )

    assert IndexSpace(of(2**63 - 1)).domain == 2**63
    with pytest.raises(ParameterError, match="1 to 2\\^63"):
        IndexSpace(of(2**63))
    with pytest.raises(ParameterError, match="1 to 2\\^63"):
        IndexSpace(ModelSpec(tables=(Table(name="user", rows=1, width=1, kind="personal"),), dense=1))


def test_what_is_summed_in_a_round() -> None:
    unions = {"goods": RowSet.of(range(7)), "category": RowSet.of(range(2))}
    layout = PARAMS.layout(unions)
    assert layout.dense == MODEL.dense_words + 2 * 8
    assert layout.tables == (TableShape(rows=7, width=WIDTH + 1), TableShape(rows=2, width=3))
    bare = changed(PARAMS, scores=None)
    assert (bare.bins, bare.layout(unions).dense) == (0, MODEL.dense_words)
    union, update = changed(PARAMS, min_contributors=3).sums()
    assert (union.layout, union.min_contributors) == (PARAMS.union.sum_params().layout, 1)
    assert (update.label, update.ring, update.min_contributors, update.layout) == ("update", "z32", 3, None)


def test_at_most_64_hyperparameters() -> None:
    assert PARAMS.precision == "float32"
    changed(PARAMS, training={f"h{i}": 1.0 for i in range(64)})
    with pytest.raises(ParameterError, match="at most 64"):
        changed(PARAMS, training={f"h{i}": 1.0 for i in range(65)})


# -- what owners allow, and what they allow unasked ----------------------------------------------------


def test_limits_where_an_owner_says_nothing() -> None:
    hot, exact = HotLimits(max_rho=1.0), ExactLimits()
    assert (hot.corruption, hot.max_marks, hot.max_bytes) == (0.1, 2**24, 2**40)
    assert (exact.bins, exact.least_scale, exact.least_samples, exact.dataset, exact.least_set) == (
        0, 0.1, 10, False, 64,
    )  # fmt: skip
    assert (ANYTHING.bins, ANYTHING.least_scale, ANYTHING.least_samples, ANYTHING.dataset) == (
        4096,
        0,
        0,
        True,
    )
    assert ANYTHING.least_set == 1
    policy = Cohort(3).policy
    assert policy.exact
    assert policy.hot is None


@pytest.mark.parametrize(
    ("kind", "name", "fits", "beyond"),
    [
        (HotLimits(max_rho=1.0), "corruption", 0.0, -0.1),
        (HotLimits(max_rho=1.0), "corruption", 0.99, 1.0),
        (HotLimits(max_rho=1.0), "max_rho", 1e-9, 0.0),
        (HotLimits(max_rho=1.0), "max_marks", 1, 0),
        (HotLimits(max_rho=1.0), "max_bytes", 1, 0),
        (ExactLimits(), "bins", 4096, 4097),
        (ExactLimits(), "bins", 0, -1),
        (ExactLimits(), "least_scale", 0.0, -0.1),
        (ExactLimits(), "least_samples", 0, -1),
        (ExactLimits(), "least_set", 1, 0),
        (ScoreBins(bins=1), "bins", 4096, 4097),
        (ScoreBins(bins=1), "bins", 1, 0),
        (ScoreBins(bins=1), "centre", 50.0, 50.1),
        (ScoreBins(bins=1), "centre", -50.0, -50.1),
        (ScoreBins(bins=1), "scale", 1e-6, 0.9e-6),
        (ScoreBins(bins=1), "scale", 50.0, 50.1),
        (PARAMS, "number", 1, 0),
        (PARAMS, "min_contributors", 65_535, 65_536),
        (PARAMS, "min_contributors", 1, 0),
        (Cohort(3).policy, "max_clip", 1e-9, 0.0),
        (Cohort(3).policy, "max_rows", 1, 0),
    ],
)
def test_limits_at_their_bounds(kind: Any, name: str, fits: Any, beyond: Any) -> None:
    assert getattr(changed(kind, **{name: fits}), name) == fits
    with pytest.raises(ParameterError):
        changed(kind, **{name: beyond})


def test_scores_are_counted_in_bins_that_are_not_too_fine() -> None:
    limits = ExactLimits(bins=8, least_scale=0.5)
    fits = ScoreBins(bins=8, scale=0.5)
    assert limits.scores(fits) is fits
    for wrong in (None, changed(fits, bins=9), changed(fits, scale=0.49)):
        assert limits.scores(wrong) is None


def test_what_a_client_declines_of_exact_sums() -> None:
    """Each bound where it just fits, and one beyond it."""
    policy = changed(Cohort(6).policy, limits=ExactLimits(least_set=10, row_samples=50), max_clip=1.0)
    policy.require(PARAMS, MODEL, 6)  # a clip of 1, room for 60 rows of six clients
    small = changed(PARAMS, union=changed(PARAMS.union, capacity=59))
    for params, own, clients, terms, says in (
        (PARAMS, MODEL, 6, changed(policy, exact=False), "exact-sums"),
        (PARAMS, changed(MODEL, dense=DENSE + 1), 6, policy, "another model"),
        (PARAMS, MODEL, 6, changed(policy, max_clip=0.99), "clipped at more than"),
        (small, MODEL, 6, policy, "room for 59 rows; of 6 clients this one wants room for 60"),
    ):
        with pytest.raises(Refused, match=says):
            terms.require(params, own, clients)
    policy.require(PARAMS, MODEL, 7)  # no more rows than there are
    few = changed(policy, limits=changed(policy.limits, row_samples=49))
    with pytest.raises(Refused, match=r"rows that weigh up to 50 samples.*allows 49"):
        few.require(PARAMS, MODEL, 6)
    changed(few, limits=changed(few.limits, dataset=True)).require(PARAMS, MODEL, 6)
    rows = changed(PARAMS.update.rows, max_weight=1)
    owners = changed(PARAMS.update, rows=rows, averaging=changed(PARAMS.update.averaging, weights="owners"))
    assert ExactLimits().row_samples == 2
    changed(few, limits=changed(few.limits, row_samples=1)).require(changed(PARAMS, update=owners), MODEL, 6)
    for part in ("rows", "dense"):
        update = changed(PARAMS.update, **{part: changed(getattr(PARAMS.update, part), clip=1.01)})
        with pytest.raises(Refused, match="clipped at more than"):
            policy.require(changed(PARAMS, update=update), MODEL, 6)
    averaging = changed(PARAMS.update.averaging, weights="dataset")
    by_samples = changed(PARAMS, update=changed(PARAMS.update, averaging=averaging))
    with pytest.raises(Refused, match="how many samples"):
        policy.require(by_samples, MODEL, 6)
    changed(policy, limits=changed(policy.limits, dataset=True)).require(by_samples, MODEL, 6)


# -- rules ---------------------------------------------------------------------------------------------


def test_rules_where_nothing_is_said() -> None:
    hot = HotRules(rho=1.0, survey_rho=0.1)
    assert (hot.marks, hot.surveys, hot.megabytes, hot.corruption, hot.clip, hot.delta) == (
        256, 1, 1.5, 0.1, 0.1, 1e-6,
    )  # fmt: skip
    plain = RoundRules(PARAMS.update, lambda number: {}, 1)
    assert (plain.kappa_rounds, plain.row_halving, plain.pull_rounds, plain.bins) == (0, 0, 0, 256)
    assert plain.threshold is None
    assert (plain.encoding, plain.precision, plain.active, plain.hot) == ("auto", "float32", False, None)
    assert (plain.scheme, plain.sums) == ("sfsl", 2)
    assert (rules().scheme, rules().sums) == ("hot", 1)


def test_room_for_hot_rows_to_the_byte() -> None:
    """Down and up: 8 bytes of each dense parameter, a word of each bin and of the clip, 64 KiB for more."""
    room = HotRules(1.0, 0.1).words(MODEL, 8, "float32")
    assert room == int((1.5 * 2**20 - 8 * DENSE - 4 * 17 - 2**16) / 8)
    taken = (8 * DENSE + 4 + 2**16) / 2**20
    assert HotRules(1.0, 0.1, megabytes=taken + 8 / 2**20).words(MODEL, 0, "float32") == 1
    with pytest.raises(ParameterError, match="no room for rows"):
        HotRules(1.0, 0.1, megabytes=taken + 7 / 2**20).words(MODEL, 0, "float32")


def plain_rules(**fields: Any) -> RoundRules:
    averaging = changed(PARAMS.update.averaging, kappa=5.0, max_move=0.5)
    return RoundRules(changed(PARAMS.update, averaging=averaging), lambda number: {"n": number}, 3, **fields)


def test_the_floor_of_averages_rises_and_rows_move_less_and_less() -> None:
    rising = plain_rules(kappa_rounds=4)
    assert [rising.update_in(number).averaging.kappa for number in (1, 2, 3, 4, 5, 9)] == [1, 2, 3, 4, 5, 5]
    rate = rising.update.row_step.rate
    assert rising.update_in(9).row_step.rate == rate
    halved = plain_rules(row_halving=10)
    for number, left in ((1, 1.0), (11, 1 / 2), (21, 1 / 3)):
        update = halved.update_in(number)
        assert update.row_step.rate == pytest.approx(rate * left)
        assert update.averaging.max_move == pytest.approx(0.5 * left)
        assert update.averaging.kappa == 5.0
    loose = changed(halved.update, averaging=changed(halved.update.averaging, max_move=None))
    unbounded = RoundRules(loose, lambda number: {}, 1, row_halving=10)
    assert unbounded.update_in(11).averaging.max_move is None


def test_rows_are_drawn_back_only_when_samples_come_again() -> None:
    rules = plain_rules()
    step = changed(rules.update.row_step, kind="heat", pull=0.8)
    update = changed(rules.update, row_step=step)
    rising = RoundRules(update, lambda number: {}, 1, pull_rounds=10)
    pulls = [rising.update_in(number).row_step.pull for number in (1, 11, 16, 21, 101)]
    # It begins after a pass, and grows with the passes: a round has a smaller share of all of them each time.
    assert pulls == pytest.approx([0, 0, 0.8 * 0.5 * 1.5, 0.8 * 2, 0.8 * 10])
    assert rising.update_in(21).row_step == changed(step, pull=1.6), "nothing else changes"
    every = RoundRules(update, lambda number: {}, 1)
    assert [every.update_in(number).row_step.pull for number in (1, 2, 6)] == pytest.approx([0, 0.8, 4])
    assert every.update_in(10**9).row_step.pull == MOST_PULL
    assert RoundRules(rules.update, lambda number: {}, 1, pull_rounds=10).update_in(99) == rules.update


def test_how_many_must_last_through_a_round() -> None:
    assert plain_rules().threshold_of(9) == 7
    assert plain_rules(threshold=4).threshold_of(9) == 4
    assert plain_rules(threshold=4, active=True).threshold_of(9) == 7
    assert plain_rules(threshold=8, active=True).threshold_of(9) == 8
    hot = rules(corruption=0.05)
    assert [hot.sparse(clients) for clients in (512, 513)] == [False, True]
    assert not plain_rules().sparse(513)
    assert hot.threshold_of(512) == 342
    assert hot.threshold_of(513) == hot.graph(513).survivors == 513 - 103
    assert hot.graph(513) != rules(corruption=0.1).graph(513)


def test_bins_are_kept_as_long_as_their_number_is_right() -> None:
    kept = ScoreBins(bins=16, centre=1.0)
    assert plain_rules(bins=16).score_bins(kept) is kept
    assert plain_rules(bins=8).score_bins(kept) == ScoreBins(bins=8)
    assert plain_rules(bins=8).score_bins(None) == ScoreBins(bins=8)
    assert plain_rules(bins=0).score_bins(kept) is None


def test_a_round_is_planned_by_its_rules() -> None:
    own = plain_rules(kappa_rounds=4, bins=16, precision="float16")
    kept = ScoreBins(bins=16, centre=1.0)
    params = plan_round(own, MODEL, number=3, clients=6, largest_set=8, seed=bytes(32), scores=kept)
    assert (params.number, params.min_contributors, params.precision) == (3, 3, "float16")
    assert (params.training, params.scores, params.update) == ({"n": 3}, kept, own.update_in(3))
    assert params.union.domain == GOODS
    assert params.union.build().capacity >= 48
    session = plan_session(own, params, clients=9, round_id=bytes(16))
    assert (session.clients, session.threshold, session.neighbours) == (9, 7, None)
    assert (session.least_survivors, session.active, session.sums) == (None, False, params.sums())
    assert plan_session(own, params, clients=9, round_id=bytes(16), threshold=5).threshold == 5
    hot = HotCohort(4).params
    sparse = plan_session(rules(), hot, clients=600, round_id=bytes(16))
    graph = rules().graph(600)
    assert (sparse.threshold, sparse.neighbours) == (graph.threshold, graph.neighbours)
    assert sparse.least_survivors == graph.survivors
    more = plan_session(rules(), hot, clients=600, round_id=bytes(16), threshold=590)
    assert (more.threshold, more.least_survivors) == (graph.threshold, 590)


# -- the two machines ----------------------------------------------------------------------------------


def of_three(update: UpdateParams) -> UpdateParams:
    """Quantized for a cohort of three."""
    rows, dense = (changed(one, cohort=3) for one in (update.rows, update.dense))
    return changed(update, rows=rows, dense=dense)


def test_servers_of_other_sums_clients_or_models() -> None:
    cohort = Cohort(4)
    keys = [session.create_keys() for session in cohort.sessions.values()]
    given = (keys, cohort.store, cohort.maps)
    other = changed(cohort.params, min_contributors=2)
    few = of_three(cohort.params.update)
    grown = changed(MODEL, dense=DENSE + 1)
    for params, says in (
        (other, "the session's sums"),
        (changed(cohort.params, update=few), "could overflow"),
        (changed(cohort.params, model=grown), "another model"),
    ):
        with pytest.raises(ParameterError, match=says):
            RoundServer(cohort.session, params, *given)
    RoundServer(cohort.session, cohort.params, *given)  # as many as it was planned for


def test_invitations_to_other_rounds_than_they_say() -> None:
    step = Stepper(Cohort(4))
    client, told = step.clients[NAME], step.outbound[NAME]
    few = of_three(told.round.update)
    domain = changed(told.round.union, domain=GOODS + 1)
    for wrong, says in (
        ({"min_contributors": 2}, "the sums that were announced"),
        ({"update": few}, "could overflow"),
        ({"union": domain}, "sums that were announced|another index space"),
    ):
        with pytest.raises(Refused, match=says):
            client.handle_invitation(changed(told, round=changed(told.round, **wrong)))
    client.handle_invitation(told)


def test_requests_that_cannot_be() -> None:
    step = Stepper(Cohort(4), {"unmask-union": {"c3"}}).until("union")
    client, server = step.clients[NAME], step.server
    request = client.handle_union(step.outbound[NAME])
    bits = request.bitmaps
    empty = bytes(len(bits[1]))
    for wrong, error, says in (
        (changed(request, round_id=bytes(16)), WrongRound, "of another round"),
        (changed(request, sender=1), UnexpectedSender, "no request to make"),
        (changed(request, bitmaps=bits[:1]), InvalidMessage, "1 tables"),
        (changed(request, bitmaps=(bits[0], empty)), InvalidMessage, "other rows of 'category'"),
        (changed(request, signature=bytes(64)), InvalidMessage, "outside active mode"),
    ):
        with pytest.raises(error, match=says):
            server.receive(NAME, wrong)
    with pytest.raises(UnexpectedSender, match="no request to make"):
        server.receive("c3", changed(request, sender=3))
    server.receive(NAME, request)
    assert list(server.state.requests) == [NAME]


def test_a_second_invitation_comes_too_late_whatever_is_in_it() -> None:
    step = Stepper(Cohort(4)).until("invitation")
    client, invitation = step.clients[NAME], step.outbound[NAME]
    client.handle_invitation(invitation)
    other = changed(invitation.round, union=changed(invitation.round.union, domain=7))
    for one in (invitation, changed(invitation, round=other)):
        with pytest.raises(WrongPhase, match="takes no Invitation now"):
            client.handle_invitation(one)


def test_too_few_requests_end_a_round() -> None:
    step = Stepper(Cohort(4), {"union": {"c2", "c3"}}).until("union")
    with pytest.raises(TooFewClients, match="2 clients asked for rows, 3 are needed"):
        step.finish()
    with pytest.raises(WrongPhase):
        _ = step.server.sums
    with pytest.raises(WrongPhase):
        _ = step.server.outcome
    with pytest.raises(WrongPhase, match="nothing to close"):  # for good
        step.server.close_phase()
    just = Stepper(Cohort(4), {"union": {"c3"}})
    assert just.finish().survivors == ("c0", "c1", "c2")


def test_submodels_that_cannot_be() -> None:
    step = Stepper(Cohort(4)).until("submodel")
    client, told = step.clients[NAME], step.outbound[NAME]
    infinite = np.full(DENSE, math.inf, "<f4").tobytes()
    for wrong, error, says in (
        ({"round_id": bytes(16)}, WrongRound, "a submodel"),
        ({"rows": told.rows[:1]}, InvalidMessage, "rows of 1 tables, the model has 2"),
        ({"dense": told.dense + bytes(4)}, InvalidMessage, "20 bytes where 4 numbers of 4 bytes"),
        ({"dense": infinite}, InvalidMessage, "NaN or infinity"),
        ({"rows": (told.rows[0][4:], told.rows[1])}, InvalidMessage, "numbers of 4 bytes are due"),
        ({"proof": bytes(20)}, InvalidMessage, "outside active mode"),
    ):
        with pytest.raises(error, match=says):
            client.handle_submodel(changed(told, **wrong))
    download = client.handle_submodel(told)
    assert download.training == {"rate": 1.0}


def test_a_submodel_of_as_many_rows_as_a_client_allows() -> None:
    for most, refused in ((GOODS + CATEGORIES, False), (10, True)):
        cohort = Cohort(4)
        cohort.policy = changed(cohort.policy, max_rows=most)
        step = Stepper(cohort).until("union")
        rows = sum(map(len, step.server.state.unions.values()))
        exact = Cohort(4)
        exact.policy = changed(exact.policy, max_rows=rows if not refused else rows - 1)
        step = Stepper(exact).until("union")
        if refused:
            with pytest.raises(Refused, match=f"a submodel of {rows} rows, this client allows {rows - 1}"):
                step.clients[NAME].handle_union(step.outbound[NAME])
            assert step.clients[NAME].phase.name == "LEFT"
        else:
            step.clients[NAME].handle_union(step.outbound[NAME])


def test_histograms_of_few_samples_stay_at_home() -> None:
    """44 samples: 0 + 1 + … + 7 clicks and eight others."""
    cohort = Cohort(4)
    cohort.policy = changed(cohort.policy, limits=changed(ANYTHING, least_samples=36))
    clicks, others = cohort.run().scores
    assert (clicks.tolist(), others.tolist()) == ([4 * n for n in range(8)], [4] * 8)
    shy = Cohort(4)
    shy.policy = changed(shy.policy, limits=changed(ANYTHING, least_samples=37))
    clicks, others = shy.run().scores
    assert not clicks.any()
    assert not others.any()


def test_histograms_are_two_arrays_of_counts() -> None:
    kind = np.dtype(np.uint32)
    assert histogram_words(None, 3, kind).tolist() == [0] * 6
    assert histogram_words(([1, 2], [3, 4]), 2, kind).tolist() == [1, 2, 3, 4]
    assert histogram_words(([], []), 0, kind).size == 0
    for wrong in (([1, 2], [3]), ([1.0, 2.0], [3.0, 4.0]), ([1, 2, 3], [4, 5, 6])):
        with pytest.raises(Exception, match="two arrays of 2 counts"):
            histogram_words(wrong, 2, kind)


def test_half_precision_holds_what_it_can() -> None:
    values = np.array([1.5, -1e6, 1e6], np.float32)
    np.testing.assert_array_equal(as_downloaded(values, "float16").astype(float), [1.5, -65504, 65504])
    np.testing.assert_array_equal(as_downloaded(values, "float32"), values)


# -- snapshots -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["inbound", "union", "submodel", "unmask-update"])
def test_snapshots_that_were_damaged(exchange: str) -> None:
    step = Stepper(Cohort(4)).until(exchange)
    client = step.clients[NAME]
    kept = decode_client(encode_client(client))
    assert revive(type(client), kept, client._own).phase is client.phase
    with pytest.raises(StateError, match="cannot be read"):
        decode_client(encode_client(client)[:-1])
    with pytest.raises(StateError, match="cannot be used"):
        revive(
            type(client), changed(kept, session=changed(kept.session, seeds=(bytes(32),) * 3)), client._own
        )
    if exchange == "submodel":
        with pytest.raises(StateError, match="half a row number"):
            revive(type(client), changed(kept, positions=(bytes(9),)), client._own)


def test_what_was_kept_is_not_read_beyond_its_bound() -> None:
    """These bytes take no room: nobody looks at them."""
    with pytest.raises(StateError, match=f"message of {2**30 + 1} bytes where at most {2**30} are"):
        decode_client(bytes(2**30 + 1))


def test_who_waits_for_no_message_is_not_put_away() -> None:
    step = Stepper(Cohort(4)).until("submodel")
    client = step.clients[NAME]
    client.handle_submodel(step.outbound[NAME])
    done = Stepper(Cohort(4))
    done.finish()
    for one in (client, done.clients[NAME]):
        with pytest.raises(WrongPhase, match="waits for no message"):
            encode_client(one)
