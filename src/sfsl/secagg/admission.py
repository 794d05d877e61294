"""What a client checks before it joins a session: its policy, and the roster (spec 4.2)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sfsl.errors import InvalidMessage, Refused
from sfsl.secagg.messages import Keys, Roster
from sfsl.secagg.params import Policy, SessionParams
from sfsl.secagg.transcript import require_distinct, require_keys


def require_policy(params: SessionParams, policy: Policy, sums: int, *, active: bool) -> None:
    """The client's own terms. They are never negotiated: a session that does not fit is declined."""
    if params.active != active:
        raise Refused("the server and this client disagree about active mode")
    if len(params.sums) != sums:
        raise Refused(f"keys for {sums} sums, a session of {len(params.sums)}")
    if params.clients < policy.min_clients:
        raise Refused(f"a cohort of {params.clients}, this client wants at least {policy.min_clients}")
    if params.threshold < policy.min_threshold:
        raise Refused(f"a threshold of {params.threshold}, this client wants {policy.min_threshold}")
    for one in params.sums:
        tables = one.layout.tables if one.layout else ()
        dense = one.layout.dense if one.layout else 0
        # Before anything of that size is allocated. Rows are asked for in a bitmap over all of them.
        largest = max(dense, sum(table.rows for table in tables) // 32)
        if largest > policy.max_words:
            raise Refused(f"a sum of {largest} words or more, this client allows {policy.max_words}")
        if (one.layout is None or tables) and one.min_contributors < policy.min_contributors:
            raise Refused(
                f"rows with {one.min_contributors} contributors would be opened, "
                f"this client wants at least {policy.min_contributors}"
            )


def require_members(roster: Roster, own: Keys, identities: Mapping[str, bytes] | None) -> None:
    """A roster in order, of the announced size, without doubles, with our keys as we sent them."""
    params, members = roster.params, roster.members
    positions = [member.position for member in members]
    if not ascending(positions) or not all(position < params.clients for position in positions):
        raise InvalidMessage("roster positions are not in order")
    if params.neighbours is None and len(members) != params.clients:
        raise InvalidMessage(f"a roster of {len(members)} for a cohort of {params.clients}")
    if len(members) < params.threshold:
        raise Refused(f"{len(members)} share holders cannot reach a threshold of {params.threshold}")
    if sum(member.keys == own for member in members) != 1:
        raise Refused("the roster does not carry this client's own keys, as sent")
    require_distinct([member.keys for member in members])
    for member in members:
        require_keys(member.keys, len(params.sums), identities)


def ascending(positions: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(positions))
