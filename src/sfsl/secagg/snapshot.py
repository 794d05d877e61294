"""A client between two messages as bytes, for engines that keep no process alive between them (spec 4.5).

A snapshot holds secrets, and of them only what its client still needs. It must be used once: two answers
from one snapshot would be two vectors under the same masks. Whoever keeps it sees to that, durably, as
``privacy.ClientState`` does.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from msgspec import Meta

from sfsl.codec import Message
from sfsl.crypto.secret import Identity, KeyPair, Randomness, Secret
from sfsl.errors import InvalidMessage, WrongPhase
from sfsl.secagg import states as at
from sfsl.secagg.client import Client
from sfsl.secagg.messages import MAX_CLIENTS, MAX_SUMS, Box, Key, Keys, Policy, Positions, Roster
from sfsl.secagg.states import Place, State, SumSecrets, parse_box

Blobs = Annotated[tuple[bytes, ...], Meta(max_length=64)]
KeysOfSums = Annotated[tuple[Key, ...], Meta(max_length=MAX_SUMS)]
T = TypeVar("T")


class SessionSnapshot(Message, frozen=True, kw_only=True, tag="session-snapshot"):
    """A state in bytes: see ``states`` for what its parts mean. ``holders`` dealt the ``boxes``, and
    ``inbound_keys`` are in roster order."""

    phase: Literal["CHECKED_IN", "SHARED", "READY", "MASKED", "CONFIRMED"]
    sum: Annotated[int, Meta(ge=0, lt=MAX_SUMS)] = 0
    keys: Keys
    channel: Key | None = None
    masks: KeysOfSums
    seeds: KeysOfSums
    roster: Roster | None = None
    inbound_keys: Annotated[tuple[Key, ...], Meta(max_length=MAX_CLIENTS)] = ()
    holders: Positions = ()
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_CLIENTS)] = ()
    asked: Blobs = ()
    alive: Positions = ()
    confirmed: tuple[Positions, Positions] | None = None


def snapshot(client: Client) -> SessionSnapshot:
    """The state of a client that waits for a message."""
    state = client.state
    if not isinstance(state, at.CheckedIn | at.Joined):
        raise WrongPhase(f"a client that is {client.phase.name} waits for no message")
    known: dict[str, Any] = {}
    if isinstance(state, at.CheckedIn):
        known |= {"keys": state.keys, "channel": state.channel.private.reveal()}
    else:
        place, dealers = state.place, tuple(sorted(state.shares))
        boxes = tuple(state.shares[dealer].reveal() for dealer in dealers)
        known |= {"sum": state.sum, "keys": place.members[place.own], "roster": place.roster}
        known |= {"holders": dealers, "boxes": boxes}
    if isinstance(state, at.Shared):
        known["inbound_keys"] = tuple(state.inbound_keys[peer].reveal() for peer in state.place.peers)
        known["asked"] = tuple(rows.astype("<i8").tobytes() for rows in state.asked)
    if isinstance(state, at.Ready | at.Masked):
        known["alive"] = state.alive
    if isinstance(state, at.Confirmed):
        known["confirmed"] = state.confirmed
    return SessionSnapshot(
        phase=state.phase.name,  # type: ignore[arg-type]
        masks=tuple(one.mask.private.reveal() for one in state.secrets),
        seeds=tuple(one.seed.reveal() for one in state.secrets),
        **known,
    )


def restore(
    kept: SessionSnapshot,
    policy: Policy,
    randomness: Randomness,
    *,
    identity: Identity | None = None,
    identities: Mapping[str, bytes] | None = None,
) -> Client:
    """The client that was, with the policy and the identities that are not part of a snapshot."""
    name, state = kept.keys.client, _state(kept)
    return Client(name, policy, randomness, identity=identity, identities=identities, state=state)


def _state(kept: SessionSnapshot) -> State:
    secrets = tuple(
        SumSecrets(KeyPair(Secret(mask)), Secret(seed))
        for mask, seed in _pairs(kept.masks, kept.seeds, "seeds of masks")
    )
    if kept.channel is not None:
        return at.CheckedIn(KeyPair(Secret(kept.channel)), secrets, kept.keys)
    if kept.roster is None:
        raise InvalidMessage("a snapshot of a client that joined, without its roster")
    place, left = Place.of(kept.keys.client, kept.roster), len(kept.keys.masks) - kept.sum
    shares = {
        dealer: parse_box(box, left) for dealer, box in _pairs(kept.holders, kept.boxes, "boxes of shares")
    }
    if kept.phase == "SHARED":
        keys = _pairs(place.peers, kept.inbound_keys, "keys of peers")
        asked = tuple(np.frombuffer(rows, "<i8").astype(np.intp) for rows in kept.asked)
        return at.Shared(place, 0, secrets, shares, {peer: Secret(key) for peer, key in keys}, asked)
    if kept.phase == "CONFIRMED" and kept.confirmed is not None:
        return at.Confirmed(place, kept.sum, secrets, shares, kept.alive, kept.confirmed)
    return (at.Ready if kept.phase == "READY" else at.Masked)(place, kept.sum, secrets, shares, kept.alive)


def _pairs(places: Sequence[T], values: Sequence[bytes], what: str) -> "zip[tuple[T, bytes]]":
    if len(places) != len(values):
        raise InvalidMessage(f"a snapshot with {len(values)} {what} of {len(places)}")
    return zip(places, values, strict=True)
