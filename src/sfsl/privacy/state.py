"""A client's durable memory and its bytes: the only way to answers that may leave a device (spec privacy 5
and 6).

In a round, in this order::

    with ClientState.open(path, client="alice", budget=budget) as state:
        state.begin(today, privacy, tables, real, acknowledged=server_count, randomness=randomness)
        submitted = state.expose(round_id)                        # debited on disk; MaskedSet may leave
        bitmaps = state.answer(round_id, unions, randomness)      # debited on disk; Request may leave

A step that fails raises, and then nothing may be sent. A client that restarts within a round is a
dropout: the new process has not exposed that round and refuses to answer it. Where each message has a
process of its own, ``keep`` and ``go_on`` hand a round over from one to the next, and to no other.

A hot round needs no period::

    with ClientState.open(path, client="alice", budget=budget) as state:
        state.catch_up(server_count)
        state.spend(round_id, rho)                                # debited on disk; MaskedVector may leave
"""

import os
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Indices
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness, Secret, digest
from sfsl.durable import Closing, DurableFile, RecordFormat, closed_on_error, system_errors_as
from sfsl.errors import Declined, InputError, PeriodFrozen, Refused, RolledBack, StateError
from sfsl.privacy.accounting import epsilon_of
from sfsl.privacy.ledger import Budget, Calendar, HotLedger, Ledger
from sfsl.privacy.parameters import IndexPrivacy
from sfsl.privacy.response import KEY_BYTES, Decoys, Perturber, Tables

MAGIC = b"sfsl state\r\n\x1a\n\x00\x00"  # 16 bytes; a text-mode copy would break them

ClientName = Annotated[str, Meta(min_length=1, max_length=128)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Chance = Annotated[float, Meta(ge=0, le=1)]


class FrozenPeriod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a period fixes: the key of its permanent answers, the data and settings they were drawn for.
    ``barred``: the state was rolled back in this period, so its key may be a second one."""

    number: int
    key: Digest
    p1: Chance
    p2: Chance
    snapshot: Digest
    decoys: Digest
    barred: bool = False

    def __repr__(self) -> str:
        return f"FrozenPeriod(number={self.number}, redacted)"

    def __rich_repr__(self) -> Any:
        yield repr(self)


def freeze(
    number: int,
    key: bytes,
    privacy: IndexPrivacy,
    tables: Tables,
    real: Mapping[str, ArrayLike],
    decoys: Decoys | None,
) -> FrozenPeriod:
    """Return what a period fixes. The digests are keyed: nobody can try out sets without the period's key."""
    rows = tables.per_shared_table(real, "the real set")
    sets = [part for name in rows for part in (name.encode(), np.unique(rows[name]).astype(">u8").tobytes())]
    plan = []
    if decoys is not None:
        plan = [decoys.draws.to_bytes(8, "big")]
        for name in sorted(decoys.domain):
            plan += [name.encode(), decoys.domain[name].to_bytes(8, "big")]
    return FrozenPeriod(
        number=number,
        key=key,
        p1=privacy.p1,
        p2=privacy.p2,
        snapshot=digest("period-snapshot", key, *sets),
        decoys=digest("period-decoys", key, *plan),
    )


class StateRecord(Message, frozen=True, tag="client-state", omit_defaults=True):
    """All that a client keeps from round to round. ``going_on``: the digest of what another keeps of a round
    under way, the last thing that was kept of it (``ClientState.keep``). ``hot`` is left out of the bytes
    while no hot round was paid for. ``exposed``: which lists of exposed samples are its own, one, or two
    while one takes the place of the other."""

    client: ClientName
    calendar: Calendar
    ledger: Ledger
    period: FrozenPeriod | None
    going_on: Digest | None = None
    hot: HotLedger = HotLedger()
    exposed: Annotated[tuple[Digest, ...], Meta(max_length=2)] = ()

    @property
    def epsilon_period(self) -> float:
        """Epsilon per index given away in the current period."""
        return 0.0 if self.period is None else self.ledger.epsilon(self.period.p1, self.period.p2)

    @property
    def epsilon_total(self) -> float:
        """Epsilon per index given away over all periods."""
        return self.ledger.epsilon_before + self.epsilon_period


FORMAT = RecordFormat(
    StateRecord,
    MAGIC,
    largest=1 << 24,
    what="a client state",
    lost="Do not restore an old copy, which has lost count. Move it away, then:  sfsl privacy renew DIR",
)


def read_state(path: str | os.PathLike[str]) -> StateRecord:
    """Return what a state file holds, to look at. Needs no lock: files are replaced whole."""
    with system_errors_as(StateError, f"read {path}"), open(path, "rb") as file:
        return FORMAT.decode(file.read(FORMAT.largest + 1), str(path))


class ClientState(Closing):
    """One client's period, key and ledger, on disk and locked. Not for use by two threads at once."""

    def __init__(self, file: DurableFile, record: StateRecord, budget: Budget) -> None:
        self._file = file
        self._record = record
        self._budget = budget
        self._privacy: IndexPrivacy | None = None
        self._perturber: Perturber | None = None
        self._entering: FrozenPeriod | None = None  # begun, and nothing of it has left yet
        self._submitted: dict[str, Indices] = {}
        self._round: bytes | None = None
        self._exposed_known = False

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        client: str,
        calendar: Calendar,
        budget: Budget,
        lost: tuple[date, Randomness] | None = None,
    ) -> "ClientState":
        """Start the memory of a client that has never taken part, or whose old state is lost for good: then
        ``lost`` is today and a source of chance, and it sits out the period of today, since the new state
        cannot repeat the old one's permanent answers."""
        if not 1 <= len(client) <= 128:
            raise InputError("a client's name has 1 to 128 characters")
        file = DurableFile(path)
        with closed_on_error(file):
            if file.exists():
                raise StateError(f"{file.path} exists; open it, a second key would undo the first")
            record = StateRecord(client=client, calendar=calendar, ledger=Ledger(), period=None)
            if lost is not None:
                (today, randomness), nobodys = lost, bytes(32)
                key, number = randomness.bytes(KEY_BYTES), calendar.period(today)
                barred = FrozenPeriod(number, key, 0.0, 0.0, nobodys, nobodys, barred=True)
                record = msgspec.structs.replace(record, period=barred)
            file.replace(FORMAT.encode(record))
        return cls(file, record, budget)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, client: str, budget: Budget) -> "ClientState":
        """Take up the memory of a client, or raise if it is not there, not whole or not this client's."""
        file = DurableFile(path)
        with closed_on_error(file):
            if not file.exists():
                raise StateError(
                    f"there is no state at {file.path}. Create one if this client never took part; if it "
                    "did, only from the next period on, since its permanent answers of this one are lost"
                )
            record = FORMAT.decode(file.read(FORMAT.largest), str(file.path))
            if record.client != client:
                raise StateError(f"{file.path} is the state of client {record.client!r}, not of {client!r}")
        return cls(file, record, budget)

    @property
    def ledger(self) -> Ledger:
        return self._record.ledger

    @property
    def calendar(self) -> Calendar:
        return self._record.calendar

    @property
    def period(self) -> int | None:
        """The number of the period of the last exposure; None before the first."""
        return None if self._record.period is None else self._record.period.number

    @property
    def next_period(self) -> date | None:
        """The first day of the period after the one that was begun; None where none was."""
        period = self._entering or self._record.period
        return None if period is None else self._next_period(period)

    def going_on(self, today: date) -> bool:
        """Whether the period that the state is in lasts today. A clock that was set back ends none: what a
        period froze is not frozen anew because of it."""
        return self.period is not None and self.calendar.period(today) <= self.period

    @property
    def epsilon_period(self) -> float:
        """Epsilon per index given away in the current period."""
        return self._record.epsilon_period

    @property
    def epsilon_total(self) -> float:
        """Epsilon per index given away over all periods."""
        return self._record.epsilon_total

    @property
    def rho(self) -> float:
        """What hot rounds have cost so far."""
        return self._record.hot.rho

    @property
    def hot_rounds(self) -> int:
        """The number of hot rounds that were paid for."""
        return self._record.hot.rounds

    @property
    def exposed(self) -> tuple[bytes, ...]:
        """Digests of the lists of exposed samples that may lie beside this state; none where it knows of
        none."""
        return self._record.exposed

    @property
    def exposed_known(self) -> bool:
        """Whether somebody looked, since this state was opened, which samples were exposed."""
        return self._exposed_known

    def expect_exposed(self, *digests: bytes) -> None:
        """Note durably which lists of exposed samples may lie beside this state from now on."""
        self._exposed_known = True
        if digests != self._record.exposed:
            self._replace(exposed=digests)

    def epsilon_hot(self, delta: float) -> float:
        """Epsilon of all hot rounds together, at ``delta``."""
        return epsilon_of(self.rho, delta)

    def begin(
        self,
        today: date,
        privacy: IndexPrivacy,
        tables: Tables,
        real: Mapping[str, ArrayLike],
        *,
        acknowledged: int | None,
        randomness: Randomness,
        decoys: Decoys | None = None,
    ) -> None:
        """Begin the period of ``today``, or go on in it with the data that it froze. It is entered, durably,
        at its first exposure: a client that only looked with a wrong clock has not missed anything. On a day
        before the period of its last exposure it goes on in that one: a clock that was set back is no new
        budget. ``acknowledged`` is the number of this client's rounds that the server remembers, None where
        the server keeps no such count. More than we remember means that this state is an old copy."""
        self._perturber = self._entering = None
        self._round = None
        _require_count(acknowledged)
        current = self._record.period
        number = self._record.calendar.period(today)
        if current is not None:
            number = max(number, current.number)
        going_on = current if current is not None and number == current.number else None
        key = randomness.bytes(KEY_BYTES) if going_on is None else going_on.key
        # Whatever is wrong with the input shows here, before it is frozen for a whole period.
        perturber = Perturber(Secret(key), privacy, tables, real)
        submitted = perturber.union_input(decoys)
        wanted = freeze(number, key, privacy, tables, real, decoys)
        self._entering = wanted if going_on is None else None
        if acknowledged is not None and acknowledged > self.ledger.begun:
            self._replace(**self._entered())
            self._entering = None
            self._own_up(going_on or wanted, acknowledged, privacy)
        if going_on is not None and not going_on.barred:
            self._check_unchanged(going_on, wanted)
        self._perturber, self._privacy, self._submitted = perturber, privacy, submitted

    def _entered(self) -> dict[str, object]:
        """Return what changes with the first exposure in a period: the old one is closed. A round belongs to
        the period in which it was exposed: none goes on from here."""
        if self._entering is None:
            return {}
        return {"ledger": self._ledger_now, "period": self._entering, "going_on": None}

    @property
    def _ledger_now(self) -> Ledger:
        """The ledger as it is in the period that was begun."""
        old = self._record.period
        if self._entering is None or old is None:
            return self.ledger
        return self.ledger.after_period(old.number, old.p1, old.p2)

    def _check_unchanged(self, frozen: FrozenPeriod, wanted: FrozenPeriod) -> None:
        until = self._next_period(frozen)
        if (wanted.p1, wanted.p2) != (frozen.p1, frozen.p2):
            raise PeriodFrozen(
                f"p1 = {wanted.p1:g}, p2 = {wanted.p2:g}, but this period's permanent answers were drawn "
                f"with p1 = {frozen.p1:g}, p2 = {frozen.p2:g}; new ones take effect on {until}"
            )
        if wanted.snapshot != frozen.snapshot:
            raise PeriodFrozen(
                "the real set differs from the one this period froze; go on with the frozen one, new data "
                f"waits until {until}. An answer that changed with the data would betray the change"
            )
        if wanted.decoys != frozen.decoys:
            raise PeriodFrozen(f"decoys differ from those this period froze; new ones take effect on {until}")

    def _next_period(self, period: FrozenPeriod) -> date:
        return self._record.calendar.first_day(period.number + 1)

    def _own_up(self, current: FrozenPeriod, acknowledged: int, privacy: IndexPrivacy) -> None:
        known = self.ledger.begun
        self._charge_lost(acknowledged, privacy.epsilon_infinity, current)
        raise RolledBack(
            f"the server remembers {acknowledged} rounds of this client, its state only {known}: it is an "
            "old copy. The missing rounds are charged in full, and the client sits out until "
            f"{self._next_period(current)}"
        )

    def _charge_lost(self, acknowledged: int, epsilon: float, current: FrozenPeriod | None) -> None:
        """Nobody knows of which kind the missing rounds were: each is charged as both."""
        self._replace(
            ledger=self.ledger.after_loss(acknowledged, epsilon),
            period=None if current is None else msgspec.structs.replace(current, barred=True),
            going_on=None,
            hot=self._record.hot.after_loss(acknowledged - self.ledger.begun, self._budget),
        )

    def catch_up(self, acknowledged: int | None) -> int:
        """Own up to rounds that the server remembers and this state does not, before a hot round; return
        how many. Each is charged with the most that the owner allows for one. Noise has no permanent answers
        that could be drawn twice, so hot rounds go on while the budget lasts; others wait for a new
        period."""
        _require_count(acknowledged)
        missing = (acknowledged or 0) - self.ledger.begun
        if missing <= 0:
            return 0
        self._replace(**self._entered())  # a period that was begun is barred
        self._perturber = self._entering = None
        self._round = None
        self._charge_lost(self.ledger.begun + missing, self._budget.epsilon_per_period, self._record.period)
        return missing

    def require_spend(self, rho: float) -> None:
        """Raise unless ``spend`` would allow one more hot round at this cost. Nothing is debited."""
        self._record.hot.check(self._budget, rho)

    def spend(self, round_id: bytes, rho: float) -> None:
        """Debit a hot round, durably; only then may its masked vector leave."""
        name = digest("round spent", round_id)
        if name == self._record.hot.last:
            raise Refused(
                "this client has paid for this round already: a vector is sent once. After a restart it is a "
                "dropout and waits for the next round"
            )
        self._record.hot.check(self._budget, rho)
        self._replace(ledger=self.ledger.after_hot_round(), hot=self._record.hot.after_round(name, rho))

    def require_round(self) -> None:
        """Raise unless ``expose`` would allow one more round now. Nothing is debited."""
        _, privacy = self._begun()
        self._ledger_now.check_round(self._budget, privacy)

    def expose(self, round_id: bytes) -> dict[str, Indices]:
        """Enter the period, if that was not done, and debit one exposure, durably and in one; only then
        return what this client submits to the union."""
        _, privacy = self._begun()
        if round_id == self._round:
            raise Refused("this client has already entered this round: a set is submitted once")
        ledger = self._ledger_now
        ledger.check_round(self._budget, privacy)
        self._round = None
        self._replace(**self._entered() | {"ledger": ledger.after_exposure()})
        self._entering = None
        self._round = round_id
        return {name: rows.copy() for name, rows in self._submitted.items()}

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> dict[str, Bits]:
        """Debit one answer, durably, and only then return it: a bitmap over each shared table's union."""
        perturber, privacy = self._begun()
        if round_id != self._round:
            raise Refused(
                "this client has not entered this round, or has answered it already; after a restart it is a "
                "dropout and waits for the next round"
            )
        checked = perturber.check_unions(unions)
        self.ledger.check_answer(self._budget, privacy)
        self._round = None
        self._replace(ledger=self.ledger.after_answer(privacy))
        return perturber.answer(checked, randomness)

    def keep(self, snapshot: bytes | None) -> None:
        """Note durably that a round goes on from this and from nothing else; None: from nothing. Before the
        answer leaves that belongs to it, so that no message is ever answered a second time."""
        self._replace(going_on=None if snapshot is None else digest("round kept", snapshot))

    def go_on(self, snapshot: bytes, exposed: bytes | None) -> None:
        """Go on with a round; with one of exact sums after ``begin``. ``exposed``: its id, if its set was
        submitted and its union is not answered yet. Raises ``RolledBack`` where it has gone on since, or is
        not this period's."""
        if exposed is not None:
            self._begun()
        ended = exposed is not None and self._entering is not None
        if ended or self._record.going_on != digest("round kept", snapshot):
            raise RolledBack(
                "this is not the last that this client kept of a round: it has answered since, or its period "
                "has ended. It is out of the round"
            )
        self._round = exposed

    def _begun(self) -> tuple[Perturber, IndexPrivacy]:
        period = self._entering or self._record.period
        if period is not None and period.barred:
            raise Declined(
                f"this client's state was rolled back or lost; it sits out until {self._next_period(period)}"
            )
        if self._perturber is None or self._privacy is None:
            raise StateError("no period has begun: call begin() first, and again after it failed")
        return self._perturber, self._privacy

    def _replace(self, **changes: object) -> None:
        record = msgspec.structs.replace(self._record, **changes)
        self._file.replace(FORMAT.encode(record))
        self._record = record

    def close(self) -> None:
        self._file.close()
        self._perturber = None

    def __repr__(self) -> str:
        return f"ClientState({self._record.client!r}, period={self.period}, redacted)"


def _require_count(acknowledged: int | None) -> None:
    if acknowledged is not None and not 0 <= acknowledged < 2**63:
        raise InputError(f"a server cannot remember {acknowledged} rounds of one client")
