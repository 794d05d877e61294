"""What one whole round costs, without training: bytes, CPU and memory of a client and of the server."""

import time
from collections.abc import Collection, Mapping, Sequence
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfsl.codec import Message, read_bits
from sfsl.errors import InputError
from sfsl.rounds import Download, RoundClient, RoundServer, Trained
from sfsl.rounds.commitment import CommittedRows, require_committed
from sfsl.rounds.exchanges import CODEC, STEP, TRAINS, Exchange, Submodel, order
from sfsl.rounds.server import as_downloaded
from sfsl.rounds.states import Requested, Updating
from sfsl.secagg import Client, Start
from sfsl.secagg.facade import Cost, Meter
from sfsl.secagg.messages import Keys, MaskedVector
from sfsl.submodel import RowSet
from sfsl_research.bench.memory import SERVER, MemoryMeter, bare_process_bytes
from sfsl_research.bench.simulated import SimulatedCohort, Sizes

LIMIT = 1 << 30
# Before what clients may vanish, and the exchange in which they then do not answer.
VANISH = {"update": Exchange.SUBMODEL, "set": Exchange.INBOUND}


def bench_round(
    sizes: Sizes = Sizes(),  # noqa: B008 -- frozen
    *,
    privacy: str = "cpp2",
    min_contributors: int = 1,
    precision: str = "float32",
    bins: int = 256,
    encoding: str = "auto",
    active: bool = False,
    dropout: float = 0.0,
    dropout_before: str = "update",
    memory: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Run one round, check its sums against the plain sums of the survivors, and report its cost.

    ``memory`` runs it a second time, under tracing, which would spoil the seconds of the first.
    """
    if dropout_before not in VANISH:
        raise InputError(f"--dropout-before {dropout_before!r} is none of {', '.join(VANISH)}")
    cohort = SimulatedCohort(
        sizes,
        privacy=privacy,
        min_contributors=min_contributors,
        precision=precision,
        bins=bins,
        encoding=encoding,
        active=active,
        seed=seed,
    )
    vanishing = cohort.vanishing(dropout)
    names = sorted(cohort.real)
    drive = _Drive(cohort, Meter(names, CODEC, LIMIT), vanishing, VANISH[dropout_before], _Recording)
    drive.run()
    _check(drive, vanishing, exact=cohort.params.union.encoding in ("identity", "sketch"))
    outcome = drive.server.outcome
    alive = outcome.survivors
    up, down = (
        [sum(getattr(bill, kind)[name] for bill in drive.bills.values()) for name in alive]
        for kind in ("client_bytes_up", "client_bytes_down")
    )
    seconds = [sum(bill.client_seconds[name] for bill in drive.bills.values()) for name in alive]
    result = {
        "clients": sizes.clients,
        "rows": sizes.rows,
        "set_size": sizes.set_size,
        "unique": sizes.unique,
        "dense": sizes.dense,
        "privacy": privacy,
        "min_contributors": min_contributors,
        "precision": precision,
        "bins": bins,
        "active": active,
        "dropout": dropout,
        "dropout_before": dropout_before if dropout else None,
        "threshold": cohort.session.threshold,
        "seed": seed,
        "encoding": cohort.params.union.encoding,
        "survivors": len(alive),
        "union_size": len(outcome.union["goods"]),
        "union_categories": len(outcome.union["category"]),
        "categories_real": mean(len(cohort.derived(name)) for name in names),
        "rows_asked": mean(len(drive.asked[name]["goods"]) for name in alive),
        "categories_asked": mean(len(drive.asked[name]["category"]) for name in alive),
        "client_bytes_up": round(mean(up)),
        "client_bytes_down": round(mean(down)),
        "client_mib": (mean(up) + mean(down)) / 2**20,
        "client_mib_max": max(map(sum, zip(up, down, strict=True))) / 2**20,
        "client_seconds": median(seconds),
        "client_seconds_max": max(seconds),
        "server_seconds": sum(bill.server_seconds for bill in drive.bills.values()),
        "exchanges": {exchange: _summary(bill, alive) for exchange, bill in drive.bills.items()},
    }
    if drive.proofs:
        result |= drive.proofs.figures()
    return result | (_memory(cohort, vanishing, VANISH[dropout_before]) if memory else {})


def round_memory(
    sizes: Sizes, *, privacy: str, encoding: str = "auto", seed: int = 0
) -> dict[str, int | None]:
    """The part of ``bench_round`` that ``memory`` adds, for a round whose seconds and bytes are known."""
    return _memory(SimulatedCohort(sizes, privacy=privacy, encoding=encoding, seed=seed), (), "")


def _summary(bill: Cost, alive: Sequence[str]) -> dict[str, float]:
    """Of one exchange, over the clients that lasted. The server takes answers in, closes the phase and
    encodes what goes out next."""
    seconds = [bill.client_seconds[name] for name in alive]
    return {
        "bytes_up": round(mean(bill.client_bytes_up[name] for name in alive)),
        "bytes_down": round(mean(bill.client_bytes_down[name] for name in alive)),
        "client_seconds": median(seconds),
        "client_seconds_max": max(seconds),
        "server_seconds": bill.server_seconds,
    }


def _memory(cohort: SimulatedCohort, vanishing: Collection[str], at: str) -> dict[str, int | None]:
    """A client: its state, the message it got, the one it sends, the submodel; training is not in it. The
    server: its state, the rows it read, messages of a whole exchange in both directions."""
    meter = MemoryMeter(sorted(cohort.real), CODEC, LIMIT)
    with meter.tracing():
        _Drive(cohort, meter, vanishing, at, Client).run()
    clients = [peak for party, peak in meter.peaks.items() if party != SERVER]
    return {
        "client_peak_bytes": round(median(clients)),
        "client_peak_bytes_max": max(clients),
        "server_peak_bytes": meter.peaks[SERVER],
        "bare_process_bytes": bare_process_bytes(),
    }


class _Recording(Client):
    """Remembers the words of its last sum as they were before the masks."""

    words: tuple[ArrayLike, Sequence[ArrayLike]]

    def create_masked(self, start: Start, dense: ArrayLike, tables: Sequence[ArrayLike] = ()) -> MaskedVector:
        self.words = (dense, tables)
        return super().create_masked(start, dense, tables)


class _Proofs:
    """What commitment and proofs of active mode add, measured once more apart from the round: bytes to a
    client, its seconds to check them, and the server's for the whole cohort."""

    def __init__(self) -> None:
        self._bytes: list[int] = []
        self._seconds: list[float] = []
        self._server = 0.0

    def commit(self, drive: "_Drive") -> None:
        state, store, params = drive.server.state, drive.store, drive.cohort.params
        assert isinstance(state, Updating)  # noqa: S101 -- submodels are about to leave
        unions = {table.name: state.unions[table.name] for table in params.model.summed}
        tables = [as_downloaded(store.read_rows(name, rows).values, params.precision)
                  for name, rows in unions.items()]  # fmt: skip
        asked = [
            [read_bits(bitmap, len(rows)) for bitmap, rows in zip(one.bitmaps, unions.values(), strict=True)]
            for one in state.requests.values()
        ]
        begun = time.process_time()
        committed = CommittedRows(tables, bytes(32), proves=True)
        for bits in asked:
            committed.proof(bits)
        self._server = time.process_time() - begun

    def check(self, data: bytes, client: RoundClient) -> None:
        submodel, state = CODEC.decode(data, limit=LIMIT), client.state
        assert isinstance(submodel, Submodel) and isinstance(state, Requested)  # noqa: S101, PT018
        begun = time.process_time()
        require_committed(submodel, client.session.binding, state.layout, state.positions)
        self._seconds.append(time.process_time() - begun)
        self._bytes.append(len(submodel.root) + len(submodel.proof))

    def figures(self) -> dict[str, float]:
        return {
            "proof_bytes": round(mean(self._bytes)),
            "proof_client_seconds": median(self._seconds),
            "proof_server_seconds": self._server,
        }


class _Drive:
    """Takes a cohort through a round. What reaches a party is bytes, and so is what leaves it: a call of
    the meter is all that the party does with them."""

    def __init__(
        self,
        cohort: SimulatedCohort,
        meter: Meter,
        vanishing: Collection[str],
        at: str,
        session: type[Client],
    ) -> None:
        self.cohort = cohort
        self.store = cohort.store()
        self.sessions: dict[str, Client] = {}
        self.asked: dict[str, dict[str, RowSet]] = {}
        self.bills: dict[str, Cost] = {}
        self._clients: dict[str, RoundClient] = {}
        self._downloads: dict[str, Download] = {}
        self._meter = meter
        self._vanishing = vanishing
        self._at = at
        self._session = session
        self.proofs = _Proofs() if cohort.pinned else None

    def run(self) -> None:
        keys = []
        for name in self.cohort.real:
            keys.append(self._meter.at_client(name, self._check_in, name))
            self._meter.cost.client_bytes_up[name] += len(keys[-1])
        outbound = self._meter.at_server(self._invite, keys)
        self.bills[Exchange.CHECK_IN] = self._meter.take()
        for exchange in order(self.cohort.pinned is not None):
            if self.proofs and exchange is TRAINS:
                self.proofs.commit(self)
            for name in outbound:
                self._serve(exchange, name, outbound[name])
            outbound = self._meter.at_server(self._close, outbound)
            self.bills[exchange] = self._meter.take()

    def _serve(self, exchange: Exchange, name: str, data: bytes) -> None:
        """One client's turn. One that vanishes has got its message, and its request for rows stands."""
        self._meter.cost.client_bytes_down[name] += len(data)
        if exchange is TRAINS:
            if self.proofs:
                self.proofs.check(data, self._clients[name])
            self._meter.at_client(name, self._download, name, data)
        if exchange == self._at and name in self._vanishing:
            return
        if exchange is TRAINS:
            trained = self.cohort.trained(name, self._downloads[name])
            answer = self._meter.at_client(name, self._upload, name, trained)
        else:
            answer = self._meter.at_client(name, self._answer, name, data, STEP[exchange].handler)
        self._meter.cost.client_bytes_up[name] += len(answer)
        self._meter.at_server(self._receive, name, answer)

    # -- what a client does --------------------------------------------------------------------

    def _check_in(self, name: str) -> bytes:
        self.sessions[name], self._clients[name] = self.cohort.client(name, self._session)
        return CODEC.encode(self._clients[name].create_keys())

    def _answer(self, name: str, data: bytes, handler: str) -> bytes:
        return CODEC.encode(getattr(self._clients[name], handler)(CODEC.decode(data, limit=LIMIT)))

    def _download(self, name: str, data: bytes) -> None:
        submodel: Any = CODEC.decode(data, limit=LIMIT)
        self._downloads[name] = self._clients[name].handle_submodel(submodel)
        self.asked[name] = self._downloads[name].asked

    def _upload(self, name: str, trained: Trained) -> bytes:
        answer = CODEC.encode(self._clients[name].create_update(trained))
        del self._downloads[name]
        return answer

    # -- what the server does ------------------------------------------------------------------

    def _invite(self, keys: Sequence[bytes]) -> dict[str, bytes]:
        read = [CODEC.decode(data, limit=LIMIT) for data in keys]
        cohort = self.cohort
        self.server = RoundServer(
            cohort.session,
            cohort.params,
            [one for one in read if isinstance(one, Keys)],
            self.store,
            cohort.maps,
            cohort.pinned,
        )
        return _encoded(self.server.invitations())

    def _receive(self, name: str, data: bytes) -> None:
        self.server.receive(name, CODEC.decode(data, limit=LIMIT))

    def _close(self, sent: dict[str, bytes]) -> dict[str, bytes]:
        sent.clear()  # all clients have theirs
        return _encoded(self.server.close_phase())


def _encoded(outbound: Mapping[str, Message]) -> dict[str, bytes]:
    """What goes to several clients is encoded once."""
    distinct = {id(message): message for message in outbound.values()}
    data = {key: CODEC.encode(message) for key, message in distinct.items()}
    return {name: data[id(message)] for name, message in outbound.items()}


def _check(drive: _Drive, vanishing: Collection[str], exact: bool) -> None:
    """The union is that of the sets that were sent; the opened words are the sum, modulo 2^32, of the words
    that the survivors encoded."""
    cohort, outcome = drive.cohort, drive.server.outcome
    if set(outcome.survivors) != cohort.real.keys() - vanishing:
        raise AssertionError("others survived than did not vanish")
    sent = [name for name in cohort.real if name in drive.asked]
    held = np.unique(np.concatenate([cohort.real[name] for name in sent]))
    union = outcome.union["goods"].rows
    if not (np.array_equal(held, union) if exact else np.isin(held, union).all()):
        raise AssertionError("the union is not that of the sets that were sent")
    opened = drive.server._session.opened
    dense = np.zeros_like(opened.dense)
    tables = [np.zeros_like(words) for words in opened.tables]
    for name in outcome.survivors:
        session = drive.sessions[name]
        assert isinstance(session, _Recording)  # noqa: S101 - run as such
        own_dense, own_tables = session.words
        dense += np.asarray(own_dense)
        for table, words, own in zip(cohort.model.summed, tables, own_tables, strict=True):
            at = outcome.union[table.name].positions_of(drive.asked[name][table.name].rows)
            words[at] += np.asarray(own)
    for table, words in zip(cohort.model.summed, tables, strict=True):
        words[_requesters(drive, table.name) < cohort.params.min_contributors] = 0
    pairs = [(dense, opened.dense), *zip(tables, opened.tables, strict=True)]
    if not all(np.array_equal(plain, secure) for plain, secure in pairs):
        raise AssertionError("the opened sums are not the plain sums of the survivors' words")


def _requesters(drive: _Drive, table: str) -> Any:
    """How many clients asked for each row of the union, also of those who vanished afterwards."""
    union = drive.server.outcome.union[table]
    count = np.zeros(len(union), np.int64)
    for asked in drive.asked.values():
        count[union.positions_of(asked[table].rows)] += 1
    return count
