"""Rounds one after another with the nodes of a federation. No Flower in it: ``Post`` brings frames and takes
them back.

One thread does one thing at a time. Killed at any point, the store holds round r or r + 1; a round that was
under way is never gone on with, since its nodes are called anew.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from sfsl.carriers.flower.messages import CODEC, Call, Over
from sfsl.carriers.flower.names import node_name, node_token
from sfsl.crypto.randomness import Randomness, SystemRandomness
from sfsl.errors import (
    ConflictingMessage,
    KeyMismatch,
    RemoteError,
    SfslError,
    StoreError,
    TooFewClients,
    WrongPhase,
)
from sfsl.privacy.selection import choose_uniformly
from sfsl.rounds import RoundOutcome, RoundServer
from sfsl.rounds.exchanges import EXPOSES, Exchange
from sfsl.rounds.record import RoundLine
from sfsl.service.admission import require_check_in
from sfsl.service.messages import CheckIn
from sfsl.service.planning import RoundState, committed, line_of, plan_round
from sfsl.service.registry import Registry
from sfsl.service.running import Bill, RunningRound
from sfsl.service.settings import CoordinatorSettings
from sfsl.submodel import ModelSpec, RowMaps, RowStore

log = logging.getLogger(__name__)

_LARGEST_CHECK_IN = 4096
Take = Callable[[int, bytes], None]


class Post(Protocol):
    """Frames to nodes and back. A node that answers with an error, or not in time, has not answered."""

    def nodes(self) -> Iterable[int]:
        """Those that are there now."""

    def exchange(self, frames: Mapping[int, bytes], seconds: float, take: Take) -> None:
        """Send, and give each reply to ``take`` as it comes; until all have replied or time is up."""

    def tell(self, frames: Mapping[int, bytes]) -> None:
        """Send, and wait for nothing."""


class Rounds:
    """``record`` is given the line of each round. ``identities``: in active mode, by name. ``spare`` and
    ``wait_seconds`` as in ``FlowerSettings``."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        model: ModelSpec,
        maps: RowMaps,
        store: RowStore,
        registry: Registry,
        post: Post,
        *,
        model_digest: bytes,
        record: Callable[[RoundLine], None],
        identities: Mapping[str, bytes] | None = None,
        spare: float = 0.25,
        wait_seconds: float = 600.0,
        randomness: Randomness | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings, self._model, self._maps = settings, model, maps
        self._store, self._registry, self._post, self._record = store, registry, post, record
        self._model_digest, self._identities = model_digest, identities
        self._spare, self._wait_seconds = spare, wait_seconds
        self._randomness = randomness or SystemRandomness()
        self._clock, self._sleep, self._now_ms = clock, sleep, now_ms
        self._state = RoundState.decode(store.selection)
        self._left_out: set[str] = set()
        # What is wrong with the settings shows now, not when the first cohort is there.
        for clients in {settings.min_cohort, settings.cohort}:
            plan_round(settings, model, self._state, store.round + 1, clients, self._randomness)

    def run(self) -> None:
        """Until the store has all rounds. Raises ``TooFewClients`` where nodes do not come in time."""
        while self._store.round < self._settings.rounds:
            self._round()

    # -- cohorts -------------------------------------------------------------------------------

    def _form(self, bill: Bill) -> tuple[dict[str, int], dict[str, CheckIn]]:
        """The next cohort: its nodes and their check-ins, by name; each set of that size equally likely."""
        settings, start = self._settings, self._clock()
        give_up, patience = start + self._wait_seconds, start + settings.check_in_seconds
        checked_in = "none was called"
        while True:
            there = self._eligible()
            enough = settings.cohort if self._clock() < patience else settings.min_cohort
            if len(there) >= enough:
                most = math.ceil(settings.cohort * (1 + self._spare))
                called = choose_uniformly(there, min(len(there), most), self._randomness)
                came = self._call({name: there[name] for name in called}, bill)
                if len(came) >= settings.min_cohort:
                    size = min(settings.cohort, len(came))
                    chosen = choose_uniformly(came, size, self._randomness)
                    return {name: there[name] for name in chosen}, {name: came[name] for name in chosen}
                checked_in = f"{len(came)} of {len(called)} checked in, and the others' logs say why not"
                log.warning("%d of %d nodes checked in; too few for a round", len(came), len(called))
            if self._clock() >= give_up:
                raise TooFewClients(
                    f"{len(there)} nodes that may be invited ({checked_in}), {settings.min_cohort} or more "
                    f"are needed in a round; after {self._wait_seconds:.0f} s this run gives up. What is in "
                    "the store stands"
                )
            self._sleep(1.0)

    def _eligible(self) -> dict[str, int]:
        """Nodes that are there and may be invited, by name."""
        period = self._settings.period(self._now_ms())
        invited: Collection[str] = () if period is None else self._registry.invited(period)
        barred = self._left_out.union(invited)
        found = {node_name(node): node for node in self._post.nodes()}
        known = found.keys() if self._identities is None else found.keys() & self._identities.keys()
        return {name: found[name] for name in known if name not in barred}

    def _call(self, called: Mapping[str, int], bill: Bill) -> dict[str, CheckIn]:
        start, registry = self._clock(), self._registry
        frames: dict[int, bytes] = {}
        for name, node in called.items():
            try:
                registry.enrol(node_token(node), self._now_ms())
            except RemoteError:
                continue  # revoked
            call = Call(registry.deployment, self._model_digest, registry.acknowledged(name))
            frames[node] = CODEC.encode(call)
        names = {node: name for name, node in called.items()}
        came: dict[str, CheckIn] = {}
        used: set[bytes] = set()

        def take(node: int, data: bytes) -> None:
            message = CODEC.decode(data, limit=_LARGEST_CHECK_IN)
            if not isinstance(message, CheckIn):
                raise WrongPhase(f"{type(message).__name__} is no check-in")
            keys = require_check_in(names[node], message, self._model_digest, self._identities)
            if names[node] in came or used & keys:
                raise ConflictingMessage(f"client {names[node]} checks in with a key that is there already")
            used.update(keys)
            came[names[node]] = message
            bill.up(Exchange.CHECK_IN, len(data))

        self._exchange(frames, self._settings.check_in_seconds, names, take, Exchange.CHECK_IN, bill)
        bill.heard[Exchange.CHECK_IN] = len(came)
        bill.wall_seconds[Exchange.CHECK_IN] = self._clock() - start
        return came

    # -- one round -----------------------------------------------------------------------------

    def _round(self) -> None:
        number, bill = self._store.round + 1, Bill()
        nodes, check_ins = self._form(bill)
        start, outcome, reason = self._clock(), None, None
        running = self._begin(number, nodes, check_ins, bill)
        try:
            outcome = self._exchanges(running, nodes)
        except StoreError:
            raise
        except SfslError as error:
            reason = str(error)
            if isinstance(error, KeyMismatch):
                # For the rest of this run: it keeps rounds going, and is no verdict.
                self._left_out.update(error.clients)
                log.warning("left out from here on, for shares that do not fit: %s", error.clients)
        line = line_of(number, len(nodes), bill, outcome, reason, self._clock() - start)
        state = self._state.after(self._settings, outcome, line)
        self._store.commit(committed(outcome, number, state))
        self._state = state
        self._record(line)
        if reason is None:
            log.info("round %d committed: %d of %d clients", number, line.survivors, line.cohort)
        else:
            log.warning("round %d aborted: %s", number, reason)
        self._dismiss(running, nodes, check_ins)

    def _begin(
        self, number: int, nodes: Mapping[str, int], check_ins: Mapping[str, CheckIn], bill: Bill
    ) -> RunningRound:
        """Plan, and note durably who is invited, before any invitation leaves."""
        session, params = plan_round(
            self._settings, self._model, self._state, number, len(nodes), self._randomness
        )
        identities = None
        if self._identities is not None:
            identities = {name: self._identities[name] for name in nodes}
        keys = [one.keys for one in check_ins.values()]
        server = RoundServer(session, params, keys, self._store, self._maps, identities)
        period = self._settings.period(self._now_ms())
        if period is not None:
            self._registry.invite(period, session.round_id, nodes)
        log.info("round %d (%s): %d clients invited", number, session.round_id.hex(), len(nodes))
        return RunningRound(server, session, params, bill)

    def _exchanges(self, running: RunningRound, nodes: Mapping[str, int]) -> RoundOutcome:
        names = {node: name for name, node in nodes.items()}
        bill, outbound = running.bill, running.begin()
        while exchange := running.exchange:
            began, due = self._clock(), exchange

            def take(node: int, data: bytes, due: str = due) -> None:
                running.receive(due, names[node], data)

            frames = {nodes[name]: frame for name, frame in outbound.items()}
            self._exchange(frames, self._settings.deadline(exchange), names, take, exchange, bill)
            if exchange == EXPOSES:
                # Whose masked set is here is noted durably before anything of it can be opened.
                self._registry.acknowledge(running.round_id, running.heard)
            outbound = running.close()
            bill.wall_seconds[exchange] = self._clock() - began
        return running.server.outcome

    def _exchange(
        self,
        frames: Mapping[int, bytes],
        seconds: float,
        names: Mapping[int, str],
        take: Take,
        exchange: str,
        bill: Bill,
    ) -> None:
        def careful(node: int, data: bytes) -> None:
            try:
                take(node, data)
            except RemoteError as error:  # refused; its node is one that did not answer
                log.warning("client %s, %s: %s: %s", names[node], exchange, type(error).__name__, error)

        for frame in frames.values():
            bill.down(exchange, len(frame))
        self._post.exchange(frames, seconds, careful)

    def _dismiss(
        self, running: RunningRound, nodes: Mapping[str, int], check_ins: Mapping[str, CheckIn]
    ) -> None:
        """Whoever is not through keeps secrets of this round: it can let go of them."""
        self._post.tell(
            {
                nodes[name]: CODEC.encode(Over(one.keys.channel))
                for name, one in check_ins.items()
                if name not in running.finished
            }
        )
