"""What every campaign of wrong input counts and bounds: cases, kinds of refusal, seconds, memory."""

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfsl.errors import SfslError

SEED = int(os.environ.get("SFSL_FUZZ_SEED", "1"))
CASES = int(os.environ.get("SFSL_FUZZ_CASES", "1000000"))
SLOWEST_SECONDS = 2.0  # of this process, for one case, however busy the machine is with others
GROWTH_BYTES = 24 << 20  # of the whole process, over a whole campaign
_WARM = 0.1  # of the cases: caches fill and the allocator takes what it needs


def sizes(quick: int, share: float) -> pytest.MarkDecorator:
    """A few cases in ``make test``; in ``make test-slow`` a share of SFSL_FUZZ_CASES."""
    many = pytest.param(max(quick, int(CASES * share)), marks=pytest.mark.slow, id="many")
    return pytest.mark.parametrize("cases", [pytest.param(quick, id="quick"), many])


def resident() -> int:
    """Bytes of this process that are in memory; 0 where that cannot be asked."""
    if not Path("/proc/self/statm").exists():
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Campaign:
    """``case`` runs one case and says what became of it. Anything but ``allowed`` ends the campaign, with
    what it takes to see it again."""

    def __init__(self, cases: int, record: Callable[[str, Any], None], allowed: type[SfslError]) -> None:
        self.cases = cases
        self.outcomes: Counter[str] = Counter()
        self.worst = 0.0
        self._record = record
        self._allowed = allowed
        self._before = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.cases):
            if number == int(self.cases * _WARM):
                gc.collect()
                self._before = resident()
            yield number
        gc.collect()
        growth = resident() - self._before
        count = self.outcomes.total()
        worst = f"slowest {1000 * self.worst:.1f} ms, memory {growth / 2**20:+.1f} MiB"
        said = ", ".join(f"{name} {times:,}" for name, times in self.outcomes.most_common())
        self._record("cases", count)
        self._record("fuzz", f"{count:,} cases; {said}; {worst}")
        assert count == self.cases
        assert growth < GROWTH_BYTES, f"{growth} bytes more than before"
        assert self.worst < SLOWEST_SECONDS

    @contextmanager
    def case(self, number: int, data: bytes, what: str = "") -> Iterator[list[str]]:
        """One case. What it raises of ``allowed`` is counted by name; if it raises nothing, as what it puts
        into the list, or as ``accepted``."""
        start, said = time.process_time(), list[str]()
        try:
            yield said
            name = said[0] if said else "accepted"
        except self._allowed as error:
            name = type(error).__name__
            _require_plain(error)
        except BaseException as error:
            raise AssertionError(f"seed {SEED}, case {number} {what}: {error!r} on {data.hex()}") from error
        finally:
            self.worst = max(self.worst, time.process_time() - start)
        self.outcomes[name] += 1


def _require_plain(error: SfslError) -> None:
    """One line of moderate length: it goes into logs and answers."""
    text = str(error)
    assert text
    assert len(text) < 1000
    assert "\n" not in text
