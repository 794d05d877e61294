"""Rounds of one model against one store, for any carrier: plan, admit, begin, exchange, commit. No I/O.

A carrier brings bytes. In a deployment it does so like this::

    cohort = service.invite(check_ins, identities, tally, period)    # who is invited is noted durably
    frames = cohort.begin()
    while cohort.exchange:
        ... send frames; for each answer: cohort.receive(exchange, client, data) ...
        frames = cohort.close()                                      # masked sets: acknowledged durably first
    record = service.finish(cohort, tally, aborted=None, seconds=...)    # one commit, and the round's record

A simulation opens several cohorts of one round (``Driver.open``) and adds up what they open.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, Self

import msgspec

from sfsl.codec import Message
from sfsl.crypto.ring import ring_named
from sfsl.crypto.secret import SHARE_BYTES, Randomness, SystemRandomness
from sfsl.errors import (
    ConflictingMessage,
    KeyMismatch,
    SfslError,
    StoreCorrupt,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.privacy import PeriodSelection, choose_uniformly, epsilon_of
from sfsl.rounds import RoundOutcome, RoundParams, RoundServer, ScoreBins
from sfsl.rounds.commitment import model_context
from sfsl.rounds.exchanges import MAY_DECLINE, Exchange, Step, Submodel, course_of
from sfsl.rounds.hot import HotParams, HotState
from sfsl.rounds.hot_server import HotRound, HotServer, plan_hot
from sfsl.rounds.params import RoundRules, plan_round, plan_session
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.secagg import SessionParams
from sfsl.secagg.messages import InboundShares, Keys, Survivors, UnmaskRequest
from sfsl.service.members import FIRST_REST_SECONDS, Members, ServiceSettings
from sfsl.service.messages import CODEC, CheckIn, Decline
from sfsl.service.registry import Registry
from sfsl.submodel import Commit, ModelSpec, RowMaps, RowStore
from sfsl.union.protocol import Union

log = logging.getLogger(__name__)

_HEAD = 512  # tags, names, ids and lengths of any answer
_PER_PEER = 16  # lengths of its parts

Exposed = Callable[[bytes, Collection[str]], None]


def untold(round_id: bytes, clients: Collection[str]) -> None:
    """Tell nobody: a simulation has no registry. It has a name, so that a round can be pickled."""


class CohortRound:
    """Drives one ``RoundServer`` or ``HotServer``, in one thread. ``exchange`` is the one that is awaited,
    empty after the last; ``course`` has all of them.

    ``answered`` are the clients that have answered it; ``declined`` said at the invitation that they take no
    part. Refused frames change nothing. ``exposed`` is told whose masked sets are here before anything of
    them can be opened. ``published`` is what its clients download besides, by digest. ``cpu`` counts the
    seconds that the calling thread has computed.
    """

    def __init__(
        self,
        server: RoundServer | HotServer,
        session: SessionParams,
        params: RoundParams | HotParams,
        tally: RoundTally,
        *,
        cpu: Callable[[], float],
        exposed: Exposed = untold,
        published: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.server, self.params, self.tally = server, params, tally
        self.published = published or {}
        self.course, self.round_id = course_of(params), session.round_id
        self.order = self.course.order(session.active)
        self.answered: set[str] = set()
        self.declined: set[str] = set()
        self._session, self._cpu, self._exposed = session, cpu, exposed
        self._step = 0
        self._last: set[str] = set()
        self._left: set[str] = set()
        self._late: set[tuple[str, str]] = set()
        self._limits: dict[str, int] = {}

    @property
    def exchange(self) -> Exchange | Literal[""]:
        return self.order[self._step] if self._step < len(self.order) else ""

    @property
    def finished(self) -> frozenset[str]:
        """Those who have answered the last exchange."""
        return frozenset(self._last)

    @property
    def expected(self) -> frozenset[str]:
        """Those who were sent the present exchange's message."""
        return frozenset(self._limits)

    def begin(self) -> dict[str, bytes]:
        """Return the invitations."""
        with self._charged(self.exchange):
            return self._sent(self.server.invitations())

    def limit(self, client: str) -> int:
        """Return how many bytes this client's answer may have in the present exchange; 0 if none is due."""
        return self._limits.get(client, 0)

    def receive(self, exchange: str, client: str, data: bytes) -> None:
        """Take an answer to ``exchange``, or raise and leave everything as it was."""
        with self._charged(exchange):
            if exchange != self.exchange:
                self.tally.late += (exchange, client) not in self._late
                raise WrongPhase(f"{exchange!r} was closed")
            message = CODEC.decode(data, limit=self.limit(client))
            if isinstance(message, Decline) and exchange == MAY_DECLINE:
                self._decline(client, message)
            else:
                self._accept(self.course.step(Exchange(exchange)), client, message)
            self.tally.up(exchange, len(data))

    def _accept(self, step: Step, client: str, message: Message) -> None:
        # The round would take an answer to an earlier exchange for a repetition, and say nothing.
        if not isinstance(message, step.answer) or getattr(message, "sum", step.sum) != step.sum:
            raise WrongPhase(f"{type(message).__name__} does not answer {self.exchange!r}")
        if client in self.declined:
            raise ConflictingMessage(f"client {client} declined this round")
        self.server.receive(client, message)
        self.answered.add(client)

    def close(self) -> dict[str, bytes]:
        """End the exchange and return the frames of the next one, none after the last. Raise ``Aborted``."""
        exchange = self.exchange
        with self._charged(exchange):
            self.expose()
            self.tally.answered[exchange] = len(self.answered)
            if silent := len(self._limits.keys() - self.answered - self._left):
                self.tally.drop(exchange, silent)
            if exchange == self.order[-1]:
                self._last = self.answered
            outbound = self.server.close_phase()
            self._step += 1
            self.answered, self._left = set(), set()
            return self._sent(outbound)

    def leave(self, client: str, reason: Exception | str = "") -> None:
        """Expect no answer of this client in time. With a ``reason`` it declines, without one it is late."""
        self._left.add(client)
        if reason:
            self.tally.decline(reason)
        else:
            self.tally.late += 1
            self._late.add((self.exchange, client))

    def expose(self) -> None:
        """Tell whose masked sets are here, if they are what is awaited; telling it again changes nothing."""
        if self.exchange == self.course.exposes and self.answered:
            self._exposed(self.round_id, self.answered)

    def _decline(self, client: str, message: Decline) -> None:
        """Note a client that does not answer, as the round sees it, and for whom nobody has to wait."""
        if message.round_id != self.round_id:
            raise WrongRound(f"client {client} declines another round")
        if client not in self._limits:
            raise UnexpectedSender(f"client {client} was not invited")
        if client in self.answered:
            raise ConflictingMessage(f"client {client} has answered the invitation already")
        if client not in self.declined:
            self.declined.add(client)
            self.leave(client, Decline.__name__)

    def _sent(self, outbound: Mapping[str, Message]) -> dict[str, bytes]:
        """Encode each message once, also where it goes to many; note how large its answer may be."""
        distinct = {id(message): message for message in outbound.values()}
        encoded = {key: CODEC.encode(message) for key, message in distinct.items()}
        self._limits = {name: _HEAD + self._answer_bytes(message) for name, message in outbound.items()}
        return {name: encoded[id(message)] for name, message in outbound.items()}

    def _answer_bytes(self, message: Message) -> int:
        """Return how many bytes its answer may have beyond the head."""
        first, *others = (ring_named(one.ring).word_bytes for one in self._session.sums)
        match message:
            case InboundShares():
                return first * self._session.first_layout.dense
            case Survivors():
                return 0
            case UnmaskRequest():
                return (len(message.survivors) + len(message.dropped)) * (SHARE_BYTES + _PER_PEER)
            case Union():  # a bitmap for each table; one that is derived has no more rows than its source
                rows = (min(table.rows, message.count) for table in self.params.model.summed)
                return sum((count + 7) // 8 + _PER_PEER for count in rows)
            case Submodel():
                return others[0] * self._update_words(message.rows)
            case _:  # the invitation: a box for each of the others
                box = 2 * SHARE_BYTES * len(self._session.sums) + 16
                return self._session.clients * (box + _PER_PEER)

    def _update_words(self, rows: Sequence[bytes]) -> int:
        """Return the words of an update: the dense part, and each row that was asked for."""
        assert isinstance(self.params, RoundParams)  # noqa: S101 -- no other round has submodels
        size = 4 if self.params.precision == "float32" else 2
        words = self.params.model.dense_words + 2 * self.params.bins
        for table, data in zip(self.params.model.summed, rows, strict=True):
            words += len(data) // (size * table.width) * table.words
        return words

    @contextmanager
    def _charged(self, exchange: str) -> Iterator[None]:
        start, seconds = self._cpu(), self.tally.server_seconds
        try:
            yield
        finally:
            seconds[exchange] = seconds.get(exchange, 0.0) + self._cpu() - start


Plan = RoundParams | HotRound


@dataclass(eq=False)
class Driver:
    """Plans and opens rounds as ``rules`` say; ``cpu`` counts the seconds that the calling thread computed.
    Keys, round ids and seeds come from the operating system. ``names`` is the digest of what the catalogue
    calls its rows, which clients were told too, empty where there is none; in active mode with the model's
    (``model_context``)."""

    rules: RoundRules
    model: ModelSpec
    maps: RowMaps
    store: RowStore
    _: KW_ONLY
    cpu: Callable[[], float]
    names: bytes = b""
    randomness: Randomness = field(default_factory=SystemRandomness)

    @property
    def number(self) -> int:
        """The number of the next round."""
        return self.store.round + 1

    def plan(
        self,
        clients: int,
        largest_set: int,
        *,
        seed: bytes | None = None,
        scores: ScoreBins | None = None,
        hot: HotState | None = None,
    ) -> Plan:
        """Plan the next round. ``scores`` and ``hot`` are what the last one left."""
        if self.rules.hot is not None:
            left = HotState() if hot is None else hot
            return plan_hot(self.rules, self.model, self.store, clients=clients, state=left, scores=scores)
        return plan_round(
            self.rules,
            self.model,
            number=self.number,
            clients=clients,
            largest_set=largest_set,
            seed=self.randomness.bytes(32) if seed is None else seed,
            scores=scores,
        )

    def open(
        self,
        plan: Plan,
        keys: Sequence[Keys],
        tally: RoundTally,
        *,
        identities: Mapping[str, bytes] | None = None,
        threshold: int | None = None,
        alone: bool = True,
        exposed: Exposed = untold,
    ) -> CohortRound:
        """Open a round for the cohort with these keys. Not ``alone``, it is one of several cohorts."""
        round_id = self.randomness.bytes(16)
        params = plan.params if isinstance(plan, HotRound) else plan
        session = plan_session(self.rules, params, clients=len(keys), round_id=round_id, threshold=threshold)
        given = (keys, self.store, self.maps, identities)
        server: RoundServer | HotServer
        published = {}
        if isinstance(plan, HotRound):
            server = HotServer(session, plan, *given, alone=alone, names=self.names)
            published = plan.contents()
        else:
            server = RoundServer(session, plan, *given, alone=alone, names=self.names)
        return CohortRound(server, session, params, tally, cpu=self.cpu, exposed=exposed, published=published)


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds what survives a crash between two rounds.

    ``line`` is the last round's record, which a crash right after the commit so cannot lose. ``scores`` are
    the bins of the next round's scores, which follow from the last one's; None before there were any. ``hot``
    is what rounds over hot rows know by now. A simulation also counts the ``rounds`` each client was invited
    to, what it has ``spent`` in rounds over hot rows (rho), and keeps who had a turn in its ``period``.
    """

    rounds: dict[str, int] = {}
    line: bytes = b""
    scores: ScoreBins | None = None
    period: PeriodSelection = PeriodSelection()
    hot: HotState = HotState()
    spent: dict[str, float] = {}

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            return msgspec.msgpack.decode(data, type=cls) if data else cls()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreCorrupt(
                f"what the store keeps between rounds (its selection state) cannot be read: {error}"
            ) from None

    def record(self) -> RoundRecord | None:
        """Return the last round's record, if there is one."""
        try:
            return msgspec.json.decode(self.line, type=RoundRecord) if self.line else None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreCorrupt(f"the store's record of the last round cannot be read: {error}") from None


class Journal:
    """Commits rounds to a store: rows, what the next round needs and the record, in one transaction."""

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self.kept = Kept.decode(store.selection)

    def commit(
        self, commit: Commit, record: RoundRecord, scores: ScoreBins | None, **changes: object
    ) -> None:
        """Write the round. ``scores`` None leaves the bins as they are; ``changes`` go into ``Kept``."""
        kept = msgspec.structs.replace(
            self.kept, line=record.encode(), scores=scores or self.kept.scores, **changes
        )
        self.store.commit(replace(commit, selection=msgspec.msgpack.encode(kept)))
        self.kept = kept


@dataclass(frozen=True)
class Told:
    """What anyone may know of the next round: the scheme and, where it is "hot", which kind of round is due,
    what it costs a client in epsilon at ``delta``, and how many rows are hot."""

    scheme: str
    kind: str = ""
    epsilon: float | None = None
    delta: float | None = None
    hot_rows: int = 0

    def __str__(self) -> str:
        if self.scheme != "hot":
            return "submodels"
        what = "a survey" if self.kind == "survey" else f"{self.hot_rows:,} hot rows"
        return f"{what}, epsilon {self.epsilon:.3g} at delta {self.delta:g} for each"


class Service(Driver):
    """Runs the rounds of a deployment: chooses, invites, leaves out, commits and logs, for any carrier.

    The ``registry`` knows who was invited and whose masked sets came, ``members`` who may come now. Clients
    call the model by ``model_digest``. ``record`` is given the record of each round once it is committed.
    ``clock`` counts seconds, ``today`` milliseconds since 1970, from which periods are cut. Whoever ends a
    round for all is left out for ``first_rest`` seconds or more. ``binds_model``: in active mode, masks are
    bound to the model's digest too, which clients have to know.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ModelSpec,
        maps: RowMaps,
        store: RowStore,
        registry: Registry,
        *,
        model_digest: bytes,
        record: Callable[[RoundRecord], None],
        cpu: Callable[[], float],
        clock: Callable[[], float],
        today: Callable[[], int],
        first_rest: float = FIRST_REST_SECONDS,
        names: bytes = b"",
        binds_model: bool = False,
    ) -> None:
        self.binds_model = binds_model and settings.rules.active
        if self.binds_model:
            names = model_context(model_digest, names)
        super().__init__(settings.rules, model, maps, store, cpu=cpu, names=names)
        self.settings, self.registry, self.model_digest = settings, registry, model_digest
        self.clock, self.today, self._record = clock, today, record
        self.members = Members(settings, registry, clock=clock, today=today, first_rest=first_rest)
        self._journal = Journal(store)
        # What is wrong with the settings shows now, not when the first cohort is there.
        for clients in {settings.min_cohort, settings.cohort}:
            plan_session(self.rules, self._planned(clients), clients=clients, round_id=bytes(16))

    def next_plan(self, clients: int) -> Plan:
        """Plan the next round for so many clients."""
        kept = self._journal.kept
        return self.plan(clients, self.settings.largest_set, scores=kept.scores, hot=kept.hot)

    def _planned(self, clients: int) -> RoundParams | HotParams:
        plan = self.next_plan(clients)
        return plan.params if isinstance(plan, HotRound) else plan

    @property
    def rho(self) -> float | None:
        """What the next round costs a client; None where it is not over hot rows."""
        rules = self.rules.hot
        if rules is None:
            return None
        return rules.survey_rho if self._journal.kept.hot.surveys < rules.surveys else rules.rho

    @property
    def told(self) -> Told:
        """What may be told of the next round."""
        rules, state = self.rules.hot, self._journal.kept.hot
        if rules is None:
            return Told(self.rules.scheme)
        survey, hot = state.surveys < rules.surveys, state.hot_set()
        return Told(
            self.rules.scheme,
            "survey" if survey else "train",
            epsilon_of(rules.survey_rho if survey else rules.rho, rules.delta),
            rules.delta,
            0 if hot is None else sum(map(len, hot.rows.values())) // 8,
        )

    def choose(self, clients: Collection[str], most: int) -> tuple[str, ...]:
        """Choose ``most`` of these clients, or all if they are fewer; each such set is equally likely."""
        return choose_uniformly(clients, min(most, len(clients)), self.randomness)

    def invite(
        self,
        check_ins: Mapping[str, CheckIn],
        identities: Mapping[str, bytes] | None,
        tally: RoundTally,
        period: int | None,
    ) -> CohortRound:
        """Open a round, and note durably who is invited, before any invitation leaves. A server does not know
        its clients' sets: it plans for the largest allowed."""
        tally.cohort = len(check_ins)
        plan = self.next_plan(len(check_ins))
        cohort = self.open(
            plan,
            [one.keys for one in check_ins.values()],
            tally,
            identities=identities,
            exposed=self.registry.acknowledge,
        )
        if period is not None:
            self.registry.invite(period, cohort.round_id, check_ins)
        log.info(
            "round %d (%s): %d clients invited to %s",
            self.number, cohort.round_id.hex(), len(check_ins), self.told,
        )  # fmt: skip
        return cohort

    def blame(self, number: int, error: SfslError) -> int:
        """Leave out whoever ended round ``number`` for all, if it is known; return how many those are."""
        clients = error.clients if isinstance(error, KeyMismatch) else ()
        for client in clients:
            minutes = self.members.leave_out(client) / 60
            how_long = f"for {minutes:.0f} min" if math.isfinite(minutes) else "from here on"
            log.warning(
                "client %s dealt shares that do not fit its keys and ended round %d: left out %s",
                client, number, how_long,
            )  # fmt: skip
        return len(clients)

    def finish(
        self, cohort: CohortRound | None, tally: RoundTally, *, aborted: str | None, seconds: float
    ) -> RoundRecord:
        """Commit a round, which took so long; one that was aborted only counts. A round is never repeated.
        What only clients know (losses, rows unknown to the model, seconds of theirs) is not in its record."""
        number, outcome, scores, changes = self.number, None, None, {}
        if cohort is not None and aborted is None:
            outcome = cohort.server.outcome
            scores = next_bins(cohort.params, outcome)
            tally.samples, tally.loss = outcome.applied.samples, math.nan
            changes = {} if outcome.hot is None else {"hot": outcome.hot}
        elif cohort is not None:
            cohort.expose()  # cut short, but the masked sets that came are here
        record = tally.record(number, outcome, aborted=aborted, seconds=seconds)
        self._journal.commit(outcome.applied.commit if outcome else Commit(number), record, scores, **changes)
        self._record(record)
        _log_end(record, tally)
        if (told := self.told).kind == "train" and not told.hot_rows:
            log.warning(
                "no row is hot: too few clients have any for so much noise; only the dense part learns"
            )
        return record


def _log_end(line: RoundRecord, tally: RoundTally) -> None:
    took = tally.exchange_seconds
    answered = ", ".join(
        f"{exchange} {count}" + (f" in {took[exchange]:.2f} s" if exchange in took else "")
        for exchange, count in tally.answered.items()
    )
    if line.aborted is None:
        log.info(
            "round %d committed: %d of %d clients, %.1f s; answered: %s",
            line.round, line.survivors, line.cohort, line.wall_seconds, answered,
            extra={"figures": line.scalars()},
        )  # fmt: skip
    else:
        log.warning(
            "round %d aborted: %s; answered: %s",
            line.round, line.aborted, answered or "nobody",
            extra={"figures": line.scalars()},
        )  # fmt: skip


def next_bins(params: RoundParams | HotParams, outcome: RoundOutcome | None) -> ScoreBins | None:
    """Return the bins of the next round's scores, where this one's say anything about them."""
    if outcome is None or outcome.scores is None or params.scores is None:
        return None
    return params.scores.after(*outcome.scores)
