"""The whole prediction for one round, and for a fleet that runs one after the other: with CPU seconds and
memory of client and server, from what a round consists of and the speed of this machine, which is measured
here and now, in a fraction of a second.

Training is not in it: it depends on the model, not on the protocol.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.codec import Message
from sfsl.crypto.ring import F31, Z32, ring_named
from sfsl.crypto.secret import Interpolation, KeyPair, Secret, SystemRandomness, pair_mask_key, seal, split
from sfsl.errors import ParameterError
from sfsl.plan.settings import COUNTED, PlanSettings
from sfsl.plan.traffic import RoundRows, Traffic, expected_rows, traffic
from sfsl.privacy import PRESETS, Perturber, Tables
from sfsl.rounds.exchanges import CODEC, Exchange
from sfsl.secagg.facade import cpu_seconds, mask_seconds
from sfsl.secagg.masking import Masker
from sfsl.secagg.messages import Layout, MaskedVector, SealedShares, TableShape
from sfsl.submodel import Quantization
from sfsl.union import choose

_WORDS = 1 << 18
_ROWS, _WIDTH = 1 << 13, 16
_ELEMENTS = 2000
_SECRETS = 4  # that a client shares: a mask key and a seed for each of the two sums
_KEYS = 3  # public keys of a client, each of which the server tries
# Seconds per bit of who asked for what: unpacked, selected by column and packed again.
_BIT = 3e-9


@dataclass(frozen=True)
class Speeds:
    """CPU seconds per unit. ``share`` is a secret's sharing among the cohort, ``rebuild`` its opening;
    ``encode``, ``decode`` and ``digest`` are per byte, ``item`` is one box of a list, there and back."""

    agreement: float
    seal: float
    share: float
    rebuild: float
    mask_z32: float
    mask_f31: float
    mask_rows: float
    encode: float
    decode: float
    digest: float
    item: float
    sketch_in: float
    sketch_out: float
    answer: float
    quantize: float


def measure(clients: int, threshold: int) -> Speeds:
    """Time each thing a client or the server does in a round, on this machine and for this cohort."""
    randomness = SystemRandomness()
    one, other = KeyPair.generate(randomness), KeyPair.generate(randomness)
    secret = Secret(randomness.bytes(32))
    points = range(1, clients + 1)
    shares = [int.from_bytes(share, "big") for share in split(secret, threshold, points, randomness)]
    weights = Interpolation(tuple(points[:threshold]))
    vector = MaskedVector(bytes(16), 0, 0, bytes(4 * _WORDS))
    encoded = CODEC.encode(vector)
    boxes = SealedShares(bytes(16), 0, (bytes(148),) * 500, (), None)
    sketch = choose("sketch", 1 << 30, _ELEMENTS, bytes(32))
    indices = np.arange(_ELEMENTS, dtype=np.int64) * 7919
    table = sketch.encode(indices, randomness)
    perturber = Perturber(secret, PRESETS["cpp2"], Tables(shared=("t",)), {"t": indices})
    deltas, ones = np.full((_ROWS, _WIDTH), 0.01), np.ones(_ROWS, np.int64)
    quantization = Quantization.finest("z32", cohort=100, clip=1, max_weight=1)
    return Speeds(
        agreement=cpu_seconds(lambda: pair_mask_key(one, other.public, bytes(32), bytes(32), 0, 1), 50),
        seal=cpu_seconds(lambda: seal(secret, bytes(132), "shares", bytes(16), 0, 1), 50),
        share=cpu_seconds(lambda: split(secret, threshold, points, randomness), 1),
        rebuild=cpu_seconds(lambda: weights.secret(shares[:threshold]), 10),
        mask_z32=mask_seconds(Z32),
        mask_f31=mask_seconds(F31),
        mask_rows=_row_seconds(),
        encode=cpu_seconds(lambda: CODEC.encode(vector), 1) / len(encoded),
        decode=cpu_seconds(lambda: _decoded(encoded), 1) / len(encoded),
        digest=cpu_seconds(lambda: hashlib.sha256(encoded).digest(), 1) / len(encoded),
        item=cpu_seconds(lambda: _decoded(CODEC.encode(boxes)), 1) / len(boxes.boxes),
        sketch_in=cpu_seconds(lambda: sketch.encode(indices, randomness), 1) / _ELEMENTS,
        sketch_out=cpu_seconds(lambda: sketch.decode(table), 1) / _ELEMENTS,
        answer=cpu_seconds(lambda: perturber.answer({"t": indices}, randomness), 1) / _ELEMENTS,
        quantize=cpu_seconds(lambda: quantization.encode(deltas, ones, randomness), 1) / deltas.size,
    )


def _decoded(encoded: bytes) -> Message:
    return CODEC.decode(encoded, limit=len(encoded))


def _row_seconds() -> float:
    """Measure the seconds per word where only some rows of a table are masked."""
    layout = Layout(dense=0, tables=(TableShape(rows=_ROWS, width=_WIDTH),))
    masker = Masker(Z32, Z32.zeros(_ROWS * _WIDTH), layout)
    rows = np.arange(0, _ROWS, 4)
    return cpu_seconds(lambda: masker.add(Secret(bytes(32)), [rows]), 1) / (len(rows) * _WIDTH)


@dataclass(frozen=True)
class Seconds:
    """CPU seconds by exchange, of one client and of the server."""

    client: dict[str, float]
    server: dict[str, float]


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a round, in arrays and messages, without the interpreter and its libraries."""

    client: float
    server: float


def cpu(
    settings: PlanSettings, heard: Mapping[str, int], rows: RoundRows, sent: Traffic, speed: Speeds
) -> Seconds:
    """Predict the CPU seconds of a round in which so many clients answer each exchange."""
    shared, uniting, asking, updating = (heard[one] for one in COUNTED)
    union_mask = sent.union_words * (speed.mask_f31 if sent.encoding.ring == F31 else speed.mask_z32)
    summed = [(table, rows.tables[table.name]) for table in settings.model.summed]
    update_mask = (settings.model.dense_words + 2 * settings.bins) * speed.mask_z32
    own_words = sum(one.uploaded * table.words for table, one in summed)
    paired_words = sum(one.masked * table.words for table, one in summed)
    asked, union = (sum(getattr(one, name) for _, one in summed) for name in ("asked", "union"))
    indices = sum(one.union for table, one in summed if table.kind == "shared")
    trained = settings.model.dense + sum(one.real * table.width for table, one in summed)

    def read_up(exchange: str, clients: int) -> float:
        return clients * sent.up[exchange] * (speed.decode + speed.encode + speed.digest)

    client: dict[str, float] = {
        Exchange.CHECK_IN: _KEYS * speed.agreement,
        Exchange.INVITATION: (settings.clients - 1) * (speed.agreement + speed.seal)
        + _SECRETS * speed.share
        + 2 * settings.clients * speed.item
        + sent.down[Exchange.INVITATION] * speed.decode,
        Exchange.INBOUND: (shared - 1) * (speed.agreement + speed.seal)
        + shared * union_mask
        + settings.set_size * speed.sketch_in,
        Exchange.UNMASK_UNION: 0.0,
        Exchange.UNION: indices * speed.answer,
        Exchange.SUBMODEL: (asking - 1) * (speed.agreement + update_mask)
        + paired_words * speed.mask_rows
        + update_mask
        + own_words * speed.mask_z32
        + trained * speed.quantize
        + (asking - 1) * asked * _BIT
        + sent.down[Exchange.SUBMODEL] * speed.decode
        + sent.up[Exchange.SUBMODEL] * speed.encode,
        Exchange.UNMASK_UPDATE: 0.0,
    }
    lost_union, lost_update = shared - uniting, asking - updating
    pair_words = paired_words / max(1, asking - 1)
    server: dict[str, float] = {
        Exchange.CHECK_IN: settings.clients * _KEYS * speed.agreement,
        Exchange.INVITATION: read_up(Exchange.INVITATION, shared)
        + shared * settings.clients * 2 * speed.item
        + sent.down[Exchange.INVITATION] * speed.encode,
        Exchange.INBOUND: read_up(Exchange.INBOUND, uniting)
        + uniting * sent.union_words * speed.mask_z32
        + uniting * shared * speed.item
        + uniting * sent.down[Exchange.INBOUND] * speed.encode,
        Exchange.UNMASK_UNION: shared * speed.rebuild
        + uniting * shared * speed.item
        + uniting * union_mask
        + lost_union * uniting * (speed.agreement + union_mask)
        + indices * speed.sketch_out,
        Exchange.UNION: asking * (union + (asking - 1) * asked) * _BIT
        + asking * sent.down[Exchange.SUBMODEL] * speed.encode,
        Exchange.SUBMODEL: read_up(Exchange.SUBMODEL, updating)
        + updating * sent.update_words * speed.mask_z32
        + asking * sent.down[Exchange.SUBMODEL] * speed.encode,
        Exchange.UNMASK_UPDATE: asking * speed.rebuild
        + updating * asking * speed.item
        + updating * (update_mask + own_words * speed.mask_rows)
        + lost_update * updating * (speed.agreement + update_mask + pair_words * speed.mask_rows)
        + sum(one.union * table.width for table, one in summed) * speed.quantize,
    }
    return Seconds(client, server)


def memory(settings: PlanSettings, heard: Mapping[str, int], rows: RoundRows, sent: Traffic) -> Memory:
    """Predict the memory of the exchange that holds the most. A server holds all downloads at once."""
    word, asking = ring_named(settings.ring).word_bytes, heard[Exchange.UNION]
    summed = [(table, rows.tables[table.name]) for table in settings.model.summed]
    asked, union = (sum(getattr(one, name) for _, one in summed) for name in ("asked", "union"))
    dense = settings.model.dense_words + 2 * settings.bins
    asked_words = dense + sum(one.asked * table.words for table, one in summed)
    union_words = dense + sum(one.union * table.words for table, one in summed)
    masked, submodel = sent.up[Exchange.INBOUND], sent.down[Exchange.SUBMODEL]
    # The submodel as it came and as numbers, who asked for what, the update in double precision and words.
    updating = 2 * submodel + max(asking - 1, 1) * asked + 16 * dense + 2 * word * asked_words
    server_union = 2 * masked + 4 * heard[Exchange.INBOUND] * sent.down[Exchange.INBOUND]
    server_update = asking * (union + submodel) + 2 * word * union_words + 8 * union_words
    return Memory(max(4 * masked, updating), max(server_union, server_update))


@dataclass(frozen=True)
class Plan:
    settings: PlanSettings
    heard: dict[str, int]
    rows: RoundRows
    traffic: Traffic
    seconds: Seconds
    memory: Memory

    @property
    def bytes_up(self) -> float:
        return sum(self.traffic.up.values())

    @property
    def bytes_down(self) -> float:
        return sum(self.traffic.down.values())

    @property
    def full_model_bytes(self) -> float:
        """A client of full-model secure learning moves so much in a round: every parameter, down and up."""
        model = self.settings.model
        return 8.0 * (model.dense + sum(table.rows * table.width for table in model.tables))

    def epsilon(self, rounds: int) -> float:
        return self.settings.privacy.epsilon(rounds)


def make_plan(settings: PlanSettings, speeds: Speeds | None = None) -> Plan:
    """Predict a round. ``speeds`` are measured on this machine where they are not given."""
    heard = settings.heard()
    rows = expected_rows(settings, heard)
    sent = traffic(settings, heard, rows)
    seconds = cpu(settings, heard, rows, sent, speeds or measure(settings.clients, settings.needed))
    return Plan(settings, heard, rows, sent, seconds, memory(settings, heard, rows, sent))


def rounds_per_day(fleet: int, clients: int, period_days: float, exposures: int = 1) -> float:
    """Count the rounds a fleet can fill in a day if each client takes part in ``exposures`` per period."""
    if fleet < clients or not period_days > 0 or exposures < 1:
        raise ParameterError(
            f"a fleet of {fleet} for rounds of {clients}, a period of {period_days:g} days and {exposures} "
            "rounds in it: the fleet fills at least one round, and the others are positive"
        )
    return fleet * exposures / (clients * period_days)
