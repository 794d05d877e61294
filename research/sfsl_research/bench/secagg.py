"""What a secure sum costs, next to the raw stream cipher it cannot be faster than."""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from sfsl.crypto.ring import CHUNK_BYTES, Ring, Words, ring_named
from sfsl.crypto.secret import Secret
from sfsl.errors import InputError
from sfsl.secagg import aggregate_rows
from sfsl.secagg.facade import Aggregate, AggregateRows, Session
from sfsl.secagg.masking import Masker, Selection
from sfsl.secagg.messages import Layout, SumParams, TableShape

_REPEATS = 9


def bench_secagg(
    clients: int,
    length: int,
    *,
    dropout: float = 0.0,
    neighbours: int | None = None,
    rows: int | None = None,
    share: float = 0.1,
    ring: str = "z32",
    active: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Run one sum, check it against the plain sum, and measure masks against the cipher alone.

    With ``rows``, ``length`` is the width of a row of a table of that many rows, of which each client
    asks for a random ``share``.
    """
    if not 0 <= dropout < 1:
        raise InputError(f"--dropout {dropout} is not a fraction below 1")
    if rows is not None and not 0 < share <= 1:
        raise InputError(f"--share {share} is not a fraction in (0, 1]")
    rng = np.random.default_rng(seed)
    chosen = ring_named(ring)
    names = [f"client-{number:05d}" for number in range(clients)]
    dropped = set(rng.choice(names, round(dropout * clients), replace=False).tolist()) if clients else set()
    result: Aggregate | AggregateRows
    start = time.perf_counter()
    if rows is None:
        # Each client has its own stretch of one array, so that thousands of vectors need no room.
        values = _values(rng, chosen, (length + clients,))
        vectors = {name: values[start : start + length] for start, name in enumerate(names)}
        begin = time.perf_counter()
        result = _aggregate(vectors, length, ring, neighbours, active, dropped)
        _check(result.total, _plain_sum(chosen, (vectors[name] for name in sorted(result.survivors)), length))
        uploaded = float(length)
    else:
        if neighbours is not None:
            raise InputError("--rows needs the complete graph: leave --neighbours out")
        asked = {name: np.flatnonzero(rng.random(rows) < share) for name in names}
        blocks = {name: _values(rng, chosen, (len(asked[name]), length)) for name in names}
        begin = time.perf_counter()
        result = aggregate_rows(
            asked, blocks, rows, ring=ring, wrap=True, active=active, dropped_before_upload=dropped
        )
        uploaded = float(np.mean([len(asked[name]) * length for name in result.survivors]))
    wall = time.perf_counter() - begin
    cost = result.cost
    alive = sorted(result.survivors)
    peers = result.params.neighbours or clients - 1
    if rows is None:
        measured = _masks_and_floor(chosen, Layout(dense=length), [()] * (1 + peers))
    else:
        own = round(uploaded / length)
        shared = [np.flatnonzero(rng.random(own) < share) for _ in range(peers)]
        layout = Layout(dense=0, tables=(TableShape(rows=own, width=length),))
        measured = _masks_and_floor(chosen, layout, [(None,), *((some,) for some in shared)])
    return {
        "clients": clients,
        "length": length,
        "dropout": dropout,
        "neighbours": result.params.neighbours,
        "threshold": result.params.threshold,
        "rows": rows,
        "share": share if rows is not None else None,
        "min_contributors": result.min_contributors if isinstance(result, AggregateRows) else None,
        "ring": ring,
        "active": active,
        "seed": seed,
        "client_seconds": median(cost.client_seconds[name] for name in alive),
        "client_seconds_max": max(cost.client_seconds[name] for name in alive),
        **measured,
        "server_seconds": cost.server_seconds,
        "client_bytes_up": round(float(np.mean([cost.client_bytes_up[name] for name in alive]))),
        "client_bytes_down": round(float(np.mean([cost.client_bytes_down[name] for name in alive]))),
        "plain_bytes": round(uploaded * chosen.word_bytes),
        "protocol_seconds": wall,
        "wall_seconds": time.perf_counter() - start,
    }


def _aggregate(
    vectors: Mapping[str, Words],
    length: int,
    ring: str,
    neighbours: int | None,
    active: bool,
    dropped: Collection[str],
) -> Aggregate:
    """What ``sfsl.aggregate`` does, without a copy of all vectors."""
    one = SumParams(label="sum", ring=ring, min_contributors=1, layout=Layout(dense=length))  # type: ignore[arg-type]
    session = Session(vectors, one, None, None, neighbours, active)
    opened = session.sum({name: ((), vector, ()) for name, vector in vectors.items()}, ((), dropped, ()))
    return Aggregate(opened.dense, frozenset(opened.survivors), session.meter.cost, session.params)


def _values(rng: np.random.Generator, ring: Ring, shape: tuple[int, ...]) -> Words:
    return rng.integers(0, ring.modulus, shape, dtype=np.uint64).astype(ring.dtype)


def _plain_sum(ring: Ring, vectors: Any, length: int) -> Words:
    total = ring.zeros(length)
    for vector in vectors:
        ring.add(total, vector)
    return total


def _check(total: Words, expected: Words) -> None:
    if not np.array_equal(total, expected):
        raise AssertionError("the secure sum is not the plain sum")


def _masks_and_floor(ring: Ring, layout: Layout, selections: Sequence[Selection]) -> dict[str, float]:
    """The client's masking of one vector, and AES-256-CTR alone on as many bytes, alternating.

    One stream per selection: the self-mask, and one per peer over the rows that both have.
    """
    vector = ring.zeros(layout.words)
    streams = [(Secret(os.urandom(32)), selection) for selection in selections]
    sizes = [ring.word_bytes * _covered(layout, selection) for selection in selections]
    masks: list[float] = []
    floors: list[float] = []
    for _ in range(_REPEATS):
        masks.append(_seconds(lambda: _mask(ring, vector, layout, streams)))
        floors.append(_seconds(lambda: _cipher_only([key for key, _ in streams], sizes)))
    return {
        "client_mask_seconds": median(masks),
        "floor_seconds": median(floors),
        "floor_ratio": median(mask / floor for mask, floor in zip(masks, floors, strict=True)),
        "mask_bytes": sum(sizes),
    }


def _covered(layout: Layout, selection: Selection) -> int:
    rows = zip(layout.tables, selection, strict=True)
    return layout.dense + sum(
        table.width * (table.rows if some is None else len(some)) for table, some in rows
    )


def _mask(ring: Ring, vector: Words, layout: Layout, streams: Sequence[tuple[Secret, Selection]]) -> None:
    masker = Masker(ring, vector, layout)
    for key, selection in streams:
        masker.add(key, selection)


def _cipher_only(keys: Sequence[Secret], sizes: Sequence[int]) -> None:
    zeros = memoryview(bytes(CHUNK_BYTES))
    out = memoryview(bytearray(CHUNK_BYTES))
    for key, count in zip(keys, sizes, strict=True):
        stream = Cipher(AES256(key.reveal()), CTR(bytes(16))).encryptor()
        for start in range(0, count, CHUNK_BYTES):
            size = min(CHUNK_BYTES, count - start)
            stream.update_into(zeros[:size], out[:size])


def _seconds(work: Callable[[], None]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
