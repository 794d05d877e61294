"""The folder of one client: who it is, whom it joined, what it has given away, what it keeps to itself.

::

    identity.key      its long-term key
    deployment        the server it joined, which it keeps to
    state             period, key of the permanent answers and ledger (``ClientState``)
    rows              its personal rows, which never leave the device (``PersonalRows``)
    data              the samples that the period froze, and data.sum, their checksum
    exposed           which samples have been in exact sums (``ExposedSamples``)
    terms             what its owner has loosened
    log               the last head of the log of enrolled clients, where it is checked (``MemberLog``)
    model             what it knows of the model, and the rows that the period froze (``KnownModel``)
    current.zip       the model that it downloaded last, to score with (``keep_download``)
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from sfsl.arrays import Indices, Values, find
from sfsl.checksums import with_json_sum, with_last_line, without_json_sum, without_last_line
from sfsl.client.exposed import ExposedSamples
from sfsl.codec import Message
from sfsl.crypto.secret import Identity, Randomness, Secret
from sfsl.durable import Closing, DurableFile, RecordFormat, closed_on_error, make_folder, system_errors_as
from sfsl.errors import InputError, StateError
from sfsl.privacy import Budget, Calendar, ClientState
from sfsl.service.identities import Enrolment, read_identity, write_identity
from sfsl.service.signing import client_id
from sfsl.submodel import ModelSpec, Table
from sfsl.submodel.store import initial_rows

_LARGEST_DATA = 1 << 30
# As ssh has it: that others may look into a folder is no harm, its files are for their owner only.
_OTHERS_WRITE = 0o022
# Each is made after the state: with one of them, there was a state.
_AFTER_STATE = ("deployment", "rows", "data", "data.sum", "exposed", "log", "model", "current.zip")


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rows`` ascending as little-endian 64-bit numbers, ``values`` as float32 of ``width`` each."""

    width: Annotated[int, Meta(ge=1, le=2**20)]
    rows: bytes
    values: bytes


class _Loosened(msgspec.Struct, frozen=True):
    loosened: list[str]


class _Record(Message, frozen=True, tag="personal-rows"):
    seed: Annotated[bytes, Meta(min_length=32, max_length=32)]
    tables: dict[Annotated[str, Meta(max_length=64)], _Rows]


_FORMAT = RecordFormat(
    _Record,
    b"sfsl rows\r\n\x1a\n\x00\x00\x00",  # 16 bytes, as a client state has its own
    largest=1 << 28,
    what="a file of personal rows",
    lost="Restore it, or move it away: then personal rows start anew",
)


class PersonalRows(Closing):
    """The personal rows of one client. Rows that it never trained follow from ``seed``. Without a file they
    last as long as this object, which is for simulations."""

    def __init__(self, model: ModelSpec, seed: bytes, file: DurableFile | None = None) -> None:
        self._tables = {table.name: table for table in model.tables if table.kind == "personal"}
        self._seed = seed
        self._file = file
        self._kept: dict[str, tuple[Indices, Values]] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: ModelSpec, randomness: Randomness) -> Self:
        """Open the rows at ``path``; make a new file with a seed of its own if there is none."""
        file = DurableFile(path)
        with closed_on_error(file):
            if not file.exists():
                made = cls(model, randomness.bytes(32), file)
                made._write({})
                return made
            record = _FORMAT.decode(file.read(_FORMAT.largest), str(file.path))
            found = cls(model, record.seed, file)
            found._kept = {
                name: _arrays(found._table(name), rows, str(file.path))
                for name, rows in record.tables.items()
            }
        return found

    def read(self, table: str, rows: Indices) -> Values:
        """Return the values of these rows, ascending."""
        values = initial_rows(self._seed, self._table(table), rows)
        if table in self._kept:
            own, kept = self._kept[table]
            at, held = find(rows, own)
            values[held] = kept[at[held]]
        return values

    def keep(self, learned: Mapping[str, tuple[Indices, Values]]) -> None:
        """Replace the values of these rows; durable when it returns."""
        kept = dict(self._kept)
        for name, (rows, values) in learned.items():
            table = self._table(name)
            if values.shape != (len(rows), table.width) or not np.isfinite(values).all():
                raise InputError(f"personal rows of table {name!r} are {table.width} finite numbers each")
            every = np.union1d(kept[name][0], rows) if name in kept else np.asarray(rows, np.int64)
            merged = self.read(name, every)
            merged[np.searchsorted(every, rows)] = values
            kept[name] = (every, merged)
        self._write(kept)
        self._kept = kept

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __repr__(self) -> str:
        return "PersonalRows(redacted)"

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            raise StateError(f"this model has no personal table {name!r}; was it made for another model?")
        return self._tables[name]

    def _write(self, kept: Mapping[str, tuple[Indices, Values]]) -> None:
        if self._file is None:
            return
        tables = {
            name: _Rows(values.shape[1], rows.astype("<i8").tobytes(), values.astype("<f4").tobytes())
            for name, (rows, values) in kept.items()
        }
        self._file.replace(_FORMAT.encode(_Record(self._seed, tables)))


def read_personal(path: Path, model: ModelSpec) -> dict[str, tuple[Indices, Values]]:
    """Read the personal rows that a client keeps, by table, also while it runs: files are replaced whole."""
    try:
        record = _FORMAT.decode(path.read_bytes(), str(path))
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from None
    return {name: _arrays(model.table(name), rows, str(path)) for name, rows in record.tables.items()}


def _arrays(table: Table, given: _Rows, where: str) -> tuple[Indices, Values]:
    rows = np.frombuffer(given.rows[: len(given.rows) // 8 * 8], "<i8").astype(np.int64)
    whole = len(given.rows) == 8 * len(rows) and len(given.values) == 4 * len(rows) * given.width
    if given.width != table.width or not whole:
        raise StateError(
            f"{where}: rows of table {table.name!r} do not fit this model, of width {table.width}"
        )
    return rows, np.frombuffer(given.values, "<f4").astype(np.float32).reshape(len(rows), given.width)


class Home:
    """The folder of one client, which is made if it is not there, for its owner only. One in which others may
    write is refused: they could put other files into the place of its own."""

    def __init__(self, folder: Path, randomness: Randomness) -> None:
        self.folder = folder
        self._randomness = randomness
        with system_errors_as(StateError, f"make the folder {folder}"):
            make_folder(folder, 0o700)
            mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & _OTHERS_WRITE:
            raise StateError(
                f"others may write in {folder} (mode {mode:04o}), and so put other files into the place of "
                f"this client's. If nobody did:  chmod go-w {folder}"
            )

    def identity(self, path: Path | None = None) -> Identity:
        """Read the identity in ``path``, or this client's own, which is made on first use."""
        own = path or self.folder / "identity.key"
        if path is None and not own.exists():
            return write_identity(own, Secret(self._randomness.bytes(32)))
        return read_identity(own)

    def deployment(self) -> bytes | None:
        """Return the deployment that it joined, None before the first time."""
        path = self.folder / "deployment"
        if not path.exists():
            return None
        try:
            data = without_last_line(path.read_bytes(), str(path))
            return bytes.fromhex(data.decode("ascii").strip())
        except (OSError, ValueError):  # also where the checksum does not fit
            raise StateError(
                f"{path} does not hold the id of a deployment, or is damaged; write the 32 digits into it "
                "that the server shows as its deployment, if it is the one that this client joined"
            ) from None

    def pin(self, deployment: bytes) -> None:
        """Keep to this deployment from now on; the state is made before."""
        if self.deployment() is None:
            replace_file(self.folder / "deployment", with_last_line(deployment.hex().encode() + b"\n"))

    def state(self, client: str, calendar: Calendar, budget: Budget) -> ClientState:
        """Open the state, or make one for a client that never took part. One that is gone is never replaced
        silently (spec privacy 6.1): the ledger would begin anew, and answers be drawn a second time."""
        path = self.folder / "state"
        if not path.exists():
            self._require_new(path)
            return ClientState.create(path, client=client, calendar=calendar, budget=budget)
        state = ClientState.open(path, client=client, budget=budget)
        if state.calendar != calendar:
            state.close()
            raise InputError(
                f"{path} counts periods of {state.calendar.days} days from {state.calendar.start}, not of "
                f"{calendar.days} days; a client keeps to its calendar"
            )
        return state

    def renew(self, client: str, calendar: Calendar, today: date) -> None:
        """Begin a new ledger in place of one that is lost for good. The client sits out this period, and what
        the lost one had spent is charged by the server's count when it checks in."""
        spent = Budget(0, 0, 0)
        lost = (today, self._randomness)
        path = self.folder / "state"
        ClientState.create(path, client=client, calendar=calendar, budget=spent, lost=lost).close()

    def _require_new(self, state: Path) -> None:
        left = [name for name in _AFTER_STATE if (self.folder / name).exists()]
        if left:
            raise StateError(
                f"{state} is gone, but {', '.join(left)} beside it {'are' if len(left) > 1 else 'is'} there: "
                "this client took part before, and what it has given away is in the missing file. Put it "
                f"back, not an older copy. If it is lost for good:  sfsl privacy renew {self.folder}  begins "
                "a new one, with which this client sits out the period"
            )

    def note_terms(self, loosened: Sequence[str]) -> None:
        """Note what this client's owner has loosened, for whoever asks what it gives away."""
        path, text = self.folder / "terms", with_json_sum(msgspec.json.encode({"loosened": list(loosened)}))
        if not path.exists() or path.read_bytes() != text:
            replace_file(path, text)

    def personal(self, model: ModelSpec) -> PersonalRows:
        return PersonalRows.open(self.folder / "rows", model, self._randomness)

    def samples(self, source: Path | bytes, state: ClientState, today: date) -> tuple[Path, bool]:
        """Return the samples to take part with today, a copy of ``source`` (a file or its content) as it was
        when the period began here and whether ``source`` has changed since. New data waits: answers that
        changed with the data would betray the change."""
        copy = self.folder / "data"
        try:
            data = source if isinstance(source, bytes) else _read(source)
            if len(data) > _LARGEST_DATA:
                raise InputError(f"samples of more than {_LARGEST_DATA >> 30} GiB")
            if copy.exists() and state.going_on(today):
                frozen = copy.read_bytes()
                self._require_frozen(copy, frozen)
                return copy, frozen != data
        except OSError as error:
            raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
        # First the checksum: after a crash in between the period has not begun, and both are made again.
        replace_file(self.folder / "data.sum", _sum(data))
        replace_file(copy, data)
        return copy, False

    @property
    def exposed(self) -> ExposedSamples:
        return ExposedSamples(self.folder / "exposed", self._randomness)

    def _require_frozen(self, copy: Path, data: bytes) -> None:
        """Refuse a copy that is not what was frozen. Earlier versions kept no checksum."""
        kept = self.folder / "data.sum"
        if kept.exists() and kept.read_bytes() != _sum(data):
            raise StateError(
                f"{copy} is damaged, or {kept.name} beside it: it does not fit. Until the period ends "
                "this client answers for the samples that it froze: restore the file, or sit the period out"
            )


def _sum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n"


def _read(source: Path) -> bytes:
    if source.stat().st_size > _LARGEST_DATA:
        raise InputError(f"{source} has more than {_LARGEST_DATA >> 30} GiB")
    return source.read_bytes()


def read_loosened(folder: Path) -> list[str] | None:
    """Return what the owner of the client in this folder has loosened; None where nothing was noted."""
    path = folder / "terms"
    try:
        text = without_json_sum(path.read_bytes(), str(path), "the client's next start writes it again")
        return msgspec.json.decode(text, type=_Loosened).loosened
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"{path} cannot be read: {error}") from None


def require_readable(source: Path) -> None:
    """Refuse a file that cannot be read, before anybody is asked for anything."""
    with system_errors_as(InputError, f"read {source}"), source.open("rb") as file:
        file.read(1)


def read_roster(path: Path) -> dict[str, bytes]:
    """Read the public keys of all clients by their ids, from a list as a server has it: one key a line."""
    return {client_id(public): public for public in Enrolment.listed(path).read()}


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file of this client's durably, whole, and for its owner only."""
    with DurableFile(path) as file:
        file.replace(data)
