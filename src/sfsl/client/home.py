"""The folder of one client: who it is, whom it joined, what it has given away, what it keeps to itself.

::

    identity.key      its long-term key
    deployment        the server it joined, which it keeps to
    state             period, key of the permanent answers and ledger (``ClientState``)
    rows              its personal rows (``PersonalRows``)
    data              the samples that the period froze
    model             what it knows of the model, and the rows that the period froze (``KnownModel``)
"""

from datetime import date
from pathlib import Path

from sfsl.client.personal import PersonalRows
from sfsl.crypto.secret import Identity, Randomness, Secret
from sfsl.durable.records import DurableFile
from sfsl.errors import InputError, StateError
from sfsl.privacy import Budget, Calendar, ClientState
from sfsl.service.identities import Enrolment, read_identity, write_identity
from sfsl.service.signing import client_id
from sfsl.submodel import ModelSpec

_LARGEST_DATA = 1 << 30


class Home:
    """The folder of one client, which is made if it is not there, for its owner only."""

    def __init__(self, folder: Path, randomness: Randomness) -> None:
        self.folder = folder
        self._randomness = randomness
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot make the folder {folder}: {error.strerror}") from None

    def identity(self, path: Path | None = None) -> Identity:
        """Read the identity in ``path``, or this client's own, which is made on first use."""
        own = path or self.folder / "identity.key"
        if path is None and not own.exists():
            return write_identity(own, Secret(self._randomness.bytes(32)))
        return read_identity(own)

    def deployment(self) -> bytes | None:
        """Return the deployment that it joined, None before the first time."""
        path = self.folder / "deployment"
        try:
            return bytes.fromhex(path.read_text("ascii").strip()) if path.exists() else None
        except (OSError, ValueError):
            raise StateError(f"{path} does not hold the id of a deployment") from None

    def pin(self, deployment: bytes) -> None:
        if self.deployment() is None:
            replace_file(self.folder / "deployment", deployment.hex().encode() + b"\n")

    def state(self, client: str, calendar: Calendar, budget: Budget) -> ClientState:
        path = self.folder / "state"
        if not path.exists():
            return ClientState.create(path, client=client, calendar=calendar, budget=budget)
        state = ClientState.open(path, client=client, budget=budget)
        if state.calendar != calendar:
            state.close()
            raise InputError(
                f"{path} counts periods of {state.calendar.days} days from {state.calendar.start}, not of "
                f"{calendar.days} days; a client keeps to its calendar"
            )
        return state

    def personal(self, model: ModelSpec) -> PersonalRows:
        return PersonalRows.open(self.folder / "rows", model, self._randomness)

    def samples(self, source: Path | bytes, state: ClientState, today: date) -> tuple[Path, bool]:
        """Return the samples to take part with today, a copy of ``source`` (a file or its content) as it was
        when the period began here, and whether ``source`` has changed since. New data waits: answers that
        changed with the data would betray the change."""
        copy = self.folder / "data"
        try:
            data = source if isinstance(source, bytes) else _read(source)
            if len(data) > _LARGEST_DATA:
                raise InputError(f"samples of more than {_LARGEST_DATA >> 30} GiB")
            if copy.exists() and state.going_on(today):
                return copy, copy.read_bytes() != data
        except OSError as error:
            raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
        replace_file(copy, data)
        return copy, False


def _read(source: Path) -> bytes:
    if source.stat().st_size > _LARGEST_DATA:
        raise InputError(f"{source} has more than {_LARGEST_DATA >> 30} GiB")
    return source.read_bytes()


def require_readable(source: Path) -> None:
    """Refuse a file that cannot be read, before anybody is asked for anything."""
    try:
        with source.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from None


def read_roster(path: Path) -> dict[str, bytes]:
    """Read the public keys of all clients by their ids, from a list as a server has it: one key a line."""
    return {client_id(public): public for public in Enrolment.listed(path).read()}


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file of this client's durably, whole, and for its owner only."""
    with DurableFile(path) as file:
        file.replace(data)
