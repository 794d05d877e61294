"""What a client insists on, whoever carries its messages: declared, checked and explained here only.

``sfsl join`` makes its flags of it, a Flower node its configuration, ``sfsl.join`` takes it as it is. Privacy
parameters and limits are the client's own; no server can change them.
"""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import InputError
from sfsl.privacy import PRESETS, Budget, Calendar, IndexPrivacy, rho_for
from sfsl.rounds import RoundPolicy
from sfsl.rounds.params import MAX_BINS, ExactLimits, HotLimits
from sfsl.secagg import Policy
from sfsl.secagg.messages import MAX_CLIENTS
from sfsl.settings.sections import explained

# As servers count them, so that a client's period and a server's of the same length are the same.
PERIODS_FROM = date(1970, 1, 1)
PERIOD_DAYS = 7
EPSILON = 28.0  # ten periods of cpp2
# A server as it comes plans rounds of 100 clients, goes on with 80, and opens no sum of fewer than 54.
LEAST_COHORT = 50
# Of 301 rows, the paper's set, fewer than 0.05 are then left to one client where a tenth vanish.
LEAST_CONTRIBUTORS = 5
# Terms by what makes them give more away: larger numbers, smaller ones, or to allow it at all. The rest is
# about work, or about whom to believe.
MORE = ("hot_epsilon", "hot_delta", "max_marks", "exposures", "epsilon", "score_bins", "max_clip")
LESS = (
    "participations",
    "corruption",
    "period_days",
    "least_cohort",
    "least_contributors",
    "least_set",
)
ALLOWED = ("exact_sums", "dataset_weights", "repeat_samples")
_MOST_WORDS = 1 << 25  # of a sum: 128 MiB at four bytes


@explained
class Terms(Checked, frozen=True, rename="kebab"):
    """What a client insists on. A round that asks for more goes on without it.

    hot_epsilon: What all rounds over hot rows together may cost, as user-level differential privacy with
        hot-delta; 0: no such rounds, inf: also those without noise.
    hot_delta: The chance with which hot-epsilon may not hold.
    participations: Decline rounds so dear that hot-epsilon would not last for so many.
    corruption: Share of a cohort that may collude with the server and add no noise.
    max_marks: Decline surveys that ask for marks of more rows.
    max_megabytes: Decline rounds over hot rows that take more MiB, down and up.
    exact_sums: Take part in exact sums too, the paper's scheme: a server that looks at them finds out who has
        which row.
    roster: Public keys of all clients, one a line: insist on active mode, and on these.
    log: Whom to believe about the log of enrolled clients (sfsl keys log trust): insist on active mode, and
        on cohorts whose members are all in the log.
    privacy: Exact sums: how it answers which rows it has, cpp1 to cpp5.
    period_days: Exact sums: days in a period; fixed with the folder.
    exposures: Exact sums: rounds in a period. Epsilon does not cover what more of them show.
    epsilon: Exact sums: epsilon per index over all periods, after which it takes no more part; inf: no limit.
    repeat_samples: Exact sums: take samples into a new period that an earlier one has exposed. The same
        samples in sum after sum name their owner.
    least_cohort: Decline rounds of fewer clients, and open no sum of fewer.
    least_threshold: Decline rounds that fewer can open; 0: than a little over two thirds of the cohort.
    least_contributors: Exact sums: decline rounds that open rows of fewer clients.
    least_set: Exact sums: decline unions without room for so many rows of each client.
    score_bins: Exact sums, and hot rows without noise: count held-out scores in at most so many bins; 0: no
        scores leave this client.
    dataset_weights: Exact sums: allow weights that tell the server how many samples this client has, in all
        or on a row.
    max_clip: Decline updates clipped at more than this.
    max_rows: Exact sums: decline submodels of more rows.
    patience_hours: Keep on asking for so long where the server's certificate, its clock, its load or a
        signature that is not taken are in the way, then stop with an error; 0: at once, inf: for ever. A
        server that cannot be reached is waited for without end.

    >>> import sfsl
    >>> careful = sfsl.Terms(privacy="cpp3", least_cohort=50, exposures=1, period_days=30)
    >>> careful.index_privacy.epsilon_infinity < sfsl.Terms().index_privacy.epsilon_infinity
    True
    >>> sfsl.Terms().policy.exact, sfsl.Terms(exact_sums=True).policy.exact
    (False, True)
    >>> sfsl.Terms(max_clip=0)
    Traceback (most recent call last):
    sfsl.errors.InputError: max-clip 0: a number above 0
    """

    hot_epsilon: Annotated[float, Meta(ge=0)] = 8.0
    hot_delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    participations: Annotated[int, Meta(ge=1, le=10**6)] = 5
    corruption: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    max_marks: Annotated[int, Meta(ge=1, le=2**24)] = 1024
    max_megabytes: Annotated[float, Meta(gt=0, le=2**20)] = 32.0
    exact_sums: bool = False
    roster: str = ""
    log: str = ""
    privacy: Literal["cpp1", "cpp2", "cpp3", "cpp4", "cpp5"] = "cpp2"
    period_days: Annotated[int, Meta(ge=1, le=3650)] = PERIOD_DAYS
    exposures: Annotated[int, Meta(ge=0)] = 1
    epsilon: Annotated[float, Meta(ge=0)] = EPSILON
    repeat_samples: bool = False
    least_cohort: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)] = LEAST_COHORT
    least_threshold: Annotated[int, Meta(ge=0, le=MAX_CLIENTS)] = 0
    least_contributors: Annotated[int, Meta(ge=1, le=512)] = LEAST_CONTRIBUTORS
    least_set: Annotated[int, Meta(ge=1)] = 64
    score_bins: Annotated[int, Meta(ge=0, le=MAX_BINS)] = 0
    dataset_weights: bool = False
    max_clip: Annotated[float, Meta(gt=0)] = 10.0
    max_rows: Annotated[int, Meta(ge=1)] = 10**6
    patience_hours: Annotated[float, Meta(ge=0)] = 24.0

    def __post_init__(self) -> None:
        if self.privacy not in PRESETS:
            raise InputError(f"privacy {self.privacy!r}: there are {', '.join(PRESETS)}")
        # Spelled so that NaN, which is neither above nor below anything, is refused too.
        if not self.epsilon >= 0:
            raise InputError(f"epsilon {self.epsilon:g}: a number from 0 up, or inf for no limit")
        if not self.max_clip > 0:
            raise InputError(f"max-clip {self.max_clip:g}: a number above 0")
        if not self.hot_epsilon >= 0:
            raise InputError(f"hot-epsilon {self.hot_epsilon:g}: a number from 0 up, or inf for no limit")
        if not self.patience_hours >= 0:
            raise InputError(f"patience-hours {self.patience_hours:g}: a number from 0 up, or inf for ever")
        if not 0 < self.hot_delta < 1:
            raise InputError(f"hot-delta {self.hot_delta:g}: a number between 0 and 1, such as 1e-6")
        super().__post_init__()

    @property
    def index_privacy(self) -> IndexPrivacy:
        """How it answers which rows it has."""
        return PRESETS[self.privacy]

    @property
    def budget(self) -> Budget:
        """What it may give away in a period and for ever."""
        return Budget(
            self.index_privacy.epsilon_infinity,
            self._most_epsilon,
            self.exposures,
            epsilon_hot=self.hot_epsilon,
            delta_hot=self.hot_delta,
            rho_per_round=self._most_rho,
        )

    @property
    def _most_rho(self) -> float:
        """What one round over hot rows may cost."""
        return rho_for(self.hot_epsilon, self.hot_delta) / self.participations

    @property
    def _most_epsilon(self) -> float:
        return self.epsilon

    def loosened(self) -> list[str]:
        """Say which terms give more away than those that clients come with; empty where none does.

        >>> import sfsl
        >>> sfsl.Terms(least_cohort=5, exact_sums=True).loosened()
        ['exact-sums', 'least-cohort 5 (50)']
        """
        usual, found = type(self)(), []
        for field in msgspec.structs.fields(type(self)):
            own, theirs = getattr(self, field.name), getattr(usual, field.name)
            said = f"{field.encode_name} {_short(own)} ({_short(theirs)})"
            match field.name:
                case "privacy":
                    looser = self.index_privacy.epsilon_infinity > usual.index_privacy.epsilon_infinity
                case "least_threshold":
                    looser, said = own > 0, f"{field.encode_name} {own} (two thirds)"
                case "epsilon":
                    looser = self._most_epsilon > usual._most_epsilon
                case name if name in ALLOWED:
                    looser, said = own, field.encode_name
                case name:
                    looser = (name in MORE and own > theirs) or (name in LESS and own < theirs)
            found += [said] if looser else []
        return found

    @property
    def calendar(self) -> Calendar:
        """Its periods."""
        return Calendar(start=PERIODS_FROM, days=self.period_days)

    @property
    def policy(self) -> RoundPolicy:
        """The rounds that it takes part in."""
        session = Policy(
            min_clients=self.least_cohort,
            min_threshold=self.least_threshold,
            min_contributors=self.least_contributors,
            max_words=_MOST_WORDS,
            company=True,
        )
        hot = None
        if self.hot_epsilon:
            hot = HotLimits(
                max_rho=self._most_rho,
                corruption=self.corruption,
                max_marks=self.max_marks,
                max_bytes=int(self.max_megabytes * 2**20),
            )
        return RoundPolicy(
            session=session,
            max_clip=self.max_clip,
            max_rows=self.max_rows,
            exact=self.exact_sums,
            hot=hot,
            limits=ExactLimits(bins=self.score_bins, dataset=self.dataset_weights, least_set=self.least_set),
        )

    @property
    def log_file(self) -> Path | None:
        """Whom it believes about the log, where it insists on one."""
        return Path(self.log).expanduser() if self.log else None

    @property
    def roster_file(self) -> Path | None:
        """The list of all clients, where it insists on active mode."""
        return Path(self.roster).expanduser() if self.roster else None


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
