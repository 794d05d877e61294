"""What a client knows of its deployment's log of enrolled identities: the last head, kept durably, and the
members of the cohort that it is in, each of which the log proved (spec log 4)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.client.home import replace_file
from sfsl.errors import Forked, InputError, StateError
from sfsl.service.log import LogTrust, head_json, read_head
from sfsl.service.messages import LogHead, LogProof, LogQuery

_LARGEST = 1 << 16


@dataclass
class MemberLog:
    """One client's view of a log. ``members`` are those of the last cohort, by id."""

    path: Path
    trust: LogTrust
    members: dict[str, bytes] = field(default_factory=dict)

    def query(self, clients: Collection[str] = ()) -> LogQuery:
        """Ask whether these are in the log, and whether it continues what this client knows."""
        known = self.known()
        return LogQuery(0 if known is None else known.size, tuple(sorted(clients)))

    def take(self, proof: LogProof, clients: Collection[str] = ()) -> LogHead:
        """Check an answer, keep its head durably, and take over its members; raise, and nothing is changed
        but for the evidence of a fork."""
        known, head = self.known(), proof.head
        try:
            self.trust.require_head(head, known, proof.consistency)
        except Forked as error:
            raise self._forked(known, head, error) from None
        found = self.trust.require_members(proof, clients)
        if known is None or head.size > known.size:
            replace_file(self.path, with_json_sum(head_json(head)))
        self.members.clear()
        self.members.update(found)
        return head

    def known(self) -> LogHead | None:
        """Return the last head that this client has seen; None before the first."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_LARGEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}") from None
        try:
            return read_head(without_json_sum(data, str(self.path)), str(self.path))
        except InputError as error:
            raise StateError(f"{error}. Without it, a log that was rewritten is not noticed") from None

    def _forked(self, known: LogHead | None, head: LogHead, error: Forked) -> Forked:
        """Keep both heads, which the log's key has signed: whoever sees them knows that the server lied."""
        evidence = self.path.with_name("log-fork.json")
        heads = [msgspec.Raw(head_json(one)) for one in (known, head) if one is not None]
        replace_file(evidence, with_json_sum(msgspec.json.encode(heads)))
        return Forked(
            f"deployment {self.trust.deployment}: {error}. The log's key signed both, which are in "
            f"{evidence}: show them to the other members. This client takes no more part"
        )
