"""How fast this machine is at what a round consists of: measured here and now, in a fraction of a second."""

import hashlib
from dataclasses import dataclass

import numpy as np

from sfsl.codec import Message
from sfsl.crypto.ring import F31, Z32
from sfsl.crypto.secret import Interpolation, KeyPair, Secret, SystemRandomness, pair_mask_key, seal, split
from sfsl.privacy import PRESETS, Perturber, Tables
from sfsl.rounds.exchanges import CODEC
from sfsl.secagg.masking import Masker
from sfsl.secagg.messages import Layout, MaskedVector, SealedShares, TableShape
from sfsl.secagg.meter import cpu_seconds, mask_seconds
from sfsl.submodel import Quantization
from sfsl.union import choose

_WORDS = 1 << 18
_ROWS, _WIDTH = 1 << 13, 16
_ELEMENTS = 2000


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
