"""Every bound of a session, at its boundary and one beyond, and which guard it is that refuses."""

from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.errors import InputError, InvalidMessage, ParameterError, Refused
from sfsl.secagg import Layout, Policy, SessionParams, SumParams, TableShape, plan_graph
from sfsl.secagg import messages as said
from sfsl.secagg.facade import checked_names
from sfsl.secagg.graph import GraphPlan, default_min_contributors, opened_alone, random_cycles
from sfsl.secagg.masking import own_rows, parse_request, requesters_size
from sfsl.secagg.messages import require_policy, size_limit
from world import World

changed = msgspec.structs.replace
ROWS = Layout(dense=1, tables=(TableShape(rows=64, width=2),))


ONE = Layout(dense=1)


def sum_of(label: str = "sum", layout: Layout | None = ONE, contributors: int = 1) -> SumParams:
    return SumParams(label=label, ring="z32", min_contributors=contributors, layout=layout)


def session_of(**fields: Any) -> SessionParams:
    usual = {"round_id": bytes(16), "clients": 6, "threshold": 4, "neighbours": None, "active": False}
    return SessionParams(**{**usual, "sums": (sum_of(),), **fields})


# What stands in a message: the least and the most, of a number or of a length.
NUMBERS = {"Count": (0, 2**40), "Position": (0, 65_534), "SumIndex": (0, 7)}
LENGTHS = {
    "RoundId": (16, 16, bytes),
    "ClientId": (1, 64, lambda size: "x" * size),
    "Positions": (0, 65_535, lambda size: tuple(range(min(size, 65_535))) + (0,) * max(0, size - 65_535)),
    "Key": (32, 32, bytes),
    "KeyPerSum": (1, 8, lambda size: (bytes(32),) * size),
    "Signature": (64, 64, bytes),
    "Share": (33, 33, bytes),
    "Box": (0, 16 + 2 * 33 * 8, bytes),
}
BOUNDED = {
    **{name: (least, most, int) for name, (least, most) in NUMBERS.items()},
    **LENGTHS,
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_a_message_may_hold(name: str) -> None:
    least, most, make = BOUNDED[name]
    kind = getattr(said, name)
    for size in (least, most):
        assert msgspec.convert(make(size), kind) == make(size)
    beyond = [most + 1] if least == 0 and name in LENGTHS else [least - 1, most + 1]
    for size in beyond:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(make(size), kind)


SPARSE = {"clients": 600, "threshold": 3, "neighbours": 512}


@pytest.mark.parametrize(
    ("fits", "beyond", "says"),
    [
        ({"threshold": 6}, {"threshold": 7}, "threshold 7 is more than all 6"),
        ({"threshold": 2}, {"threshold": 1}, ">= 2"),
        ({"clients": 512}, {"clients": 513}, "complete graph; above 512"),
        ({"active": True, "threshold": 5}, {"active": True, "threshold": 4}, "at least 5 of 6, not 4"),
        (SPARSE, {**SPARSE, "neighbours": 514}, "at most 512"),
        ({**SPARSE, "clients": 513}, {**SPARSE, "clients": 512}, "even number below the cohort"),
        ({**SPARSE, "neighbours": 2}, {**SPARSE, "neighbours": 3}, "even number below the cohort"),
        (SPARSE, {**SPARSE, "active": True}, "active mode needs the complete graph"),
        (SPARSE, {**SPARSE, "sums": (sum_of(layout=ROWS),)}, "misaligned"),
        (SPARSE, {**SPARSE, "sums": (sum_of(), sum_of("later", None))}, "misaligned"),
        ({**SPARSE, "least_survivors": 600}, {**SPARSE, "least_survivors": 601}, "601 survivors are more"),
        ({}, {"least_survivors": 2}, "on the complete graph the threshold"),
        ({"sums": (sum_of(), sum_of("later", None))}, {"sums": (sum_of(layout=None),)}, "must be announced"),
        ({"sums": (sum_of(), sum_of("other"))}, {"sums": (sum_of(), sum_of())}, "same label"),
    ],
)
def test_sessions_at_their_bounds(fits: dict[str, Any], beyond: dict[str, Any], says: str) -> None:
    session_of(**fits)
    with pytest.raises(ParameterError, match=says):
        session_of(**beyond)


def test_how_few_may_be_left() -> None:
    assert session_of().fewest == 4
    assert session_of(**SPARSE).fewest == 3
    assert session_of(**SPARSE, least_survivors=500).fewest == 500
    assert session_of(**{**SPARSE, "threshold": 400}, least_survivors=300).fewest == 400
    assert [said.default_threshold(group) for group in range(2, 10)] == [2, 3, 3, 4, 5, 5, 6, 7]


WANTS: dict[str, Any] = {"min_clients": 6, "min_threshold": 4, "min_contributors": 3, "max_words": 100}


@pytest.mark.parametrize(
    ("session", "wants", "says"),
    [
        ({}, {"min_clients": 7}, "a cohort of 6, this client wants at least 7"),
        ({}, {"min_threshold": 5}, "a threshold of 4, this client wants 5"),
        ({"threshold": 5}, {"min_threshold": 0}, ""),
        ({"threshold": 4}, {"min_threshold": 0}, "a threshold of 4, this client wants 5"),
        ({**SPARSE, "threshold": 2}, {"min_threshold": 0}, ""),  # of a sparse graph the plan says so
        ({"sums": (sum_of(layout=Layout(dense=100)),)}, {}, ""),
        ({"sums": (sum_of(layout=Layout(dense=101)),)}, {}, "a sum of 101 words"),
        # Rows are asked for in a bitmap: 32 of them to a word.
        ({"sums": (sum_of(layout=ROWS, contributors=3),)}, {"max_words": 2}, ""),
        ({"sums": (sum_of(layout=ROWS, contributors=3),)}, {"max_words": 1}, "a sum of 2 words"),
        ({"sums": (sum_of(layout=ROWS, contributors=2),)}, {}, "with 2 contributors would be opened"),
        ({"sums": (sum_of(), sum_of("later", None, 3))}, {}, ""),
        ({"sums": (sum_of(), sum_of("later", None, 2))}, {}, "with 2 contributors would be opened"),
        ({"sums": (sum_of(contributors=1),)}, {}, ""),  # no rows, no contributors of rows
    ],
)
def test_what_a_client_insists_on_at_its_boundary(
    session: dict[str, Any], wants: dict[str, Any], says: str
) -> None:
    params, policy = session_of(**session), Policy(**WANTS | wants)
    if not says:
        require_policy(params, policy, len(params.sums), active=False)
        return
    with pytest.raises(Refused, match=says):
        require_policy(params, policy, len(params.sums), active=False)


def test_a_client_insists_on_its_mode_and_on_its_sums() -> None:
    for params, active in ((session_of(), True), (session_of(active=True, threshold=5), False)):
        with pytest.raises(Refused, match="disagree about active mode"):
            require_policy(params, Policy(**WANTS), 1, active=active)
        require_policy(params, Policy(**WANTS), 1, active=not active)
    for sums in (0, 2):
        with pytest.raises(Refused, match=f"keys for {sums} sums, a session of 1"):
            require_policy(session_of(), Policy(**WANTS), sums, active=False)


def test_the_least_a_policy_may_say() -> None:
    least = Policy(min_clients=2, min_threshold=0, min_contributors=1, max_words=0)
    assert not least.company
    for wrong in ("min_clients", "min_threshold", "min_contributors", "max_words"):
        with pytest.raises(ParameterError):
            changed(least, **{wrong: getattr(least, wrong) - 1})
    for wrong in ("min_clients", "min_threshold", "min_contributors"):
        with pytest.raises(ParameterError):
            changed(changed(least, **{wrong: 65_535}), **{wrong: 65_536})


def test_the_size_limit_grows_with_what_there_is_to_say() -> None:
    """Per client its keys, shares and signatures, per table its shape, per row a bit of each client."""
    params = session_of()
    plain = size_limit(params, Layout(dense=0), 4)
    assert plain == 4096 + 6 * (512 + 2 * 33 + 64)
    assert size_limit(params, Layout(dense=10), 4) == plain + 40
    assert size_limit(params, Layout(dense=10), 8) == plain + 80
    assert size_limit(session_of(sums=(sum_of(), sum_of("b"))), Layout(dense=0), 4) == plain + 6 * 130
    assert size_limit(session_of(sums=(sum_of(layout=ROWS),)), Layout(dense=0), 4) == plain + 64 + 8 * 6
    assert size_limit(params, ROWS, 4) == plain + 6 * (64 // 8) + 4 * (1 + 128)
    assert size_limit(session_of(sums=(sum_of(), sum_of("b", None))), Layout(dense=0), 4) == plain + 6 * 130


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: {"members": one.members[::-1]}, "not in order"),
        (lambda one: {"members": (*one.members[:3], changed(one.members[3], position=4))}, "not in order"),
        (lambda one: {"members": one.members[:3]}, "a roster of 3 for a cohort of 4"),
        (lambda one: {"params": changed(one.params, clients=5)}, "a roster of 4 for a cohort of 5"),
        (lambda one: {"root": bytes(32)}, "root"),
        (lambda one: {"proof": bytes(32)}, "root"),
    ],
)
def test_rosters_that_cannot_be(change: Any, says: str) -> None:
    world = World(n=4).check_in()
    roster, own = world.rosters["c0"], world.keys["c0"]
    said.require_members(roster, own, None)
    with pytest.raises(InvalidMessage, match=says):
        said.require_members(changed(roster, **change(roster)), own, None)


def test_a_roster_holds_this_clients_own_keys_once_and_nobodys_twice() -> None:
    world = World(n=4).check_in()
    roster, own = world.rosters["c0"], world.keys["c0"]
    other = changed(own, commitments=(bytes(32),))
    with pytest.raises(Refused, match="own keys"):
        said.require_members(roster, other, None)
    doubled = changed(roster.members[1], keys=own)
    with pytest.raises(Refused, match="own keys"):
        said.require_members(
            changed(roster, members=(roster.members[0], doubled, *roster.members[2:])), own, None
        )
    keys = [member.keys for member in roster.members]
    said.require_distinct(keys)
    for fields in (
        {"client": keys[1].client},
        {"channel": keys[1].channel},
        {"masks": keys[1].masks},
        {"channel": keys[1].masks[0]},
        {"channel": keys[0].masks[0]},
    ):
        with pytest.raises(Refused, match="listed twice"):
            said.require_distinct([changed(keys[0], **fields), *keys[1:]])


def test_a_sparse_roster_has_enough_holders() -> None:
    world = World(n=10, threshold=3, neighbours=4).check_in()
    roster, own = world.rosters["c0"], world.keys["c0"]
    here = len(roster.members)
    for threshold, refused in ((here, False), (here + 1, True)):
        asked = changed(roster, params=changed(roster.params, threshold=threshold))
        if refused:
            with pytest.raises(Refused, match=f"{here} share holders cannot reach"):
                said.require_members(asked, own, None)
        else:
            said.require_members(asked, own, None)


def test_keys_are_one_for_each_sum() -> None:
    keys = World(n=2, threshold=2).check_in().keys["c0"]
    said.require_keys(keys, 1, None)
    two = (*keys.masks, *keys.commitments)
    for wrong, sums in ((keys, 2), (changed(keys, masks=two), 1), (changed(keys, commitments=two), 1)):
        with pytest.raises(InvalidMessage, match=f"not for {sums} sums"):
            said.require_keys(wrong, sums, None)


@pytest.mark.parametrize(("clients", "neighbours"), [(5, 3), (4, 4), (5, 0), (5, 6), (3, 1)])
def test_degrees_that_no_graph_has(clients: int, neighbours: int) -> None:
    with pytest.raises(ParameterError, match="an even number below the cohort size"):
        random_cycles(clients, neighbours, bytes(32))
    assert [len(near) for near in random_cycles(3, 2, bytes(32))] == [2, 2, 2]


USUAL = {"dropout": 0.0, "corruption": 0.0, "failure": 0.5}


@pytest.mark.parametrize(
    ("clients", "wishes", "says"),
    [
        (2, {}, "at least 3 clients, not 2"),
        (10, {"dropout": -0.01}, "fractions"),
        (10, {"dropout": 1.0}, "fractions"),
        (10, {"corruption": -0.01}, "fractions"),
        (10, {"corruption": 1.0}, "fractions"),
        (10, {"dropout": 0.5, "corruption": 0.5}, "fractions"),
        (10, {"failure": 0.0}, "failure is a probability"),
        (10, {"failure": 1.0}, "failure is a probability"),
        (10, {"dropout": 0.45, "corruption": 0.35}, "fewer than two honest"),
        (10, {"dropout": 0.4, "corruption": 0.4, "failure": 2**-40}, "no sparse graph"),
    ],
)
def test_graphs_that_cannot_be_planned(clients: int, wishes: dict[str, float], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        plan_graph(clients, **USUAL | wishes)


def test_a_plan_promises_two_survivors_where_it_does_not_say() -> None:
    assert GraphPlan(4, 3, 0.0, 0.0, 0.0).survivors == 2


def test_plans_at_the_edge() -> None:
    """Three clients, of whom nobody drops out or lies: one cycle, and both neighbours are needed."""
    plan = plan_graph(3, **USUAL)
    assert (plan.neighbours, plan.threshold, plan.survivors) == (2, 2, 3)
    assert (plan.opened, plan.split, plan.stuck) == (0.0, 0.0, 0.0)


def test_a_plan_is_the_smallest_that_holds() -> None:
    for clients, wishes in ((40, (0.1, 0.05, 1e-3)), (100, (0.2, 0.1, 1e-6)), (200, (0.0, 0.2, 1e-9))):
        dropout, corruption, failure = wishes
        plan = plan_graph(clients, dropout=dropout, corruption=corruption, failure=failure)
        assert 0 < max(plan.opened, plan.split, plan.stuck) <= failure
        assert plan.survivors == clients - int(np.ceil(dropout * clients))
        assert 2 <= plan.threshold <= plan.neighbours < clients


@pytest.mark.parametrize(
    ("clients", "wishes", "largest"),
    [
        (7, {"corruption": 0.2, "failure": 0.7}, "split"),
        (40, {"corruption": 0.1, "failure": 0.1}, "opened"),
        (40, {"dropout": 0.3, "failure": 0.1}, "stuck"),
    ],
)
def test_what_can_go_wrong_may_be_exactly_as_likely_as_is_allowed(
    clients: int, wishes: dict[str, float], largest: str
) -> None:
    plan = plan_graph(clients, **USUAL | wishes)
    chance = getattr(plan, largest)
    assert chance == max(plan.opened, plan.split, plan.stuck) > 0
    assert plan_graph(clients, **USUAL | wishes | {"failure": chance}) == plan
    less = float(np.nextafter(chance, 0))
    assert plan_graph(clients, **USUAL | wishes | {"failure": less}) != plan


def test_rows_opened_alone_at_the_edge() -> None:
    for wrong in (-0.01, 1.0):
        with pytest.raises(ParameterError, match="fraction"):
            opened_alone([1], wrong)
    with pytest.raises(ParameterError, match="fewer than 0"):
        opened_alone([0, -1], 0.1)
    assert opened_alone([], 0.1).size == 0
    assert opened_alone([0, 1, 2], 0.25).tolist() == [0, 0.75, 0.375]
    assert default_min_contributors([2], dropout=0.5, bound=0.5) == 2  # exactly as many as are allowed
    assert default_min_contributors([2], dropout=0.5, bound=0.499) == 3
    with pytest.raises(ParameterError, match="above 0"):
        default_min_contributors([2], bound=0.0)


def test_requests_of_as_many_tables_as_there_are() -> None:
    layout = Layout(dense=0, tables=(TableShape(rows=9, width=1), TableShape(rows=3, width=1)))
    rows = own_rows(layout, ([0, 8], []))
    assert [some.tolist() for some in rows] == [[0, 8], []]
    for wrong in ([[0]], [[0], [0], [0]]):
        with pytest.raises(InputError, match=f"rows of {len(wrong)} tables"):
            own_rows(layout, wrong)
    for bad in ([1, 0], [1, 1]):
        with pytest.raises(InputError, match="table 1: rows asked for are ascending"):
            own_rows(layout, ([0], bad))
    with pytest.raises(InputError, match="table 0"):
        own_rows(layout, ([9], [0]))
    with pytest.raises(InvalidMessage, match="a request over 1 tables"):
        parse_request(layout, (b"\0\0",))
    parsed = parse_request(layout, (b"\x80\x80", b"\x20"))
    assert [np.flatnonzero(one).tolist() for one in parsed] == [[0, 8], [2]]


def test_bytes_of_what_requesters_are_told() -> None:
    assert requesters_size(0, 0) == 0
    assert requesters_size(0, 8) == requesters_size(8, 8) == 9
    assert requesters_size(3, 100) == requesters_size(97, 100) > 9


def test_names_at_their_bounds() -> None:
    assert checked_names(["x" * 64, "a"]) == ["a", "x" * 64]
    for wrong in ("", "x" * 65):
        with pytest.raises(InputError, match="1 to 64"):
            checked_names(["a", wrong])
    with pytest.raises(InputError, match="not 1"):
        checked_names(["a"])


def test_boxes_come_from_peers_and_in_order() -> None:
    world = World(n=4, threshold=2).share()
    client, told = world.clients["c0"], world.inbound["c0"]
    for senders, boxes, says in (
        ((3, 2, 1), told.boxes[::-1], "not this client's peers"),  # each with its own box
        ((1, 1, 2), told.boxes, "not this client's peers"),
        ((0, 1, 2), told.boxes, "boxes from clients"),
        ((1, 2, 9), told.boxes, "boxes from clients"),
        ((1, 2), told.boxes, "3 boxes from 2 senders"),
    ):
        with pytest.raises(InvalidMessage, match=says):
            client.handle_inbound(changed(told, senders=senders, boxes=boxes))
    assert client.handle_inbound(changed(told, senders=(1,), boxes=told.boxes[:1])).participants == (0, 1)
