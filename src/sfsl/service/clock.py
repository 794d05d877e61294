"""The clock that requests are signed by: a machine's may be set, this one only goes on (spec network 2.4).

It begins with the machine's clock, or where an earlier process of this deployment had come to, if that is
later, and then counts steadily. So a clock that is set back, before a restart or without one, makes no
request new that was taken before, and refuses none that is signed now: clients sign by what this one says.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from sfsl.codec import Message
from sfsl.durable import OWNER_ONLY, Closing, RecordFormat, system_errors_as, write_whole
from sfsl.errors import StateError, StoreError

log = logging.getLogger(__name__)

_AHEAD_MS = 30_000  # written at once: one write for all requests of so long
_NOTED_MS = 1000
_LARGEST = 1024


class _Horizon(Message, frozen=True, tag="signing-clock", omit_defaults=True):
    """No request that was taken claims a later time. ``wall_ms``: what the machine's clock said when this was
    written; earlier versions did not note it."""

    time_ms: int
    wall_ms: int | None = None


_NOTHING = _Horizon(0)
FORMAT = RecordFormat(
    _Horizon,
    b"sfsl clock\r\n\x1a\n\x00\x00",
    largest=_LARGEST,
    what="the horizon of a signing clock",
    lost="It is written anew",
)


class SigningClock(Closing):
    """Counts milliseconds since 1970, as far as the machine knew when it began. ``wall`` is the machine's
    clock and may be set; ``steady`` never is. ``path`` keeps how far requests were taken; None keeps nothing,
    for tests. ``began_ms``: everything taken before this process claims an earlier time."""

    def __init__(self, path: Path | None, *, wall: Callable[[], int], steady: Callable[[], int]) -> None:
        self._path, self._wall, self._steady = path, wall, steady
        before = self._read()
        self._horizon = self._latest = before.time_ms
        here = wall()
        self.began_ms = max(here, self._horizon + 1)
        self._since = steady()
        self._noted_ms = here - self.began_ms
        self._tell_start(here, before.wall_ms)

    def _tell_start(self, here: int, before: int | None) -> None:
        """Log a clock that was set back since ``before``; or that kills, each of which leaves up to half a
        minute written ahead, have led this one away from the machine's, which is nothing to mend."""
        ahead = -self._noted_ms
        if before is None:  # of an earlier version: so far ahead is as good as set back
            before = here + ahead if ahead > _AHEAD_MS else here
        if (back := before - here) > _NOTED_MS:
            log.warning(
                "this machine's clock is %s behind what it was when requests were taken before; requests are "
                "signed by a clock that goes on from there, periods follow the machine's",
                spell(back),
            )
        elif ahead > _AHEAD_MS:
            log.info(
                "requests are signed by a clock %s ahead of this machine's, as kills or a wrong clock have "
                "left it; periods follow the machine's",
                spell(ahead),
            )

    @property
    def now_ms(self) -> int:
        """The time to sign by."""
        return self.began_ms + self._steady() - self._since

    @property
    def wall_ms(self) -> int:
        """The machine's clock. A step of it is logged, once."""
        here = self._wall()
        off = here - self.now_ms
        if abs(step := off - self._noted_ms) > _NOTED_MS:
            log.warning(
                "this machine's clock was set %s by %s; signed requests do not depend on it, periods do",
                "forward" if step > 0 else "back", spell(step),
            )  # fmt: skip
            self._noted_ms = off
        return here

    @property
    def off_ms(self) -> int:
        """The machine's clock minus this one."""
        return self.wall_ms - self.now_ms

    def cover(self, time_ms: int) -> None:
        """Note durably that a request that claims this time is about to be taken."""
        self._latest = max(self._latest, time_ms)
        if time_ms > self._horizon:
            self._write(time_ms + _AHEAD_MS)

    def close(self) -> None:
        """Give back what was written ahead, so that the next process need not begin later than now."""
        if self._latest < self._horizon:
            try:
                self._write(self._latest)
            except StoreError as error:
                log.warning("%s", error)

    def _read(self) -> _Horizon:
        if self._path is None or not self._path.exists():
            return _NOTHING
        try:
            with self._path.open("rb") as file:
                return FORMAT.decode(file.read(_LARGEST + 1), str(self._path))
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from None
        except StateError as error:
            # What it guards against needs a clock that was set back as well.
            log.warning("%s. What was signed before now is refused all the same", error)
            return _NOTHING

    def _write(self, time_ms: int) -> None:
        if self._path is not None:
            unwritten = "; no request is taken until it can be"
            with system_errors_as(StoreError, f"write {self._path}", unwritten):
                write_whole(self._path, FORMAT.encode(_Horizon(time_ms, self._wall())), mode=OWNER_ONLY)
        self._horizon = time_ms


def spell(off_ms: int) -> str:
    """Say for people how much time this is, whichever way."""
    seconds = abs(off_ms) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} minutes"
    return f"{minutes / 60:.1f} hours" if minutes < 2880 else f"{minutes / 1440:,.0f} days"
