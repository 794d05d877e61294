"""One cohort's round on the real protocol: the state machines of ``rounds``, encoded messages, costs."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sfsl.carriers.local.pool import MESSAGE_LIMIT, ClientPool, Reply
from sfsl.client.device import Learned
from sfsl.crypto.agreement import require_contributory
from sfsl.crypto.randomness import Randomness
from sfsl.errors import InvalidMessage, RemoteError, TooFewClients
from sfsl.rounds import RoundParams, RoundServer, RoundSums
from sfsl.rounds.exchanges import SUMS, TRAINS, Exchange
from sfsl.rounds.messages import CODEC
from sfsl.secagg import SessionParams, default_threshold
from sfsl.secagg.messages import Keys
from sfsl.secagg.transcript import require_keys
from sfsl.service.running import Bill, RunningRound
from sfsl.simulate.settings import RoundReport
from sfsl.simulate.simulation import Simulation


class MaskedRound:
    """One round under way, its clients wherever ``hosts`` has them, and the bill by exchange.

    What comes from a host is taken as a network's server takes it: a frame that is not the one that is due
    costs its client the round, and nobody else anything.
    """

    def __init__(
        self,
        simulation: Simulation,
        cohort: Sequence[str],
        params: RoundParams,
        report: RoundReport,
        hosts: ClientPool,
        randomness: Randomness,
    ) -> None:
        self._simulation = simulation
        self._report = report
        self._hosts = hosts
        self._bill = Bill()
        self.learned: dict[str, Learned] = {}
        start = time.thread_time()
        replies = hosts.check_in()
        keys = self._keys(cohort, replies)
        threshold = simulation.settings.threshold or default_threshold(len(cohort))
        if len(keys) < threshold:
            raise TooFewClients(f"{len(keys)} clients are left, {threshold} are needed")
        session = SessionParams(
            round_id=randomness.bytes(16),
            clients=len(keys),
            threshold=threshold,
            neighbours=None,
            active=False,
            sums=params.sums(),
        )
        server = RoundServer(session, params, keys, simulation.store, simulation.task.row_maps, alone=False)
        self._bill.server_seconds[Exchange.CHECK_IN] = time.thread_time() - start
        self._charge(Exchange.CHECK_IN, {}, replies)
        self._running = RunningRound(server, session, params, self._bill)

    def sums(self) -> RoundSums:
        """Of this cohort, to be added to those of the others."""
        start = time.thread_time()
        outbound: Mapping[str, bytes] = self._running.begin()
        self._bill.server_seconds[self._running.exchange] = time.thread_time() - start
        while exchange := self._running.exchange:
            outbound = self._exchange(exchange, outbound)
        return self._running.server.sums

    def _keys(self, cohort: Sequence[str], replies: Mapping[str, Reply]) -> list[Keys]:
        """Of those who checked in with keys that are fit for use."""
        taken: list[Keys] = []
        seen: set[bytes] = set()
        for name in cohort:
            reply = replies.get(name)
            if reply is None or reply.frame is None:
                self._report.drop(Exchange.CHECK_IN)
                continue
            try:
                taken.append(_checked_keys(name, reply.frame, seen))
            except RemoteError as error:
                self._report.decline(error)
        return taken

    def _exchange(self, exchange: Exchange, outbound: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Let clients answer, and close the phase; return what the server sends next.

        A client that declines, or whose update is not finite, is a dropout. Messages of slow clients
        come after the phase was closed, and are refused.
        """
        vanished = self._simulation.vanish(self._report, exchange, list(outbound))
        frames = {name: frame for name, frame in outbound.items() if name not in vanished}
        replies = self._train(frames) if exchange is TRAINS else self._hosts.answer(exchange, frames)
        slow = self._simulation.settings.faults.slow(self._report.number, exchange, frames)
        late: dict[str, bytes] = {}
        for name in frames:
            if name not in replies:
                self._report.drop(exchange)
            elif (frame := replies[name].frame) is None:
                self._report.decline(replies[name].reason)
            elif name in slow:
                late[name] = frame
            else:
                self._receive(exchange, name, frame)
        self._report.late += len(late)
        try:
            outbound = self._running.close()
        finally:
            self._charge(exchange, frames, replies)
        for name, frame in late.items():
            with suppress(RemoteError):
                self._running.receive(exchange, name, frame)
                raise AssertionError(f"a late message of {name} was accepted")
        return outbound

    def _train(self, frames: Mapping[str, bytes]) -> Mapping[str, Reply]:
        lessons = self._hosts.train(frames, self._simulation.personal_rows(frames))
        self.learned = {name: lessons.learned[name] for name in frames if name in lessons.learned}
        self._report.learn(self.learned.values(), lessons.seconds)
        return lessons.replies

    def _receive(self, exchange: str, name: str, frame: bytes) -> None:
        try:
            self._running.receive(exchange, name, frame)
        except RemoteError as error:
            self._report.decline(error)

    def _charge(self, exchange: str, frames: Mapping[str, bytes], replies: Mapping[str, Reply]) -> None:
        up = [len(reply.frame) for reply in replies.values() if reply.frame is not None]
        self._report.charge(
            exchange,
            answered=len(up),
            up=sum(up),
            down=sum(map(len, frames.values())),
            client_seconds=sum(reply.seconds for reply in replies.values()),
            server_seconds=self._bill.server_seconds.get(exchange, 0.0),
        )


def _checked_keys(name: str, frame: bytes, seen: set[bytes]) -> Keys:
    """A client's own, which no other client has; else the whole roster would be refused."""
    keys = CODEC.decode(frame, limit=MESSAGE_LIMIT)
    if not isinstance(keys, Keys) or keys.client != name:
        raise InvalidMessage(f"client {name!r} checks in with something else than its keys")
    require_keys(keys, SUMS, None)
    publics = {keys.channel, *keys.masks}
    for public in publics:
        require_contributory(public)
    if len(publics) <= SUMS or publics & seen:
        raise InvalidMessage(f"client {name!r} checks in with a public key that is there already")
    seen |= publics
    return keys
