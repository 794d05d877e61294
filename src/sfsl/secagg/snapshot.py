"""A client between two messages as bytes, for engines that keep no process alive between them (spec 4.5).

A snapshot holds secrets, and of them only what its client still needs. It must be used once: two answers
from one snapshot would be two vectors under the same masks. Whoever keeps it sees to that, durably, as
``privacy.ClientState`` does.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from sfsl.codec import Message
from sfsl.crypto.agreement import KeyPair
from sfsl.crypto.identity import Identity
from sfsl.crypto.randomness import Randomness
from sfsl.crypto.secret import Secret
from sfsl.errors import InvalidMessage, WrongPhase
from sfsl.secagg.client import Client, Phase, _Secrets, parse_box
from sfsl.secagg.messages import Box, Key, Keys, Positions, Roster
from sfsl.secagg.params import MAX_CLIENTS, MAX_SUMS, Policy

Blobs = Annotated[tuple[bytes, ...], Meta(max_length=64)]
KeysOfSums = Annotated[tuple[Key, ...], Meta(max_length=MAX_SUMS)]
_EMPTY = (b"", b"")


class SessionSnapshot(Message, frozen=True, tag="session-snapshot"):
    """``masks`` and ``seeds`` are those of sums that are not masked yet, the last ones; ``boxes`` the shares
    of sums that are not opened yet, by ``holders``, who dealt them. ``inbound_keys`` open what the peers
    seal, in roster order. ``asked``: rows per table of the first sum."""

    phase: Literal["CHECKED_IN", "SHARED", "READY", "MASKED", "CONFIRMED"]
    sum: Annotated[int, Meta(ge=0, lt=MAX_SUMS)]
    keys: Keys
    channel: Key | None
    masks: KeysOfSums
    seeds: KeysOfSums
    roster: Roster | None
    inbound_keys: Annotated[tuple[Key, ...], Meta(max_length=MAX_CLIENTS)]
    holders: Positions
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MAX_CLIENTS)]
    asked: Blobs
    alive: Positions
    confirmed: tuple[Positions, Positions] | None


def snapshot(client: Client) -> SessionSnapshot:
    """Of a client that waits for a message."""
    phase, now, secrets = client.phase, client._sum, getattr(client, "_secrets", None)
    if phase in (Phase.NEW, Phase.FINISHED) or secrets is None:
        raise WrongPhase(f"a client that is {phase.name} waits for no message")
    joined = phase is not Phase.CHECKED_IN
    # What was masked is masked once; from then on only the shares of its secrets are needed.
    unmasked = range(now + (phase in (Phase.MASKED, Phase.CONFIRMED)), client._sums)
    shares = client._shares if joined else {}
    peers = sorted(client._inbound_keys) if phase is Phase.SHARED else []
    return SessionSnapshot(
        phase=phase.name,  # type: ignore[arg-type]
        sum=now,
        keys=client._keys,
        channel=None if joined else client._channel.private.reveal(),
        masks=tuple(secrets.masks[number].private.reveal() for number in unmasked),
        seeds=tuple(secrets.seeds[number].reveal() for number in unmasked),
        roster=client._roster if joined else None,
        inbound_keys=tuple(client._inbound_keys[peer].reveal() for peer in peers),
        holders=tuple(sorted(shares)),
        boxes=tuple(b"".join(b"".join(pair) for pair in shares[one][now:]) for one in sorted(shares)),
        asked=tuple(rows.astype("<i8").tobytes() for rows in client._asked) if phase is Phase.SHARED else (),
        alive=() if phase in (Phase.CHECKED_IN, Phase.SHARED) else tuple(client._alive),
        confirmed=client._confirmed if phase is Phase.CONFIRMED else None,
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
    client = Client.__new__(Client)
    client.phase = Phase[kept.phase]
    client._id, client._keys = kept.keys.client, kept.keys
    client._policy, client._randomness = policy, randomness
    client._identity, client._identities = identity, identities
    client._sums, client._sum = len(kept.keys.masks), kept.sum
    first = client._sums - len(kept.masks)
    client._secrets = _Secrets(
        None if kept.channel is None else KeyPair(Secret(kept.channel)),
        {first + number: KeyPair(Secret(private)) for number, private in enumerate(kept.masks)},
        {first + number: Secret(seed) for number, seed in enumerate(kept.seeds)},
    )
    if kept.roster is None:
        return client
    client._take_up(kept.roster)
    client._inbound_keys = {}
    if client.phase is Phase.SHARED:
        peers = sorted(client._members.keys() - {client._position})
        client._inbound_keys = {
            peer: Secret(key) for peer, key in _pairs(peers, kept.inbound_keys, "keys of peers")
        }
    left = client._sums - kept.sum
    client._shares = {
        holder: [_EMPTY] * kept.sum + parse_box(box, left)
        for holder, box in _pairs(kept.holders, kept.boxes, "boxes of shares")
    }
    client._asked = tuple(np.frombuffer(rows, "<i8").astype(np.intp) for rows in kept.asked)
    client._alive = kept.alive
    if kept.confirmed is not None:
        client._confirmed = kept.confirmed
    return client


def _pairs(places: list[int] | Positions, values: tuple[bytes, ...], what: str) -> "zip[tuple[int, bytes]]":
    if len(places) != len(values):
        raise InvalidMessage(f"a snapshot with {len(values)} {what} of {len(places)}")
    return zip(places, values, strict=True)
