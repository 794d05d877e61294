"""One round on the real protocol: the state machines of ``rounds``, encoded messages, measured costs."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sfsl.codec import Message
from sfsl.crypto.randomness import Randomness
from sfsl.engines.settings import RoundReport
from sfsl.engines.simulation import Simulation
from sfsl.errors import Declined, NotFinite, Refused, RemoteError
from sfsl.rounds import RoundClient, RoundOutcome, RoundParams, RoundPolicy, RoundServer
from sfsl.rounds.messages import CODEC, Submodel
from sfsl.secagg import Client, Policy, SessionParams, default_threshold
from sfsl.secagg.messages import Keys
from sfsl.secagg.meter import Meter
from sfsl.training import ClientWork, LocalUpdate

MESSAGE_LIMIT = 1 << 30
# A simulated client accepts what this process offers it; a deployed one has a policy of its own.
_GENEROUS = 2**32


class MaskedRound:
    """One round under way: who is still there, and the bill by exchange.

    ``randomness`` makes keys and masks. Clients work side by side in ``workers`` threads: ciphers and
    arrays, which take most of the time, run in parallel.
    """

    def __init__(
        self,
        simulation: Simulation,
        cohort: Sequence[str],
        params: RoundParams,
        report: RoundReport,
        randomness: Randomness,
        workers: ThreadPoolExecutor,
    ) -> None:
        self._workers = workers
        self._simulation = simulation
        self._report = report
        self._randomness = randomness
        self._gone: set[str] = set()
        self.learned: dict[str, tuple[ClientWork, LocalUpdate]] = {}
        self._meter = meter = Meter(cohort, CODEC, MESSAGE_LIMIT)
        session = SessionParams(
            round_id=randomness.bytes(16),
            clients=len(cohort),
            threshold=simulation.settings.threshold or default_threshold(len(cohort)),
            neighbours=None,
            active=False,
            sums=params.sums(),
        )
        self._clients = {name: meter.at_client(name, self._client, name) for name in cohort}
        keys = [
            meter.up(name, Keys, meter.at_client(name, client.create_keys))
            for name, client in self._clients.items()
        ]
        maps = simulation.task.row_maps
        self._server = meter.at_server(RoundServer, session, params, keys, simulation.store, maps)
        self._bill("check-in", len(cohort))

    def outcome(self) -> RoundOutcome:
        invitations = self._meter.at_server(self._server.invitations)
        inbound = self._exchange("invitation", invitations, RoundClient.handle_invitation)
        opening = self._exchange("inbound", inbound, RoundClient.handle_inbound)
        union = self._exchange("unmask-union", opening, RoundClient.handle_unmask)
        submodels = self._exchange("union", union, RoundClient.handle_union)
        opening = self._train("submodel", submodels)
        self._exchange("unmask-update", opening, RoundClient.handle_unmask)
        return self._server.outcome

    def _client(self, name: str) -> RoundClient:
        simulation, number = self._simulation, self._report.number
        session_policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=_GENEROUS)
        policy = RoundPolicy(
            session=session_policy, max_clip=_GENEROUS, max_rows=simulation.settings.max_rows
        )
        return RoundClient(
            Client(name, session_policy, self._randomness, sums=2),
            simulation.answers(name, number),
            simulation.task.spec,
            simulation.task.row_maps,
            policy,
            self._randomness,
            simulation.rounding(name, number),
        )

    def _exchange(
        self, exchange: str, outbound: Mapping[str, Message], act: Callable[..., Message]
    ) -> Mapping[str, Message]:
        self._vanish(exchange, outbound)
        delivered = dict(self._meter.down(outbound, Message, self._gone))
        return self._answers(exchange, act, delivered)

    def _train(self, exchange: str, outbound: Mapping[str, Message]) -> Mapping[str, Message]:
        """Download, then train the whole cohort in one pass, then upload."""
        self._vanish(exchange, outbound)
        downloads = {
            name: self._meter.at_client(name, self._clients[name].handle_submodel, message)
            for name, message in self._meter.down(outbound, Submodel, self._gone)
        }
        trained, self.learned = self._simulation.train(downloads, self._report)
        return self._answers(exchange, RoundClient.create_update, trained)

    def _vanish(self, exchange: str, outbound: Mapping[str, Message]) -> None:
        self._gone |= self._simulation.vanish(self._report, exchange, list(outbound))

    def _answers(
        self, exchange: str, act: Callable[..., Message], given: Mapping[str, object]
    ) -> Mapping[str, Message]:
        """Let clients answer, and close the phase; return what the server sends next.

        A client that declines, or whose update is not finite, is a dropout. Messages of slow clients
        come after the phase was closed, and are refused.
        """

        def answer(name: str) -> Message | Exception:
            try:
                return self._meter.at_client(name, act, self._clients[name], given[name])
            except (Declined, Refused, NotFinite) as reason:
                return reason

        slow = self._simulation.settings.faults.slow(self._report.number, exchange, given)
        heard, late = 0, dict[str, Message]()
        for name, message in zip(given, self._workers.map(answer, given), strict=True):
            if isinstance(message, Exception):
                self._report.decline(message)
                self._gone.add(name)
                continue
            received = self._meter.up(name, Message, message)
            heard += 1
            if name in slow:
                late[name] = received
            else:
                self._meter.at_server(self._server.receive, name, received)
        self._report.late += len(late)
        outbound = self._close(exchange, heard)
        for name, message in late.items():
            self._gone.add(name)
            with suppress(RemoteError):
                self._meter.at_server(self._server.receive, name, message)
                raise AssertionError(f"a late message of {name} was accepted")
        return outbound

    def _close(self, exchange: str, heard: int) -> Mapping[str, Message]:
        try:
            return self._meter.at_server(self._server.close_phase)
        finally:
            self._bill(exchange, max(1, heard))

    def _bill(self, exchange: str, clients: int) -> None:
        cost, report = self._meter.take(), self._report
        report.bytes_up[exchange] = sum(cost.client_bytes_up.values()) / clients
        report.bytes_down[exchange] = sum(cost.client_bytes_down.values()) / clients
        report.client_seconds[exchange] = sum(cost.client_seconds.values()) / clients
        report.server_seconds[exchange] = cost.server_seconds
