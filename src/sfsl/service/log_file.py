"""The log of enrolled identities as its server keeps it (spec log 2): a text file that is only appended to,
the key that signs its heads, and the heads that were given out.

::

    roster.log      a line for each entry, in the form of a list of clients
    roster.key      the log's key
    roster.head     the head that clients are shown, and the one that waits for witnesses

An entry is on disk before its client is enrolled, and a head before anyone sees it. A line that a crash cut
short was never said to be there, and goes. A log that has lost what its head commits to is refused.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.crypto.merkle import Tree
from sfsl.crypto.secret import Randomness, Secret
from sfsl.durable import OWNER_ONLY, Closing, LineFile, closed_on_error, system_errors_as, write_whole
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    InputError,
    InvalidMessage,
    ParameterError,
    Refused,
    StoreCorrupt,
    StoreError,
    Unavailable,
)
from sfsl.service.identities import KEY_LINE, read_identity, write_identity
from sfsl.service.log import head_json, leaf_of, read_head, require_voucher, sign_head, signers
from sfsl.service.messages import LogEntry, LogHead, LogProof, LogQuery
from sfsl.service.signing import client_id, require_public

LOG, KEY, HEADS = "roster.log", "roster.key", "roster.head"
_TITLE = "# sfsl log 1 "
_MARK = " # "
_WAIT_S = 2.0  # until a client should ask again for what a witness has yet to sign


@dataclass(frozen=True)
class LogRules:
    """What a server wants of its log: ``least_witnesses`` of these ``witnesses`` sign a head before clients
    are shown it, and one of the ``authorities``, if there are any, has vouched for each client."""

    witnesses: frozenset[bytes] = frozenset()
    least_witnesses: int = 0
    authorities: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        if self.least_witnesses > len(self.witnesses):
            raise ParameterError(
                f"{self.least_witnesses} witnesses are to sign heads, but {len(self.witnesses)} are named"
            )


class RosterLog(Closing):
    """The log in a server's folder, whose registry's lock keeps other servers out. ``shown`` is the head for
    clients, None while no head has its witnesses; ``offered`` the newest one, for witnesses."""

    def __init__(
        self, folder: Path, deployment: bytes, rules: LogRules, randomness: Randomness, now_ms: int
    ) -> None:
        self._path, self._heads_path, self.rules = folder / LOG, folder / HEADS, rules
        self.deployment = deployment
        made = [one.exists() for one in (self._path, folder / KEY)]
        if not any(made):
            write_identity(folder / KEY, Secret(randomness.bytes(32)))
        elif not made[1] or (not made[0] and self._heads_path.exists()):
            raise StoreCorrupt(f"of {self._path} and its key one is gone; restore a backup of both")
        if not made[0]:  # also where a crash came between the key and the log
            _write(self._path, f"{_TITLE}{deployment.hex()}\n".encode())
        self._identity = read_identity(folder / KEY)
        self.entries, whole = read_log(self._path, deployment)
        self._tree = Tree(map(leaf_of, self.entries))
        self._places: dict[str, list[int]] = {}
        for place, entry in enumerate(self.entries):
            self._places.setdefault(client_id(entry.public_key), []).append(place)
        with system_errors_as(StoreError, f"open {self._path}"):
            self._file = LineFile(self._path, whole)
        with closed_on_error(self):
            self.shown: LogHead | None = None
            self._open_heads(now_ms)

    @property
    def public(self) -> bytes:
        """The key that signs heads."""
        return self._identity.public

    def enter(self, entries: Iterable[LogEntry], now_ms: int) -> None:
        """Append those of these that are new, durably, and offer a head that has them. A client with a new
        voucher gets another entry."""
        new = [one for one in entries if self._is_new(one)]
        if new:
            with system_errors_as(StoreError, f"write {self._path}", "; nobody was enrolled"):
                self._file.append("".join(with_sum(line_of(one)) for one in new).encode("ascii"))
        for entry in new:
            self._places.setdefault(client_id(entry.public_key), []).append(len(self.entries))
            self.entries.append(entry)
        self._tree.extend(map(leaf_of, new))
        self._offer_if_due(now_ms)  # also of entries from before, for whose head there was no room

    def _is_new(self, entry: LogEntry) -> bool:
        places = self._places.get(client_id(entry.public_key))
        if places is None:
            return True
        return bool(entry.voucher) and self.entries[places[-1]].voucher != entry.voucher

    def require_vouched(self, entry: LogEntry) -> None:
        """Refuse an identity that no authority of this server has vouched for, if it has authorities."""
        if self.rules.authorities:
            try:
                require_voucher(entry, self.deployment, self.rules.authorities)
            except AuthenticationFailed as error:
                raise Refused(f"{error}; its line on the list needs one (sfsl keys log vouch)") from None

    def bars(self, client: str) -> str:
        """Return why this client may not be in a cohort whose members are proved; empty if it may."""
        place = self._place(client)
        if place is None:
            return "this client's enrolment waits for the witnesses of the log"
        try:
            self.require_vouched(self.entries[place])
        except Refused as error:
            return str(error)
        return ""

    def _offer_if_due(self, now_ms: int) -> None:
        """Offer a new head where there are new entries. One that waits for its witnesses is kept until it has
        them, so that all of them sign the same."""
        if self.offered == self.shown and self.offered.size < len(self.entries):
            self._offer(now_ms)

    def cosign(self, head: LogHead, now_ms: int) -> None:
        """Take the signatures of witnesses under the head that is offered."""
        mine = self.offered
        if (head.deployment, head.size, head.root, head.time) != (
            mine.deployment, mine.size, mine.root, mine.time,
        ):  # fmt: skip
            raise ConflictingMessage("signatures under another head than the one that is offered; ask again")
        new = signers(head, self.rules.witnesses)
        if not new:
            raise Refused("none of this log's witnesses has signed this head")
        kept = {one.key: one for one in (*head.signatures, *mine.signatures) if one.key in new}
        others = [one for one in mine.signatures if one.key not in new]
        self._keep(msgspec.structs.replace(mine, signatures=(*others, *kept.values())))
        self._offer_if_due(now_ms)

    def prove(self, query: LogQuery, *, offered: bool = False) -> LogProof:
        """Answer what a client asks of the head that it is shown, or a witness of the one that is offered."""
        head = self.offered if offered else self.shown
        if head is None:
            raise Unavailable("no head of this log has its witnesses yet; come back later", wait_s=_WAIT_S)
        found = {client: self._place(client) for client in query.clients}
        if missing := [client for client, place in found.items() if place is None]:
            raise Refused(f"client {missing[0]} is not in the log, or not in its head yet")
        places = sorted(place for place in found.values() if place is not None)
        return LogProof(
            head,
            self._tree.consistency(query.since, head.size),
            tuple(places),
            tuple(self.entries[place] for place in places),
            self._tree.proof(places, head.size) if places else b"",
        )

    def _place(self, client: str) -> int | None:
        """The latest place of a client within the head that is shown."""
        size = 0 if self.shown is None else self.shown.size
        return next((one for one in reversed(self._places.get(client, [])) if one < size), None)

    def _open_heads(self, now_ms: int) -> None:
        try:
            kept = read_heads(self._heads_path)
        except FileNotFoundError:
            if self.entries:
                raise StoreCorrupt(f"{self._heads_path} is gone beside a log; restore a backup") from None
            self._offer(now_ms)
            return
        except InputError as error:
            raise StoreCorrupt(f"{error}; restore a backup") from None
        for head in kept:
            lost = head.size > len(self.entries) or self._tree.root_at(head.size) != head.root
            if lost or head.deployment != self.deployment:
                raise StoreCorrupt(
                    f"{self._path} is not the log that {self._heads_path} commits to ({head.size} entries): "
                    "it was rewritten, cut or restored. Clients would take it for a fork; restore all of it"
                )
        self.shown = kept[1] if len(kept) > 1 else None
        self._keep(kept[0])  # under rules that may have changed
        self._offer_if_due(now_ms)

    def _offer(self, now_ms: int) -> None:
        size = len(self.entries)
        head = LogHead(self.deployment, size, self._tree.root_at(size), now_ms)
        self._keep(sign_head(self._identity, head))

    def _keep(self, offered: LogHead) -> None:
        """Keep what is offered, and show it to clients if it has its witnesses; durable before it is seen."""
        enough = len(signers(offered, self.rules.witnesses)) >= self.rules.least_witnesses
        shown = offered if enough else self.shown
        heads = [msgspec.Raw(head_json(one)) for one in (offered, shown) if one is not None]
        _write(self._heads_path, with_json_sum(msgspec.json.encode(heads)))
        self.offered, self.shown = offered, shown

    def close(self) -> None:
        self._file.close()


def line_of(entry: LogEntry) -> str:
    """An entry as a line of a list of clients: the public key and, if there is one, the voucher."""
    return entry.public_key.hex() + (f" {entry.voucher.hex()}" if entry.voucher else "")


def with_sum(text: str) -> str:
    """A line of the log's file: a comment behind the entry has its checksum."""
    return f"{text}{_MARK}{hashlib.sha256(text.encode('latin-1')).hexdigest()[:16]}\n"


def read_log(path: Path, deployment: bytes | None = None) -> tuple[list[LogEntry], int]:
    """Return the entries of a log's file, and the bytes of its whole lines; behind them may be what a crash
    cut short. Lines have checksums, but for those at the start that an earlier version wrote."""
    with system_errors_as(StoreError, f"read {path}"):
        data = path.read_bytes()
    *whole, torn = data.decode("latin-1").split("\n")
    title, *lines = whole or [""]
    if title != _TITLE + (deployment.hex() if deployment else title[len(_TITLE) :]):
        raise StoreCorrupt(f"{path} is not the log of this deployment")
    entries, summed = [], False
    for number, line in enumerate(lines, 2):
        text, mark, _ = line.partition(_MARK)
        found = KEY_LINE.fullmatch(text)
        try:
            if found is None or text != text.lower():
                raise InvalidMessage("a public key, and perhaps a voucher")
            summed |= bool(mark)
            if summed and f"{line}\n" != with_sum(text):
                raise InvalidMessage("its checksum does not fit")
            entry = LogEntry(bytes.fromhex(found[1]), bytes.fromhex(found[2] or ""))
            require_public(entry.public_key)
        except InvalidMessage as error:
            raise StoreCorrupt(f"{path}, line {number}, is no entry of a log: {error}") from None
        entries.append(entry)
    if with_sum(torn[:-1].partition(_MARK)[0]) == f"{torn[:-1]}\n":
        raise StoreCorrupt(f"{path}: the last line is whole, but its line break is damaged")
    return entries, data.rfind(b"\n") + 1


def read_heads(path: Path) -> list[LogHead]:
    """Return the heads in a file: one, or several as a server keeps them (offered, shown) or a client that
    found two which cannot both be true."""
    data = without_json_sum(path.read_bytes(), str(path))
    try:
        many = msgspec.json.decode(
            data if data.startswith(b"[") else b"[" + data + b"]", type=list[msgspec.Raw]
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"{path} holds no heads of a log: {error}") from None
    if not many:
        raise InputError(f"{path} holds no heads of a log")
    return [read_head(bytes(one), str(path)) for one in many]


def read_deployment(path: Path) -> bytes:
    """Return the deployment that a log's file is of."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            title = file.readline(200)
        return bytes.fromhex(title.removeprefix(_TITLE)) if title.startswith(_TITLE) else b""
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        return b""


def keys_of(text: str, what: str) -> frozenset[bytes]:
    """Read public keys in hexadecimal with spaces between, as settings have them."""
    found = set()
    for one in text.split():
        try:
            found.add(bytes.fromhex(one))
            require_public(bytes.fromhex(one))
        except (ValueError, InvalidMessage):
            raise ParameterError(f"{what}: {one!r} is not a public key (sfsl keys show)") from None
    return frozenset(found)


def _write(path: Path, data: bytes) -> None:
    with system_errors_as(StoreError, f"write {path}", "; its folder must be writable"):
        write_whole(path, data, mode=OWNER_ONLY)
