"""How much memory each party of a protocol needs, with all of them in one process."""

import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from sfsl.secagg.facade import Meter

P = ParamSpec("P")
T = TypeVar("T")

SERVER = ""  # no client has this name
_STATUS = Path("/proc/self/status")
_REPORT = f"import sfsl.rounds; print(open({str(_STATUS)!r}).read())"


class MemoryMeter(Meter):
    """Traces what Python and numpy allocate: a party's peak is what it held before a call plus the most that
    the call had at once.

    A party holds what its calls allocated and did not free. Messages pass from one to the other as bytes:
    what a call is given counts for it while it runs, and what a client's call returns is no longer the
    client's. What the server has ready for clients is its own until it lets go of it. OpenSSL's own memory
    is not seen. A table of the interpreter's that happens to grow is booked to whoever is at work.
    """

    peaks: Counter[str]
    _held: Counter[str]

    def at_client(self, name: str, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        result = self._traced(name, work, *args, **options)
        if isinstance(result, bytes):
            self._held[name] -= sys.getsizeof(result)
        return result

    def at_server(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return self._traced(SERVER, work, *args, **options)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        self.peaks, self._held = Counter(), Counter()
        tracemalloc.start()
        try:
            yield
        finally:
            tracemalloc.stop()

    def _traced(self, party: str, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        given = sum(sys.getsizeof(one) for one in args if isinstance(one, bytes))
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = work(*args, **options)
        after, peak = tracemalloc.get_traced_memory()
        self.peaks[party] = max(self.peaks[party], self._held[party] + given + peak - before)
        self._held[party] += after - before
        return result


def bare_process_bytes() -> int | None:
    """Resident memory of a process that has the protocol imported and done nothing; None if not on Linux."""
    if not _STATUS.exists():
        return None
    ran = subprocess.run([sys.executable, "-c", _REPORT], capture_output=True, text=True, check=True)  # noqa: S603
    resident = next(line for line in ran.stdout.splitlines() if line.startswith("VmRSS:"))
    return int(resident.split()[1]) * 1024
