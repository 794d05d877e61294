"""Simulated clients and what a server sees of their rounds, for the audit.

The rows and the schedule are simulated; the answers come from the perturber under audit. One NumPy
generator drives everything, the clients' randomness too, so that a seed repeats an audit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Indices
from sfsl.crypto.secret import Randomness, Secret
from sfsl.errors import ParameterError
from sfsl.privacy.parameters import IndexPrivacy
from sfsl.privacy.response import KEY_BYTES, Decoys, Perturber, Tables

TABLE = "rows"
ONE_TABLE = Tables(shared=(TABLE,))


class Forgetful(Perturber):
    """Broken on purpose: draws its permanent answers anew in every round."""

    __slots__ = ()

    def answer(self, unions: Mapping[str, ArrayLike], randomness: Randomness) -> dict[str, Bits]:
        forgotten = Perturber(Secret(randomness.bytes(KEY_BYTES)), self._privacy, self._tables, self._real)
        return forgotten.answer(unions, randomness)


class Truthful(Perturber):
    """Broken on purpose: its permanent answers are the truth."""

    __slots__ = ()

    def permanent(self, table: str, rows: Indices) -> Bits:
        return np.isin(rows, self._real[table])


SUBJECTS: Mapping[str, type[Perturber]] = {"sound": Perturber, "forgetful": Forgetful, "truthful": Truthful}


@dataclass(frozen=True)
class Fleet:
    """Clients 0, 1, … and which of the rows that matter (``columns``) each one owns."""

    columns: Indices
    owns: Bits  # clients × columns

    def rows_of(self, client: int) -> Indices:
        rows: Indices = self.columns[self.owns[client]]
        return rows


def make_fleet(clients: int, domain: int, set_size: int, skew: float, rng: np.random.Generator) -> Fleet:
    """Each client owns ``set_size`` of ``domain`` rows, popular ones sooner.

    Popularity is log-normal with standard deviation ``skew``; at 100 clients with 301 of 143,534 rows,
    0.6 gives about the paper's 86.7 % of the union with one owner.
    """
    if not 0 < set_size <= domain or clients < 1 or skew < 0:
        raise ParameterError(f"cannot give each of {clients} clients {set_size} of {domain} rows")
    popularity = np.exp(skew * rng.standard_normal(domain))
    # An exponential race: the first set_size to arrive are a weighted sample without replacement.
    sets = [
        np.argpartition(rng.exponential(size=domain) / popularity, set_size - 1)[:set_size]
        for _ in range(clients)
    ]
    columns = np.unique(np.concatenate(sets)).astype(np.int64)
    owns = np.stack([np.isin(columns, rows) for rows in sets])
    return Fleet(columns, owns)


@dataclass(frozen=True)
class SeenRound:
    """What the server knows after a round: who took part, the union, who asked for what, the counts.

    ``counts`` holds the opened sum of owner weights: how many of those who asked own the row.
    """

    members: Indices
    union: Bits  # columns
    asked: Bits  # members × columns
    counts: Indices  # columns


@dataclass(frozen=True)
class Schedule:
    """Who takes part in which round, and whether each round is in a period of its own."""

    cohorts: Sequence[Indices]
    new_period_each_round: bool = False
    decoys: Decoys | None = None


def random_cohorts(
    fleet: int, cohort: int, rounds: int, rng: np.random.Generator, *, always: int = 0
) -> list[Indices]:
    """Random cohorts; with ``always``, a server that is after the first clients has them in each one."""
    followed = np.arange(always)
    return [
        np.sort(np.append(followed, always + rng.choice(fleet - always, cohort - always, replace=False)))
        for _ in range(rounds)
    ]


def fixed_group(cohort: int, rounds: int, dropout: float, rng: np.random.Generator) -> list[Indices]:
    """The same clients in every round, less those who drop out before the union is opened."""
    return [np.flatnonzero(rng.random(cohort) >= dropout) for _ in range(rounds)]


def play(
    fleet: Fleet,
    schedule: Schedule,
    privacy: IndexPrivacy,
    rng: np.random.Generator,
    subject: type[Perturber] = Perturber,
) -> tuple[Fleet, list[SeenRound]]:
    """Run the rounds. Decoys may bring rows nobody owns, so the fleet returned may have more columns."""

    def make(client: int) -> Perturber:
        return subject(Secret(rng.bytes(KEY_BYTES)), privacy, ONE_TABLE, {TABLE: fleet.rows_of(client)})

    clients = {client: make(client) for client in np.unique(np.concatenate(schedule.cohorts)).tolist()}
    submitted = {
        client: perturber.union_input(schedule.decoys)[TABLE] for client, perturber in clients.items()
    }
    wide = _with_columns(fleet, np.unique(np.concatenate([fleet.columns, *submitted.values()])))
    seen = []
    for members in schedule.cohorts:
        if schedule.new_period_each_round:
            clients.update({client: make(client) for client in members.tolist()})
        union = np.zeros(len(wide.columns), np.bool_)
        for client in members.tolist():
            union[np.searchsorted(wide.columns, submitted[client])] = True
        asked = np.zeros((len(members), len(wide.columns)), np.bool_)
        if union.any():
            for position, client in enumerate(members.tolist()):
                asked[position, union] = clients[client].answer({TABLE: wide.columns[union]}, rng)[TABLE]
        counts = (asked & wide.owns[members]).sum(axis=0)
        seen.append(SeenRound(members, union, asked, counts))
    return wide, seen


def _with_columns(fleet: Fleet, columns: Indices) -> Fleet:
    owns = np.zeros((len(fleet.owns), len(columns)), np.bool_)
    owns[:, np.searchsorted(columns, fleet.columns)] = fleet.owns
    return Fleet(columns, owns)
