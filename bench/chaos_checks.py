"""What must hold after a chaos run, from what was written down: logs, store, ledgers, memory.

Each check returns what violates it, in words; nothing is a good sign.
"""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from sfsl.privacy.ledger import Ledger
from sfsl.rounds.record import RoundRecord

_BEGUN = re.compile(r"^(\S+ \S+) INFO round (\d+) \(([0-9a-f]{32})\): (\d+) clients invited.*$", re.MULTILINE)
_ENDED = re.compile(r"^\S+ \S+ (?:INFO|WARNING) round (\d+) (committed|aborted): (.+)$", re.MULTILINE)
_BAD = re.compile(r"^.*(?:Traceback|mistake of this program|ERROR|CRITICAL).*$", re.MULTILINE)
# A process is flat if its median of the last quarter of its rounds is at most so much above the first's.
FLAT_SHARE, FLAT_MIB = 0.05, 4.0
_LEAST_ROUNDS = 8  # of a server process, for quarters to mean something
_SEEN_LATE = 0.5  # seconds; a busy machine reads the server's log a little after a client has its message
_WARM_UP = 2  # rounds in which a process takes what it then keeps


@dataclass(frozen=True)
class Begun:
    """A round that was begun: when, its number, its id, how many were invited."""

    at: float
    number: int
    id: str
    cohort: int


@dataclass
class Evidence:
    """``told``: what each client said, as (when, kind, round). ``vanished``: when it went away by plan, to
    begin anew. ``waits``: from when until when it waited to try again, as it said. ``exposed``: how often its
    memory was asked for its set. ``acknowledged``: the server's count. ``server``: memory of each of its
    processes, and ``swarm`` of the clients', as (when, MiB). ``seen``: when a round, by its id, was seen to
    begin by a clock that is right. ``damaged``: starts of the server, from 1, before which its metrics were
    damaged."""

    rounds: int
    log: str
    kills: Sequence[float]
    lines: Sequence[RoundRecord]
    store_round: int
    told: Mapping[str, Sequence[tuple[float, str, int | None]]]
    whole: Mapping[str, int]
    exposed: Mapping[str, int]
    ledgers: Mapping[str, Ledger]
    acknowledged: Mapping[str, int]
    server: Sequence[Sequence[tuple[float, float]]]
    swarm: Sequence[tuple[float, float]]
    seen: Mapping[str, float] = field(default_factory=dict)
    vanished: Mapping[str, Sequence[float]] = field(default_factory=dict)
    waits: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    damaged: Sequence[int] = ()
    unhandled: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    def begun(self) -> list[Begun]:
        return [
            Begun(self.seen.get(name) or _moment(at), int(number), name, int(cohort))
            for at, number, name, cohort in _BEGUN.findall(self.log)
        ]


def _moment(at: str) -> float:
    return datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def commits(found: Evidence) -> list[str]:
    """No commit is lost or doubled: store, metrics, log and what clients were told agree."""
    wrong = []
    numbers = [line.round for line in found.lines]
    if numbers != list(range(1, found.rounds + 1)):
        wrong.append(f"metrics.jsonl has rounds {numbers[:3]} … {numbers[-3:]}, not 1 to {found.rounds}")
    if found.store_round != found.rounds:
        wrong.append(f"the store is at round {found.store_round}, not {found.rounds}")
    logged: dict[int, list[str]] = {}
    for number, how, _ in _ENDED.findall(found.log):
        logged.setdefault(int(number), []).append(how)
    ended = {line.round: "committed" if line.aborted is None else "aborted" for line in found.lines}
    for line in found.lines:
        if line.lost:  # the log is all that is left of it
            ended[line.round] = logged.get(line.round, ["committed"])[0]
    for number, ends in logged.items():
        if ends != [ended.get(number)]:
            wrong.append(f"round {number} is {ended.get(number)}, but the log says {', '.join(ends)}")
    ids = [one.id for one in found.begun()]
    if len(set(ids)) != len(ids):
        wrong.append("a round id was used twice")
    last = {one.number: one.at for one in found.begun()}  # a round that was cut short is begun anew
    for name, events in found.told.items():
        for at, kind, number in events:
            if kind == "aborted" and at < last.get(number or 0, 0.0):
                continue
            if kind in ("committed", "aborted") and number is not None and ended.get(number) != kind:
                wrong.append(f"{name} was told that round {number} is {kind}, it is {ended.get(number)}")
    return wrong


def explained(found: Evidence) -> list[str]:
    """Every aborted round has its reason in the log; one without an end was cut short by a kill."""
    wrong = []
    reasons = {int(number): why for number, how, why in _ENDED.findall(found.log) if how == "aborted"}
    for line in found.lines:
        if line.aborted is not None and (not line.aborted or line.aborted not in reasons.get(line.round, "")):
            wrong.append(f"round {line.round} aborted, and the log does not say why")
    begun = found.begun()
    ends = [(int(number), how) for number, how, _ in _ENDED.findall(found.log)]
    for place, one in enumerate(begun):
        last = place + 1 == len(begun)
        until = float("inf") if last else begun[place + 1].at
        killed = any(one.at <= kill <= until for kill in found.kills)
        if not killed and not any(number == one.number for number, _ in ends):
            wrong.append(f"round {one.number} ({one.id}) has no end, and nobody killed the server")
    return wrong


def in_step(found: Evidence) -> list[str]:
    """A client checks in once for each round: no two rounds begin without it noticing the first, but those
    that begin while it waits, as it says, before it tries again. One that vanishes while it checks in, when
    the server knows of it and it does not, begins anew from there. What it is invited to it has noticed: it
    may hear that it is checked in when the round has begun."""
    wrong, begun = [], found.begun()
    for name, events in found.told.items():
        checked_in = [at for at, kind, _ in events if kind == "checked-in"]
        times = sorted([*checked_in, *found.vanished.get(name, ())])
        waits = found.waits.get(name, ())
        noticed = _noticed(begun, events)
        if not checked_in:
            wrong.append(f"{name} never checked in")
            continue
        for early, late in zip(times, [*times[1:], float("inf")], strict=True):
            between = [one for one in begun if early < one.at < late]
            # One round it was in, and one that it missed.
            missed = [
                one
                for one in between[1:]
                if one.id not in noticed and not any(start < one.at < end for start, end in waits)
            ]
            if len(missed) > 1:
                numbers = ", ".join(str(one.number) for one in missed)
                wrong.append(f"{name} slept through {len(missed)} rounds ({numbers})")
    return wrong


def _noticed(begun: Sequence[Begun], events: Sequence[tuple[float, str, int | None]]) -> set[str]:
    """The ids of the rounds that a client was invited to; a number that was begun again is told by when."""
    noticed = set()
    for at, kind, number in events:
        known = [one.id for one in begun if one.number == number and one.at < at + _SEEN_LATE]
        if kind == "invited" and known:
            noticed.add(known[-1])
    return noticed


def charged(found: Evidence) -> list[str]:
    """Exposures: each is debited on disk before it leaves, and the server counts none that it did not get."""
    wrong = []
    for name, ledger in found.ledgers.items():
        exposed, counted, whole = found.exposed[name], found.acknowledged[name], found.whole.get(name, 0)
        if ledger.begun != exposed or ledger.exposures != exposed:
            wrong.append(f"{name}: {exposed} sets were made, its ledger has {ledger.begun}")
        if ledger.lost:
            wrong.append(f"{name} took its state for an old copy")
        if not whole <= counted <= exposed:
            wrong.append(f"{name}: in {whole} whole rounds, {exposed} exposures, the server counts {counted}")
    return wrong


def mended(found: Evidence) -> list[str]:
    """Metrics that were damaged are mended at the next start, which says so in one line; and no line is lost
    otherwise."""
    wrong = []
    starts = dict(enumerate(found.log.split("=== start ")))
    for number in found.damaged:
        told = starts.get(number, "").count(" is mended: ")
        if told > 1:
            wrong.append(f"start {number} says {told} times what it mended")
    if not found.damaged and any(line.lost for line in found.lines):
        wrong.append("lines were lost, and nobody damaged the metrics")
    return wrong


def handled(found: Evidence) -> list[str]:
    """No unhandled exception, on either side."""
    return [
        *(f"server: {line}" for line in _BAD.findall(found.log)),
        *(f"clients: {one}" for one in found.unhandled),
        *(f"{name} gave up: {why}" for name, why in found.failed.items()),
    ]


def flat(found: Evidence) -> list[str]:
    """Memory does not grow: medians of the first and the last quarter of a process's rounds."""
    return [
        f"{name} grew from {first:.1f} to {last:.1f} MiB"
        for name, (first, *_, last) in quarters(found).items()
        if last > first * (1 + FLAT_SHARE) + FLAT_MIB
    ]


def quarters(found: Evidence) -> dict[str, list[float]]:
    """Median MiB in each quarter of its rounds, of the clients and of each server process that ran for long.
    Nonces are remembered for four minutes, so a server takes some more for so long."""
    begun = [one.at for one in found.begun()]
    processes = {"clients": found.swarm}
    processes |= {f"server {number}": samples for number, samples in enumerate(found.server, 1)}
    medians = {}
    for name, samples in processes.items():
        ends = [samples[0][0], samples[-1][0]] if samples else [0.0, 0.0]
        mine = [at for at in begun if ends[0] <= at <= ends[1]][_WARM_UP:]
        if len(mine) < _LEAST_ROUNDS:
            continue
        cuts = [*(mine[len(mine) * quarter // 4] for quarter in range(4)), ends[1]]
        medians[name] = [
            statistics.median(mib for at, mib in samples if start <= at <= end)
            for start, end in pairwise(cuts)
        ]
    return medians


CHECKS: dict[str, Callable[[Evidence], list[str]]] = {
    "no commit lost or doubled": commits,
    "every end explained": explained,
    "no client out of step for longer than a round": in_step,
    "exposures charged on both sides": charged,
    "damage mended and told": mended,
    "no unhandled exception": handled,
    "memory flat": flat,
}


def verdicts(found: Evidence) -> dict[str, list[str]]:
    return {name: check(found) for name, check in CHECKS.items()}
