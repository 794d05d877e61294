"""Rounds of one model against one store, for any carrier: plan, admit, begin, exchange, commit. No I/O."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal

from sfsl.codec import Message
from sfsl.crypto.ring import ring_named
from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.crypto.shamir import SHARE_BYTES
from sfsl.errors import ConflictingMessage, UnexpectedSender, WrongPhase, WrongRound
from sfsl.rounds import RoundOutcome, RoundParams, RoundServer, ScoreBins
from sfsl.rounds.exchanges import EXPOSES, MAY_DECLINE, STEP, Exchange, order
from sfsl.rounds.messages import Submodel
from sfsl.rounds.plan import RoundRules, plan_round, plan_session
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.secagg import SessionParams
from sfsl.secagg.messages import (
    InboundShares,
    Keys,
    Survivors,
    UnmaskRequest,
)
from sfsl.service.folder import Journal
from sfsl.service.messages import CODEC, CheckIn, Decline
from sfsl.service.registry import Registry
from sfsl.submodel import Commit, ModelSpec, RowMaps, RowStore
from sfsl.union.protocol import Union

_HEAD = 512  # tags, names, ids and lengths of any answer
_PER_PEER = 16  # lengths of its parts


Exposed = Callable[[bytes, Collection[str]], None]


class CohortRound:
    """Drives one ``RoundServer``, in one thread. ``exchange`` is that whose answers are awaited, empty after
    the last.

    ``answered`` are the clients that have answered it; ``declined`` said at the invitation that they take no
    part. Refused frames change nothing. ``exposed`` is told whose masked sets are here before anything of
    them can be opened. ``cpu`` counts the seconds that the calling thread has computed.
    """

    def __init__(
        self,
        server: RoundServer,
        session: SessionParams,
        params: RoundParams,
        tally: RoundTally,
        *,
        cpu: Callable[[], float],
        exposed: Exposed = lambda round_id, clients: None,
    ) -> None:
        self.server = server
        self.params = params
        self.round_id = session.round_id
        self.tally = tally
        self.answered: set[str] = set()
        self.declined: set[str] = set()
        self.order = order(session.active)
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
        """Who has answered the last exchange."""
        return frozenset(self._last)

    @property
    def expected(self) -> frozenset[str]:
        """Who was sent the present exchange's message."""
        return frozenset(self._limits)

    def begin(self) -> dict[str, bytes]:
        """Return the invitations."""
        start = self._cpu()
        try:
            return self._sent(self.server.invitations())
        finally:
            self._charge(self.exchange, start)

    def limit(self, client: str) -> int:
        """No answer of this client to the present exchange has more bytes; 0 if none is due."""
        return self._limits.get(client, 0)

    def receive(self, exchange: str, client: str, data: bytes) -> None:
        """Take an answer to ``exchange``, or raise and leave everything as it was."""
        start = self._cpu()
        try:
            if exchange != self.exchange:
                self.tally.late += (exchange, client) not in self._late
                raise WrongPhase(f"{exchange!r} was closed")
            message = CODEC.decode(data, limit=self.limit(client))
            if isinstance(message, Decline) and exchange == MAY_DECLINE:
                self._decline(client, message)
                self.tally.up(exchange, len(data))
                return
            step = STEP[Exchange(exchange)]
            # Of an earlier exchange the round would take it for a repetition, and say nothing.
            if not isinstance(message, step.answer) or getattr(message, "sum", step.sum) != step.sum:
                raise WrongPhase(f"{type(message).__name__} does not answer {exchange!r}")
            if client in self.declined:
                raise ConflictingMessage(f"client {client} declined this round")
            self.server.receive(client, message)
            self.answered.add(client)
            self.tally.up(exchange, len(data))
        finally:
            self._charge(exchange, start)

    def close(self) -> dict[str, bytes]:
        """End the exchange; the frames of the next one, none after the last. Raises ``Aborted``."""
        exchange, start = self.exchange, self._cpu()
        if exchange == EXPOSES:
            self.expose()
        self.tally.answered[exchange] = len(self.answered)
        if silent := len(self._limits.keys() - self.answered - self._left):
            self.tally.drop(exchange, silent)
        try:
            if exchange == self.order[-1]:
                self._last = self.answered
            outbound = self.server.close_phase()
            self._step += 1
            self.answered, self._left = set(), set()
            return self._sent(outbound)
        finally:
            self._charge(exchange, start)

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
        if self.exchange == EXPOSES and self.answered:
            self._exposed(self.round_id, self.answered)

    def _decline(self, client: str, message: Decline) -> None:
        """To the round it is a client that does not answer, for whom nobody has to wait."""
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
        """Each message encoded once, also where it goes to many; and how large its answer may be."""
        encoded: dict[int, bytes] = {}
        for message in outbound.values():
            if id(message) not in encoded:
                encoded[id(message)] = CODEC.encode(message)
        self._limits = {name: _HEAD + self._answer_bytes(message) for name, message in outbound.items()}
        return {name: encoded[id(message)] for name, message in outbound.items()}

    def _answer_bytes(self, message: Message) -> int:
        """Of what answers it, beyond its head."""
        union, update = (ring_named(one.ring).word_bytes for one in self._session.sums)
        match message:
            case InboundShares():
                return union * self._session.first_layout.dense
            case Survivors():
                return 0
            case UnmaskRequest():
                return (len(message.survivors) + len(message.dropped)) * (SHARE_BYTES + _PER_PEER)
            case Union():  # a bitmap for each table; one that is derived has no more rows than its source
                rows = (min(table.rows, message.count) for table in self.params.model.summed)
                return sum((count + 7) // 8 + _PER_PEER for count in rows)
            case Submodel():
                return update * self._update_words(message.rows)
            case _:  # the invitation: a box for each of the others
                box = 2 * SHARE_BYTES * len(self._session.sums) + 16
                return self._session.clients * (box + _PER_PEER)

    def _update_words(self, rows: Sequence[bytes]) -> int:
        """The dense part, and each row that was asked for."""
        size = 4 if self.params.precision == "float32" else 2
        words = self.params.model.dense_words + 2 * self.params.bins
        for table, data in zip(self.params.model.summed, rows, strict=True):
            words += len(data) // (size * table.width) * table.words
        return words

    def _charge(self, exchange: str, start: float) -> None:
        seconds = self.tally.server_seconds
        seconds[exchange] = seconds.get(exchange, 0.0) + self._cpu() - start


class Driver:
    """Runs rounds as ``rules`` say. ``record`` is given the record of each round once it is committed.

    In a deployment the ``registry`` knows who was invited and whose masked sets came. ``cpu`` counts the
    seconds that the calling thread has computed. Keys, round ids and seeds come from ``randomness``.
    """

    def __init__(
        self,
        rules: RoundRules,
        model: ModelSpec,
        maps: RowMaps,
        store: RowStore,
        *,
        cpu: Callable[[], float],
        largest_set: int = 1,
        registry: Registry | None = None,
        record: Callable[[RoundRecord], None] = lambda record: None,
        randomness: Randomness | None = None,
    ) -> None:
        self.rules, self.model, self.maps, self.store = rules, model, maps, store
        self.randomness = randomness or SystemRandomness()
        self.cpu, self._largest_set, self._registry, self._record = cpu, largest_set, registry, record

    @cached_property
    def journal(self) -> Journal:
        """What is committed with each round of a deployment; a simulation's run keeps its own."""
        return Journal(self.store)

    @property
    def number(self) -> int:
        """The number of the next round."""
        return self.store.round + 1

    def plan(
        self,
        clients: int,
        *,
        largest_set: int | None = None,
        seed: bytes | None = None,
        scores: ScoreBins | None = None,
    ) -> RoundParams:
        """Plan the next round. A server does not know its clients' sets: it plans for the largest allowed."""
        return plan_round(
            self.rules,
            self.model,
            number=self.number,
            clients=clients,
            largest_set=self._largest_set if largest_set is None else largest_set,
            seed=self.randomness.bytes(32) if seed is None else seed,
            scores=scores,
        )

    def open(
        self,
        params: RoundParams,
        keys: Sequence[Keys],
        tally: RoundTally,
        *,
        identities: Mapping[str, bytes] | None = None,
        threshold: int | None = None,
        alone: bool = True,
        exposed: Exposed = lambda round_id, clients: None,
    ) -> CohortRound:
        """Open a round for the cohort with these keys. Not ``alone``, it is one of several cohorts."""
        session = plan_session(
            self.rules,
            params,
            clients=len(keys),
            round_id=self.randomness.bytes(16),
            threshold=threshold,
        )
        server = RoundServer(session, params, keys, self.store, self.maps, identities, alone=alone)
        return CohortRound(server, session, params, tally, cpu=self.cpu, exposed=exposed)

    def begin(
        self,
        check_ins: Mapping[str, CheckIn],
        identities: Mapping[str, bytes] | None,
        tally: RoundTally,
        *,
        period: int | None,
    ) -> CohortRound:
        """Begin a deployment's round, and note durably who is invited, before any invitation leaves."""
        registry, tally.cohort = self._registry, len(check_ins)
        cohort = self.open(
            self.plan(len(check_ins), scores=self.journal.kept.scores),
            [one.keys for one in check_ins.values()],
            tally,
            identities=identities,
            exposed=registry.acknowledge if registry is not None else lambda round_id, clients: None,
        )
        if registry is not None and period is not None:
            registry.invite(period, cohort.round_id, check_ins)
        return cohort

    def finish(
        self, cohort: CohortRound | None, tally: RoundTally, *, aborted: str | None, seconds: float
    ) -> RoundRecord:
        """Commit a deployment's round, which took so long; one that was aborted only counts.

        A round is never repeated. What only clients know (losses, rows unknown to the model, seconds of
        theirs) is not in its record.
        """
        number, outcome, scores = self.number, None, None
        if cohort is not None and aborted is None:
            outcome = cohort.server.outcome
            scores = next_bins(cohort.params, outcome)
            tally.samples, tally.loss = outcome.applied.samples, math.nan
        elif cohort is not None:
            cohort.expose()  # cut short, but the masked sets that came are here
        record = tally.record(number, outcome, aborted=aborted, seconds=seconds)
        self.journal.commit(outcome.applied.commit if outcome else Commit(number), record, scores)
        self._record(record)
        return record


def next_bins(params: RoundParams, outcome: RoundOutcome | None) -> ScoreBins | None:
    """Return the bins of the next round's scores, where this one's say anything about them."""
    if outcome is None or outcome.scores is None or params.scores is None:
        return None
    return params.scores.after(*outcome.scores)
