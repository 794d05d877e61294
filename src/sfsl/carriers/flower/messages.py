"""What travels over Flower besides the messages of a round, and what nodes are called.

With SuperNode authentication a node id belongs to a public key that the operator registered, and only that
node learns the id of a message to it, without which nobody can reply (``post``). So one key is one client, as
long as the SuperLink remembers it.
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.crypto.secret import digest
from sfsl.errors import InputError, InvalidMessage
from sfsl.rounds.exchanges import CODEC as ROUND
from sfsl.secagg.messages import Key
from sfsl.service.messages import CheckIn, Decline, Digest, RoundId
from sfsl.service.signing import client_id, require_public


class Call(Message, frozen=True, tag="call", omit_defaults=True):
    """Asks a client whether it would be in a round of this model. It is answered by ``CheckIn``.
    ``acknowledged`` as in ``CheckedIn``: how many masked sets or vectors of this client the server has ever
    received. ``rho``: what the round costs, about, if it is over hot rows; left out of one of exact sums."""

    deployment: RoundId
    model: Digest
    acknowledged: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    rho: Annotated[float, Meta(gt=0)] | None = None


class Over(Message, frozen=True, tag="over"):
    """Tells a client that what it kept since it checked in with this key can go. It says it back."""

    channel: Key


CODEC = Codec(Call, Over, CheckIn, Decline, *ROUND.types)


def node_token(node: int) -> bytes:
    """Return 32 bytes that stand for a node in the registry, where an HTTPS client has its public key."""
    return digest("flower node", node.to_bytes(8, "big"))


def node_name(node: int) -> str:
    return client_id(node_token(node))


def read_roster(path: Path) -> dict[str, bytes]:
    """Read who is in active mode: on each line a node id and a public key in hexadecimal; ``#`` starts a
    comment."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the roster {path}: {error}") from None
    found: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            node, public = int(words[0]), bytes.fromhex(words[1])
            require_public(public)
            name = node_name(node)
        except (IndexError, ValueError, OverflowError, InvalidMessage):
            raise InputError(
                f"{path}, line {number}: a node id (flwr supernode list) and its public key (sfsl keys show)"
            ) from None
        if len(words) > 2 or name in found or public in found.values():
            raise InputError(f"{path}, line {number}: each node once, with a key of its own")
        found[name] = public
    return found
