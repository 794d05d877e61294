"""What a client checks before it joins: one bad roster per check."""

from typing import Any

import msgspec
import pytest

from sfsl.errors import AuthenticationFailed, InvalidMessage, Refused, RemoteError
from sfsl.secagg import Layout, SumParams
from sfsl.secagg.messages import Keys, Member, Roster
from world import World, frozen

replace = msgspec.structs.replace


def joined(roster: Roster, world: World) -> Any:
    client = world.clients["c0"]
    before = frozen(client)
    try:
        return client.handle_roster(roster)
    except RemoteError:
        assert frozen(client) == before
        raise


def with_keys(members: Any, place: int, **fields: Any) -> tuple[Member, ...]:
    changed = list(members)
    changed[place] = replace(members[place], keys=replace(members[place].keys, **fields))
    return tuple(changed)


def test_the_honest_roster_is_accepted() -> None:
    world = World(n=4, threshold=3).check_in()
    assert len(joined(world.rosters["c0"], world).boxes) == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda p, m: Roster(p, m[:3]), InvalidMessage),  # one is missing
        (lambda p, m: Roster(p, (m[1], m[0], *m[2:])), InvalidMessage),  # out of order
        (lambda p, m: Roster(p, (*m[:3], replace(m[3], position=9))), InvalidMessage),  # no such place
        (lambda p, m: Roster(p, (*m[:3], replace(m[3], position=2))), InvalidMessage),  # a place twice
        (lambda p, m: Roster(p, with_keys(m, 1, client="c2")), Refused),  # a name twice
        (lambda p, m: Roster(p, with_keys(m, 1, masks=m[2].keys.masks)), Refused),  # a key twice
        (lambda p, m: Roster(p, with_keys(m, 1, channel=m[1].keys.masks[0])), Refused),  # in two roles
        (lambda p, m: Roster(p, with_keys(m, 1, masks=m[1].keys.masks * 2)), Refused),
        (lambda p, m: Roster(p, with_keys(m, 1, commitments=(bytes(32),) * 2)), InvalidMessage),
        (lambda p, m: Roster(p, with_keys(m, 0, commitments=(bytes(32),))), Refused),  # ours, altered
        (lambda p, m: Roster(p, with_keys(m, 0, client="cX")), Refused),  # without us
        (lambda p, m: Roster(replace(p, clients=5), m), InvalidMessage),
        (lambda p, m: Roster(replace(p, sums=(*p.sums, second_sum())), m), Refused),  # a sum too many
    ],
)
def test_bad_rosters(change: Any, error: type[Exception]) -> None:
    world = World(n=4, threshold=3).check_in()
    with pytest.raises(error):
        joined(change(world.params, world.rosters["c0"].members), world)


def second_sum() -> SumParams:
    return SumParams(label="more", ring="z32", min_contributors=1, layout=Layout(dense=1))


def test_too_few_neighbours_for_the_threshold() -> None:
    world = World(n=8, threshold=3, neighbours=4).check_in()
    members = world.rosters["c0"].members
    own = next(member for member in members if member.keys.client == "c0")
    other = next(member for member in members if member.keys.client != "c0")
    few = tuple(sorted((own, other), key=lambda member: member.position))
    with pytest.raises(Refused, match="share holders"):
        joined(msgspec.structs.replace(world.rosters["c0"], members=few), world)


@pytest.mark.parametrize("signature", [None, bytes(64)])
def test_unsigned_and_wrongly_signed_keys_in_active_mode(signature: bytes | None) -> None:
    world = World(n=4, threshold=3, active=True).check_in()
    with pytest.raises(AuthenticationFailed):
        joined(Roster(world.params, with_keys(world.rosters["c0"].members, 2, signature=signature)), world)


def test_a_stranger_in_active_mode() -> None:
    world = World(n=4, threshold=3, active=True).check_in()
    assert world.pinned is not None
    del world.pinned["c2"]
    with pytest.raises(AuthenticationFailed, match="c2"):
        joined(world.rosters["c0"], world)


def test_the_signature_covers_every_field_of_the_keys() -> None:
    world = World(n=4, threshold=3, active=True).check_in()
    fields = set(Keys.__struct_fields__) - {"signature"}
    assert fields == {"client", "channel", "masks", "commitments"}
    members = world.rosters["c0"].members
    other = World(n=4, threshold=3, active=True, seed="other").check_in().keys["c1"]
    for field in fields - {"client"}:
        with pytest.raises(AuthenticationFailed):
            joined(Roster(world.params, with_keys(members, 1, **{field: getattr(other, field)})), world)
