"""Rounds and unions on the real masked protocol, each measured once: several targets show the same ones.

What was measured stands in ``rounds.csv`` and ``unions.csv`` with all its settings, so a target that was
stopped goes on after its last round, and a larger scale takes over what a smaller one has.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from sfsl.rounds.exchanges import Exchange
from sfsl_research.bench.round import bench_round, round_memory
from sfsl_research.bench.union import bench_union
from sfsl_research.reproduce.paper import SCHEMES
from sfsl_research.reproduce.scales import Scale
from sfsl_research.reproduce.sheets import read_sheet, write_sheet
from sfsl_research.reproduce.target import Job

ROUNDS, UNIONS = "rounds.csv", "unions.csv"
_MIB = 2**20
# The exchanges in which the server sums updates, for the paper's figure of dropouts.
_SUMMING = (Exchange.SUBMODEL, Exchange.UNMASK_UPDATE)


class Asked(msgspec.Struct, frozen=True):
    """A round that a figure needs; of several runs the median counts."""

    scheme: str
    clients: int
    dropout: float = 0.0
    memory: bool = False


class RoundRow(msgspec.Struct, frozen=True):
    """One round, measured. Peaks are of one party's own allocations, ``bare`` that of an idle process."""

    scheme: str
    clients: int
    dropout: float
    rows: int
    set_size: int
    dense: int
    seed: int
    survivors: int
    rows_asked: float
    mib_up: float
    mib_down: float
    client_seconds: float
    server_seconds: float
    summing_seconds: float
    client_peak_mib: float | None = None
    server_peak_mib: float | None = None
    bare_mib: float | None = None

    @property
    def mib(self) -> float:
        return self.mib_up + self.mib_down


class UnionRow(msgspec.Struct, frozen=True):
    clients: int
    dropout: float
    domain: int
    set_size: int
    seed: int
    encoding: str
    union_size: int
    mib: float
    client_seconds: float
    server_seconds: float


Measured = TypeVar("Measured", RoundRow, UnionRow)


def by_cohort(job: Job) -> list[Asked]:
    """Every scheme of the paper with every size of cohort."""
    return [Asked(scheme, clients) for clients in job.scale.clients for scheme in SCHEMES]


def measure_rounds(job: Job, wanted: Sequence[Asked]) -> dict[Asked, RoundRow]:
    """Each as the median of its runs; those that are there already take no time."""
    path = job.out / ROUNDS
    known = {_key_of(row): row for row in read_sheet(path, RoundRow)}
    runs = [
        (asked, seed) for asked in wanted for seed in _seeds(job, once=asked.scheme == "sfl" or asked.memory)
    ]
    for number, (asked, seed) in enumerate(runs):
        job.progress(_named(asked), number, len(runs))
        key = _key(job.scale, asked, seed)
        if key not in known:
            known[key] = _round(job.scale, asked, seed)
            write_sheet(path, RoundRow, list(known.values()))
        if asked.memory and known[key].client_peak_mib is None:
            known[key] = msgspec.structs.replace(known[key], **_peaks(job.scale, asked, seed))
            write_sheet(path, RoundRow, list(known.values()))
    job.progress("", len(runs), len(runs))
    return {
        asked: _median(
            known[_key(job.scale, asked, seed)]
            for seed in _seeds(job, once=asked.scheme == "sfl" or asked.memory)
        )
        for asked in wanted
    }


def measure_unions(job: Job, wanted: Sequence[tuple[int, float]]) -> dict[tuple[int, float], UnionRow]:
    """By clients and dropout; the domain is that of the scale."""
    path, sizes = job.out / UNIONS, job.scale.sizes
    known = {_union_key(row): row for row in read_sheet(path, UnionRow)}
    seeds = _seeds(job)
    runs = [(*one, sizes.rows, sizes.set_size, seed) for one in wanted for seed in seeds]
    for number, key in enumerate(runs):
        clients, dropout, domain, set_size, seed = key
        job.progress(f"union of {clients} clients, {dropout:.0%} vanish", number, len(runs))
        if key not in known:
            found = bench_union(clients, domain, set_size, sizes.unique, dropout=dropout, seed=seed)
            known[key] = UnionRow(mib=found["client_mib"], **{name: found[name] for name in _COPIED})
            write_sheet(path, UnionRow, list(known.values()))
    job.progress("", len(runs), len(runs))
    return {one: _median(known[(*one, sizes.rows, sizes.set_size, seed)] for seed in seeds) for one in wanted}


_COPIED = tuple(name for name in UnionRow.__struct_fields__ if name != "mib")


def _seeds(job: Job, *, once: bool = False) -> range:
    """A full-model round takes a minute, and memory does not vary: one run of each is enough."""
    return range(job.seed, job.seed + (1 if once else job.scale.repeats))


def _round(scale: Scale, asked: Asked, seed: int) -> RoundRow:
    sizes = scale.sizes_of(asked.scheme, asked.clients)
    privacy, encoding = _as_settings(asked.scheme)
    found = bench_round(
        sizes,
        privacy=privacy,
        encoding=encoding,
        dropout=asked.dropout,
        dropout_before="update",
        seed=seed,
    )
    return RoundRow(
        scheme=asked.scheme,
        clients=asked.clients,
        dropout=asked.dropout,
        rows=sizes.rows,
        set_size=sizes.set_size,
        dense=sizes.dense,
        seed=seed,
        survivors=found["survivors"],
        rows_asked=found["rows_asked"] + found["categories_asked"],
        mib_up=found["client_bytes_up"] / _MIB,
        mib_down=found["client_bytes_down"] / _MIB,
        client_seconds=found["client_seconds"],
        server_seconds=found["server_seconds"],
        summing_seconds=sum(found["exchanges"][one]["server_seconds"] for one in _SUMMING),
    )


def _peaks(scale: Scale, asked: Asked, seed: int) -> dict[str, float | None]:
    """Under tracing, which would spoil the seconds."""
    privacy, encoding = _as_settings(asked.scheme)
    sizes = scale.sizes_of(asked.scheme, asked.clients)
    found = round_memory(sizes, privacy=privacy, encoding=encoding, seed=seed)
    return {
        "client_peak_mib": _mib(found["client_peak_bytes_max"]),
        "server_peak_mib": _mib(found["server_peak_bytes"]),
        "bare_mib": _mib(found["bare_process_bytes"]),
    }


def _as_settings(scheme: str) -> tuple[str, str]:
    """Privacy and encoding: in full-model learning everyone asks for every row."""
    return ("cpp5", "whole") if scheme == "sfl" else (scheme, "auto")


def _key(scale: Scale, asked: Asked, seed: int) -> tuple[object, ...]:
    sizes = scale.sizes_of(asked.scheme, asked.clients)
    return asked.scheme, asked.clients, asked.dropout, sizes.rows, sizes.set_size, sizes.dense, seed


def _key_of(row: RoundRow) -> tuple[object, ...]:
    return row.scheme, row.clients, row.dropout, row.rows, row.set_size, row.dense, row.seed


def _median(rows: Iterable[Measured]) -> Measured:
    """The first run, with the median of all in each figure that was measured."""
    runs = list(rows)
    figures = {
        name: median(known)
        for name in runs[0].__struct_fields__
        if isinstance(getattr(runs[0], name), float)
        and (known := [value for run in runs if (value := getattr(run, name)) is not None])
    }
    return msgspec.structs.replace(runs[0], **figures)


def _union_key(row: UnionRow) -> tuple[int, float, int, int, int]:
    return row.clients, row.dropout, row.domain, row.set_size, row.seed


def _named(asked: Asked) -> str:
    text = f"{asked.scheme}, {asked.clients} clients"
    return text + (f", {asked.dropout:.0%} vanish" if asked.dropout else "") + (", memory" * asked.memory)


def _mib(size: int | None) -> float | None:
    return None if size is None else size / _MIB
