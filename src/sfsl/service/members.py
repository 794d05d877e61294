"""Who is in a round: how many and how long they are waited for, with keys that are fit for use, once in a
period, and not while left out."""

import math
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import KW_ONLY, dataclass, field

from sfsl.crypto.secret import require_contributory
from sfsl.errors import ConflictingMessage, InvalidMessage, ParameterError, UnexpectedSender
from sfsl.rounds.exchanges import HOT, SUMS, TRAINS
from sfsl.rounds.params import RoundRules
from sfsl.secagg.messages import Keys, require_keys
from sfsl.service.messages import CheckIn
from sfsl.service.registry import Registry

DAY_MS = 86_400_000
FIRST_REST_SECONDS = 600.0
LONGEST_REST_SECONDS = 86_400.0
_RESTS = "secrets that this client shared ended a round; it is left out of rounds for a while"


@dataclass(frozen=True)
class ServiceSettings:
    """``cohort`` clients are in a round, or at least ``min_cohort`` after ``check_in_seconds``.

    ``largest_set`` is the most rows that a client may have; the union is planned for the worst case of it.
    ``period_days`` 0 sets no limit on how often a client is invited. ``most_clients`` may wait at a time.
    After round ``rounds`` the server stops; 0 is never. ``grace_seconds``: how long a round may go on when
    the server is told to stop.
    """

    rules: RoundRules
    cohort: int
    min_cohort: int
    largest_set: int
    check_in_seconds: float = 60.0
    phase_seconds: float = 60.0
    training_seconds: float = 600.0
    poll_seconds: float = 25.0
    grace_seconds: float = 30.0
    period_days: int = 1
    most_clients: int = 10_000
    rounds: int = 0

    def __post_init__(self) -> None:
        threshold = self.rules.threshold
        if not 2 <= self.min_cohort <= self.cohort:
            raise ParameterError(
                f"a cohort of {self.min_cohort} at least and {self.cohort} at most: 2 or more, in this order"
            )
        if self.cohort > (planned := self.rules.update.rows.cohort):
            raise ParameterError(f"a cohort of {self.cohort}, but sums are planned for {planned} clients")
        if threshold is not None and not self.cohort // 2 < threshold <= self.min_cohort:
            raise ParameterError(
                f"a threshold of {threshold}: more than half of the largest cohort ({self.cohort}) and "
                f"no more than the smallest ({self.min_cohort})"
            )
        if self.most_clients < self.cohort:
            raise ParameterError(f"{self.most_clients} may wait, which is fewer than a cohort")

    def period(self, now_ms: int) -> int | None:
        """Return the number of the period that this moment is in; None where there are none."""
        return now_ms // (self.period_days * DAY_MS) if self.period_days else None

    def deadline(self, exchange: str) -> float:
        """Return the seconds that clients have for their answer."""
        trains = TRAINS if self.rules.hot is None else HOT.trains
        return self.training_seconds if exchange == trains else self.phase_seconds


def admit_keys(
    client: str,
    keys: Keys,
    identities: Mapping[str, bytes] | None = None,
    taken: Set[bytes] = frozenset(),
    *,
    sums: int = SUMS,
) -> frozenset[bytes]:
    """Return the public keys of a client's sound check-in to a session of so many ``sums``; ``identities``
    are given in active mode, by name. Whatever could keep a round from going on is refused here, where it
    costs its sender alone: also a key that is among those ``taken`` by others."""
    if keys.client != client:
        raise UnexpectedSender(f"client {client} checks in with keys in another name")
    require_keys(keys, sums, identities)
    publics = (keys.channel, *keys.masks)
    for public in publics:
        require_contributory(public)
    if len(set(publics)) != len(publics):
        raise ConflictingMessage(f"client {client} uses a key twice; every check-in has new ones")
    if not taken.isdisjoint(publics):
        raise ConflictingMessage(f"client {client} checks in with a public key that is there already")
    return frozenset(publics)


def admit_check_in(
    client: str,
    message: CheckIn,
    model_digest: bytes,
    identities: Mapping[str, bytes] | None,
    taken: Set[bytes] = frozenset(),
    *,
    sums: int = SUMS,
) -> frozenset[bytes]:
    """Return the public keys of a sound check-in to a deployment, which must be for its model."""
    if message.model != model_digest:
        raise InvalidMessage("a check-in for another model than this server trains")
    return admit_keys(client, message.keys, identities, taken, sums=sums)


@dataclass(eq=False)
class Members:
    """Knows who had a turn in this period, as the ``registry`` has it, and who is left out for a while.
    ``clock`` counts seconds, ``today`` milliseconds since 1970, which periods are cut from. ``also_bars``
    says why someone may not be in a round for another reason, such as the log's. Being left out is forgotten
    when the server starts again: it keeps rounds going, and punishes nobody."""

    settings: ServiceSettings
    registry: Registry
    _: KW_ONLY
    clock: Callable[[], float]
    today: Callable[[], int]
    first_rest: float = FIRST_REST_SECONDS
    also_bars: Callable[[str], str] = lambda _: ""
    _invited: tuple[int, set[str]] | None = None
    _rests: dict[str, tuple[int, float]] = field(default_factory=dict)  # how often so far, and until when

    def had_their_turn(self) -> Collection[str]:
        """Return who was invited in this period, or is about to be."""
        period = self.settings.period(self.today())
        if period is None:
            return ()
        if self._invited is None or self._invited[0] != period:
            self._invited = (period, set(self.registry.invited(period)))
        return self._invited[1]

    def take_turns(self, clients: Collection[str]) -> int | None:
        """Note that these are about to be invited; return the period in which it counts. It counts from now
        on, not from when the registry has it: someone may check in again before that."""
        self.had_their_turn()
        if self._invited is None:
            return None
        self._invited[1].update(clients)
        return self._invited[0]

    @property
    def period_ends(self) -> float | None:
        """When the next period begins, in seconds since 1970; None where there are none."""
        length, now = self.settings.period_days * DAY_MS, self.today()
        return (now + -now % length) / 1000 if length else None

    def bars(self, client: str) -> str:
        """Return why this client may not be in a round now; empty if it may."""
        if client in self.had_their_turn():
            days = -self.today() % (self.settings.period_days * DAY_MS) / DAY_MS
            return f"this client was invited in this period already; the next begins in {days:.2f} days"
        if client in self._rests and self.clock() < self._rests[client][1]:
            return _RESTS
        return self.also_bars(client)

    def leave_out(self, client: str) -> float:
        """Leave out whoever ended a round for all, twice as long each time; return for how many seconds."""
        times = self._rests.pop(client, (0, 0.0))[0] + 1
        longest = max(LONGEST_REST_SECONDS, self.first_rest)
        seconds = min(longest, self.first_rest * 2.0 ** (times - 1))
        self._rests[client] = (times, self.clock() + seconds)
        if len(self._rests) > self.settings.most_clients and math.isfinite(seconds):
            del self._rests[next(iter(self._rests))]
        return seconds
