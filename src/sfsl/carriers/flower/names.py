"""What a client is called in the protocol: by its Flower node, and by nothing that it says itself.

With SuperNode authentication a node id belongs to a public key that the operator registered, and only that
node learns the id of a message to it, without which nobody can reply (``post``). So one key is one client, as
long as the SuperLink remembers it.
"""

from pathlib import Path

from sfsl.crypto.kdf import digest
from sfsl.errors import InputError, InvalidMessage
from sfsl.service.signing import client_id, require_public


def node_token(node: int) -> bytes:
    """32 bytes that stand for a node in the registry, where an HTTPS client has its public key."""
    return digest("flower node", node.to_bytes(8, "big"))


def node_name(node: int) -> str:
    return client_id(node_token(node))


def read_roster(path: Path) -> dict[str, bytes]:
    """Active mode: a node id and a public key in hexadecimal on each line; ``#`` starts a comment."""
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
