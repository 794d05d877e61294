"""The log of enrolled identities, as everyone but its server sees it: entries, heads, whom a client trusts,
and what it checks (spec log).

A log only grows, and its heads say what it held. Whoever keeps a head notices if the log is rewritten; a
witness, who signs no head that does not continue the last one it signed, sees to it that all are shown the
same log. A log does not keep an operator from enrolling devices of its own in the open: for that, entries
carry the signature of an **enrolment authority**, whose key is not the server's.
"""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sfsl.crypto import merkle
from sfsl.crypto.secret import Identity, frame, verify
from sfsl.errors import AuthenticationFailed, Forked, InputError, InvalidMessage, Refused
from sfsl.service.messages import LogEntry, LogHead, LogProof, Signed
from sfsl.service.signing import client_id, require_public

HEAD, VOUCHER = "log head", "log entry"
_LARGEST_TRUST = 1 << 16
Key = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def leaf_of(entry: LogEntry) -> bytes:
    return merkle.leaf_hash(frame("log entry", entry.public_key, entry.voucher))


def vouch(authority: Identity, deployment: bytes, public: bytes) -> LogEntry:
    """Make the entry of an identity that this authority has enrolled, at one deployment."""
    require_public(public)
    return LogEntry(public, authority.sign(VOUCHER, deployment, public))


def require_voucher(entry: LogEntry, deployment: bytes, authorities: Collection[bytes]) -> None:
    """Refuse an identity that none of these authorities has enrolled at this deployment."""
    for authority in authorities:
        try:
            verify(authority, entry.voucher, VOUCHER, deployment, entry.public_key)
        except AuthenticationFailed:
            continue
        return
    said = "has no voucher" if not entry.voucher else "has a voucher that none of them gave"
    raise AuthenticationFailed(
        f"client {client_id(entry.public_key)} {said}: it was not enrolled by an authority that this client "
        "trusts"
    )


def sign_head(identity: Identity, head: LogHead) -> LogHead:
    """Add a signature to a head, in the place of an earlier one by the same key."""
    others = tuple(one for one in head.signatures if one.key != identity.public)
    signed = Signed(identity.public, identity.sign(HEAD, *_said(head)))
    return msgspec.structs.replace(head, signatures=(*others, signed))


def signers(head: LogHead, keys: Collection[bytes]) -> set[bytes]:
    """Return which of these keys have signed a head. A signature of one of them that is wrong is refused."""
    found = [one for one in head.signatures if one.key in keys]
    for one in found:
        verify(one.key, one.signature, HEAD, *_said(head))
    return {one.key for one in found}


def _said(head: LogHead) -> tuple[bytes, ...]:
    return head.deployment, head.size.to_bytes(8, "big"), head.root, head.time.to_bytes(8, "big")


def require_continues(known: LogHead, head: LogHead, consistency: bytes) -> None:
    """Refuse a head whose log does not continue the known one: the log was rewritten, or rolled back."""
    told = (
        f"a head of {head.size} entries with root {head.root.hex()[:16]}…, where this side knows one of "
        f"{known.size} with root {known.root.hex()[:16]}…"
    )
    if head.size < known.size:
        raise Forked(f"the log was rolled back: {told}")
    try:
        root = merkle.continues(known.size, known.root, head.size, consistency) if known.size else head.root
    except InvalidMessage as error:
        raise Forked(f"the log was rewritten, or is shown differently to others: {told} ({error})") from None
    if root != head.root or (not head.size and head.root != merkle.EMPTY):
        raise Forked(f"the log was rewritten, or is shown differently to others: {told}")


class LogTrust(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Whom a client trusts about a deployment's log: the file that it is given once, beside the certificate
    authority's. ``least_witnesses`` of the ``witnesses`` have signed each head; without ``authorities``
    nobody vouches for entries."""

    deployment: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    log: Key
    authorities: tuple[Key, ...] = ()
    witnesses: tuple[Key, ...] = ()
    least_witnesses: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.least_witnesses > len(set(self.witnesses)):
            raise ValueError(f"{self.least_witnesses} witnesses wanted, {len(set(self.witnesses))} are named")
        if self.log in self.witnesses or self.log in self.authorities:
            raise ValueError("the log's own key is no witness and no authority: it is the server's")

    @classmethod
    def read(cls, path: Path) -> "LogTrust":
        try:
            with open(path, "rb") as file:
                text = file.read(_LARGEST_TRUST).decode()
            return msgspec.convert(tomllib.loads(text), cls)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
            raise InputError(
                f"{path} does not say whom to trust about a log: {error}. sfsl keys log trust writes it"
            ) from None

    def loosened(self) -> list[str]:
        """Say in what this client takes the server's word, which is all that the log is there to replace."""
        unwitnessed = [] if self.least_witnesses else ["log without witnesses"]
        return unwitnessed + ([] if self.authorities else ["log without authorities"])

    def written(self) -> str:
        """The file, with what each line means."""

        def keys(given: tuple[str, ...]) -> str:
            return "[" + ", ".join(f'"{one}"' for one in given) + "]"

        return (
            "# Whom a client trusts about the log of enrolled identities: sfsl join --log THIS_FILE\n"
            f'deployment = "{self.deployment}"\n'
            f'log = "{self.log}"                # signs heads; the server has it\n'
            f"authorities = {keys(self.authorities)}   # vouch for each identity; no server has their keys\n"
            f"witnesses = {keys(self.witnesses)}   # sign heads that continue those they signed before\n"
            f"least-witnesses = {self.least_witnesses}\n"
        )

    def require_head(self, head: LogHead, known: LogHead | None, consistency: bytes) -> None:
        """Refuse a head that is not the log's, does not continue the known one, or is not witnessed."""
        if head.deployment.hex() != self.deployment:
            raise AuthenticationFailed(f"a head of deployment {head.deployment.hex()}, not {self.deployment}")
        if not signers(head, {bytes.fromhex(self.log)}):
            raise AuthenticationFailed("a head that the log's key has not signed")
        if known is not None:
            require_continues(known, head, consistency)
        found = signers(head, set(map(bytes.fromhex, self.witnesses)))
        if len(found) < self.least_witnesses:
            raise Refused(
                f"a head of {head.size} entries that {len(found)} of this client's witnesses have signed, "
                f"where it wants {self.least_witnesses}"
            )

    def require_members(self, proof: LogProof, clients: Collection[str]) -> dict[str, bytes]:
        """Return the identities of these clients, by id, each of which is in the log that a checked head
        commits to and vouched for; refuse an answer that leaves one of them out."""
        head, entries = proof.head, proof.entries
        if len(entries) != len(proof.places) or list(proof.places) != sorted(set(proof.places)):
            raise InvalidMessage("entries of a log that are not in order of their places")
        found = {client_id(entry.public_key): entry.public_key for entry in entries}
        if found.keys() != set(clients) or len(entries) != len(found):
            raise AuthenticationFailed("the log's proof is about other clients than those of the cohort")
        if found:
            leaves = {place: leaf_of(one) for place, one in zip(proof.places, entries, strict=True)}
            if merkle.root_of(leaves, head.size, proof.inclusion) != head.root:
                raise AuthenticationFailed(
                    "a client of the cohort is not in the log that the head commits to"
                )
        if self.authorities:
            authorities = [bytes.fromhex(one) for one in self.authorities]
            for entry in entries:
                require_voucher(entry, head.deployment, authorities)
        return found


def head_json(head: LogHead) -> bytes:
    """A head as a file that others publish and compare."""
    return msgspec.json.format(msgspec.json.encode(_plain(head)))


def _plain(head: LogHead) -> dict[str, object]:
    return {
        "deployment": head.deployment.hex(),
        "size": head.size,
        "root": head.root.hex(),
        "time": head.time,
        "signatures": {one.key.hex(): one.signature.hex() for one in head.signatures},
    }


class _HeadFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deployment: str
    size: int
    root: str
    time: int
    signatures: dict[str, str]


def read_head(data: bytes, where: str) -> LogHead:
    """Read what ``head_json`` wrote. Nothing of it is believed before its signatures are checked."""
    try:
        file = msgspec.json.decode(data, type=_HeadFile)
        given = tuple([bytes.fromhex(key), bytes.fromhex(one)] for key, one in file.signatures.items())
        fields = {"deployment": bytes.fromhex(file.deployment), "root": bytes.fromhex(file.root)}
        plain = {"type": "log-head", "size": file.size, "time": file.time, "signatures": given}
        return msgspec.convert(plain | fields, LogHead, builtin_types=(bytes,))
    except (msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"{where} does not hold the head of a log: {error}") from None
