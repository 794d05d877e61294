"""What a client insists on, whoever carries its messages: declared, checked and explained here only.

``sfsl join`` makes its flags of it, a Flower node its configuration, ``sfsl.join`` takes it as it is. Privacy
parameters and limits are the client's own; no server can change them.
"""

import math
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import InputError
from sfsl.privacy import PRESETS, Budget, Calendar, IndexPrivacy
from sfsl.rounds import RoundPolicy
from sfsl.secagg import Policy
from sfsl.settings.sections import explained

# As servers count them, so that a client's period and a server's of the same length are the same.
PERIODS_FROM = date(1970, 1, 1)
_MOST_WORDS = 1 << 25  # of a sum: 128 MiB at four bytes


@explained
class Terms(Checked, frozen=True, rename="kebab"):
    """What a client insists on. A round that asks for more goes on without it.

    roster: Public keys of all clients, one a line: insist on active mode, and on these.
    privacy: How it answers which rows it has: cpp1 to cpp5.
    period_days: Days in a period; fixed with the folder.
    exposures: Rounds in a period. Epsilon does not cover what more of them show.
    epsilon: Epsilon per index over all periods, after which it takes no more part.
    least_cohort: Decline rounds of fewer clients.
    least_threshold: Decline rounds that fewer can open.
    least_contributors: Decline rounds that open rows of fewer clients.
    max_clip: Decline updates clipped at more than this.
    max_rows: Decline submodels of more rows.

    >>> import sfsl
    >>> careful = sfsl.Terms(privacy="cpp3", least_cohort=50, exposures=1, period_days=30)
    >>> careful.index_privacy.epsilon_infinity < sfsl.Terms().index_privacy.epsilon_infinity
    True
    >>> sfsl.Terms(max_clip=0)
    Traceback (most recent call last):
    sfsl.errors.InputError: max-clip 0: a number above 0
    """

    roster: str = ""
    privacy: Literal["cpp1", "cpp2", "cpp3", "cpp4", "cpp5"] = "cpp2"
    period_days: Annotated[int, Meta(ge=1, le=3650)] = 7
    exposures: Annotated[int, Meta(ge=0)] = 1
    epsilon: Annotated[float, Meta(ge=0)] = math.inf
    least_cohort: Annotated[int, Meta(ge=2, le=512)] = 3
    least_threshold: Annotated[int, Meta(ge=2, le=512)] = 3
    least_contributors: Annotated[int, Meta(ge=1, le=512)] = 2
    max_clip: Annotated[float, Meta(gt=0)] = 10.0
    max_rows: Annotated[int, Meta(ge=1)] = 10**6

    def __post_init__(self) -> None:
        if self.privacy not in PRESETS:
            raise InputError(f"privacy {self.privacy!r}: there are {', '.join(PRESETS)}")
        # Spelled so that NaN, which is neither above nor below anything, is refused too.
        if not self.epsilon >= 0:
            raise InputError(f"epsilon {self.epsilon:g}: a number from 0 up; without it there is no limit")
        if not self.max_clip > 0:
            raise InputError(f"max-clip {self.max_clip:g}: a number above 0")
        super().__post_init__()

    @property
    def index_privacy(self) -> IndexPrivacy:
        """How it answers which rows it has."""
        return PRESETS[self.privacy]

    @property
    def budget(self) -> Budget:
        """What it may give away in a period and for ever."""
        return Budget(self.index_privacy.epsilon_infinity, self._most_epsilon, self.exposures)

    @property
    def _most_epsilon(self) -> float:
        return self.epsilon

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
        )
        return RoundPolicy(session=session, max_clip=self.max_clip, max_rows=self.max_rows)

    @property
    def roster_file(self) -> Path | None:
        """The list of all clients, where it insists on active mode."""
        return Path(self.roster).expanduser() if self.roster else None
