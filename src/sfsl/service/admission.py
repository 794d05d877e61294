"""What a check-in must be before its client may be in a round, whichever carrier brings it."""

from collections.abc import Mapping

from sfsl.crypto.agreement import require_contributory
from sfsl.errors import ConflictingMessage, InvalidMessage, UnexpectedSender
from sfsl.rounds.exchanges import SUMS
from sfsl.secagg.messages import Keys
from sfsl.secagg.transcript import require_keys
from sfsl.service.messages import CheckIn


def admit_keys(client: str, keys: Keys, identities: Mapping[str, bytes] | None = None) -> frozenset[bytes]:
    """Return the public keys of a client's sound check-in; ``identities`` are given in active mode, by name.

    Whatever could keep a round from going on is refused here, where it costs its sender alone.
    """
    if keys.client != client:
        raise UnexpectedSender(f"client {client} checks in with keys in another name")
    require_keys(keys, SUMS, identities)
    publics = (keys.channel, *keys.masks)
    for public in publics:
        require_contributory(public)
    if len(set(publics)) != len(publics):
        raise ConflictingMessage(f"client {client} uses a key twice; every check-in has new ones")
    return frozenset(publics)


def admit_check_in(
    client: str, message: CheckIn, model_digest: bytes, identities: Mapping[str, bytes] | None
) -> frozenset[bytes]:
    """Do the same with a check-in to a deployment, which must be for its model."""
    if message.model != model_digest:
        raise InvalidMessage("a check-in for another model than this server trains")
    return admit_keys(client, message.keys, identities)
