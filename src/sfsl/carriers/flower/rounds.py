"""Rounds one after another with the nodes of a federation. No Flower in it: ``Post`` brings frames and takes
them back.

One thread does one thing at a time. Killed at any point, the store holds round r or r + 1; a round that was
under way is never gone on with, since its nodes are called anew.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Protocol

from sfsl.carriers.flower.messages import CODEC, Call, Over, node_name, node_token
from sfsl.errors import ConflictingMessage, RemoteError, SfslError, StoreError, TooFewClients, WrongPhase
from sfsl.rounds.exchanges import Exchange
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import CohortRound, Service
from sfsl.service.members import admit_check_in
from sfsl.service.messages import CheckIn

log = logging.getLogger(__name__)

_LARGEST_CHECK_IN = 4096

Take = Callable[[int, bytes], None]
Published = Mapping[bytes, bytes]  # what clients download besides, by digest


class Post(Protocol):
    """Brings frames to nodes and back. A node that answers with an error, or too late, has not answered."""

    def nodes(self) -> Iterable[int]:
        """Return those that are there now."""

    def exchange(
        self, frames: Mapping[int, bytes], seconds: float, take: Take, published: Published | None = None
    ) -> None:
        """Send, and give each reply to ``take`` as it comes; until all have replied or time is up. What is
        ``published`` goes beside every frame."""

    def tell(self, frames: Mapping[int, bytes]) -> None:
        """Send, and wait for nothing."""


@dataclass(eq=False)
class Rounds:
    """Carries the rounds of a ``service`` over a ``post``. ``identities``: in active mode, by name. ``spare``
    and ``wait_seconds`` as in ``FlowerSettings``."""

    service: Service
    post: Post
    _: KW_ONLY
    identities: Mapping[str, bytes] | None = None
    spare: float = 0.25
    wait_seconds: float = 600.0
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> None:
        """Run until the store has all rounds. Raise ``TooFewClients`` where nodes do not come in time."""
        while self.service.number <= self.service.settings.rounds:
            self._round()

    def _form(self, tally: RoundTally) -> tuple[dict[str, int], dict[str, CheckIn]]:
        """Form the next cohort, and return its nodes and their check-ins, by name."""
        settings, start = self.service.settings, self.service.clock()
        give_up, patience = start + self.wait_seconds, start + settings.check_in_seconds
        checked_in = "none was called"
        while True:
            there = self._eligible()
            enough = settings.cohort if self.service.clock() < patience else settings.min_cohort
            if len(there) >= enough:
                called = self.service.choose(there, math.ceil(settings.cohort * (1 + self.spare)))
                came = self._call({name: there[name] for name in called}, tally)
                if len(came) >= settings.min_cohort:
                    chosen = self.service.choose(came, settings.cohort)
                    return {name: there[name] for name in chosen}, {name: came[name] for name in chosen}
                checked_in = f"{len(came)} of {len(called)} checked in, and the others' logs say why not"
                log.warning("%d of %d nodes checked in; too few for a round", len(came), len(called))
            if self.service.clock() >= give_up:
                raise TooFewClients(
                    f"{len(there)} nodes that may be invited ({checked_in}), {settings.min_cohort} or more "
                    f"are needed in a round; after {self.wait_seconds:.0f} s this run gives up. What is in "
                    "the store stands"
                )
            self.sleep(1.0)

    def _eligible(self) -> dict[str, int]:
        """Return the nodes that are there and may be invited, by name."""
        members, found = self.service.members, {node_name(node): node for node in self.post.nodes()}
        known = found.keys() if self.identities is None else found.keys() & self.identities.keys()
        return {name: found[name] for name in known if not members.bars(name)}

    def _call(self, called: Mapping[str, int], tally: RoundTally) -> dict[str, CheckIn]:
        start, service, registry = self.service.clock(), self.service, self.service.registry
        frames: dict[str, bytes] = {}
        for name, node in called.items():
            with suppress(RemoteError):  # revoked
                registry.enrol(node_token(node), service.today())
                call = Call(
                    registry.deployment, service.model_digest, registry.acknowledged(name), service.rho
                )
                frames[name] = CODEC.encode(call)
        came: dict[str, CheckIn] = {}
        used: set[bytes] = set()

        def take(client: str, data: bytes) -> None:
            message = CODEC.decode(data, limit=_LARGEST_CHECK_IN)
            if not isinstance(message, CheckIn):
                raise WrongPhase(f"{type(message).__name__} is no check-in")
            if client in came:
                raise ConflictingMessage(f"client {client} checks in twice")
            used.update(
                admit_check_in(
                    client, message, service.model_digest, self.identities, used, sums=service.rules.sums
                )
            )
            came[client] = message
            tally.up(Exchange.CHECK_IN, len(data))

        self._exchange(Exchange.CHECK_IN, frames, called, take, tally)
        tally.answered[Exchange.CHECK_IN] = len(came)
        tally.exchange_seconds[Exchange.CHECK_IN] = self.service.clock() - start
        return came

    def _round(self) -> None:
        number, tally, service = self.service.number, RoundTally(), self.service
        nodes, check_ins = self._form(tally)
        start, reason, identities = self.service.clock(), None, self.identities
        if identities is not None:
            identities = {name: identities[name] for name in nodes}
        cohort = service.invite(check_ins, identities, tally, service.members.take_turns(nodes))
        try:
            self._exchanges(cohort, nodes)
        except StoreError:
            raise
        except SfslError as error:
            reason = str(error)
            service.blame(number, error)
        service.finish(cohort, tally, aborted=reason, seconds=self.service.clock() - start)
        self._dismiss(cohort, nodes, check_ins)

    def _exchanges(self, cohort: CohortRound, nodes: Mapping[str, int]) -> None:
        outbound = cohort.begin()
        while exchange := cohort.exchange:
            began = self.service.clock()
            take, published = partial(cohort.receive, exchange), None
            if exchange is cohort.course.trains:
                published = cohort.published
            self._exchange(exchange, outbound, nodes, take, cohort.tally, published)
            outbound = cohort.close()
            cohort.tally.exchange_seconds[exchange] = self.service.clock() - began

    def _exchange(
        self,
        exchange: Exchange,
        frames: Mapping[str, bytes],
        nodes: Mapping[str, int],
        take: Callable[[str, bytes], None],
        tally: RoundTally,
        published: Published | None = None,
    ) -> None:
        """Bring each client its frame, and give each answer that comes in time to ``take``."""
        names = {nodes[name]: name for name in frames}

        def careful(node: int, data: bytes) -> None:
            try:
                take(names[node], data)
            except RemoteError as error:  # refused; its node is one that did not answer
                log.warning("client %s, %s: %s: %s", names[node], exchange, type(error).__name__, error)

        beside = sum(map(len, (published or {}).values()))
        for frame in frames.values():
            tally.down(exchange, len(frame) + beside)
        settings = self.service.settings
        seconds = settings.check_in_seconds if exchange is Exchange.CHECK_IN else settings.deadline(exchange)
        sent = {nodes[name]: frame for name, frame in frames.items()}
        self.post.exchange(sent, seconds, careful, published)

    def _dismiss(
        self, cohort: CohortRound, nodes: Mapping[str, int], check_ins: Mapping[str, CheckIn]
    ) -> None:
        """Tell whoever is not through that the secrets of this round can go."""
        self.post.tell(
            {
                nodes[name]: CODEC.encode(Over(one.keys.channel))
                for name, one in check_ins.items()
                if name not in cohort.finished
            }
        )
