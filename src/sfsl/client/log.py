"""What a client knows of its deployment's log of enrolled identities: the last head, kept durably, and the
members of the cohort that it is in, each of which the log proved (spec log 4)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.client.home import replace_file
from sfsl.durable import DurableFile
from sfsl.errors import Forked, InputError, StateError
from sfsl.service.log import LogTrust, head_json, read_head
from sfsl.service.messages import LogHead, LogProof, LogQuery

_LARGEST = 1 << 16


@dataclass
class MemberLog:
    """One client's view of a log, or a witness's. ``members`` are those of the last cohort, by id. Between a
    question and its answer nobody else may write at ``path``; whoever keeps others out by the lock on it
    hands over what it ``held``. ``stops`` says what is over once a fork was seen."""

    path: Path
    trust: LogTrust
    members: dict[str, bytes] = field(default_factory=dict)
    held: DurableFile | None = None
    stops: str = "This client takes no more part"

    @property
    def evidence(self) -> Path:
        """Where two heads are kept that cannot both be true."""
        return self.path.with_name(f"{self.path.stem}-fork.json")

    def query(self, clients: Collection[str] = ()) -> LogQuery:
        """Ask whether these are in the log, and whether it continues what this client knows."""
        self._require_no_fork()
        known = self.known()
        return LogQuery(0 if known is None else known.size, tuple(sorted(clients)))

    def take(self, proof: LogProof, clients: Collection[str] = ()) -> LogHead:
        """Check an answer, keep its head durably, and take over its members; raise, and nothing is changed
        but for the evidence of a fork."""
        self._require_no_fork()
        known, head = self.known(), proof.head
        try:
            self.trust.require_head(head, known, proof.consistency)
        except Forked as error:
            raise self._forked(known, head, error) from None
        found = self.trust.require_members(proof, clients)
        if known is None or head.size > known.size:
            self.keep(head)
        self.members.clear()
        self.members.update(found)
        return head

    def keep(self, head: LogHead) -> None:
        """Keep a head that was checked, durably."""
        data = with_json_sum(head_json(head))
        if self.held is None:
            replace_file(self.path, data)
        else:
            self.held.replace(data)

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
            head = read_head(without_json_sum(data, str(self.path)), str(self.path))
        except InputError as error:
            raise StateError(f"{error}. Without it, a log that was rewritten is not noticed") from None
        if head.deployment.hex() != self.trust.deployment:
            raise StateError(
                f"{self.path} is a head of deployment {head.deployment.hex()}, not {self.trust.deployment}; "
                "each deployment has a file of its own"
            )
        return head

    def _forked(self, known: LogHead | None, head: LogHead, error: Forked) -> Forked:
        """Keep both heads, which the log's key has signed: whoever sees them knows that the server lied."""
        heads = [msgspec.Raw(head_json(one)) for one in (known, head) if one is not None]
        replace_file(self.evidence, with_json_sum(msgspec.json.encode(heads)))
        return Forked(
            f"deployment {self.trust.deployment}: {error}. The log's key signed both, which are in "
            f"{self.evidence}: show them to the other members. {self.stops}"
        )

    def _require_no_fork(self) -> None:
        """Stay away from a log that was forked, also where the server goes back to the head of before: else
        it could try one client after another, and each would forget it at its next start."""
        if self.evidence.exists():
            raise Forked(
                f"deployment {self.trust.deployment}: its log was rewritten, rolled back or shown "
                f"differently to others, as two heads in {self.evidence} show, which its key has signed. "
                f"{self.stops}. Where those who keep heads have found out together which log is the true "
                "one, move that file away"
            )
