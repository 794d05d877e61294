"""The clock of one process, wrong by as much as a file says: libfaketime (``apt-get install faketime``)."""

import os
from pathlib import Path

_FOLDERS = ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime")


def library() -> Path | None:
    """Return where the library is: that of the system, or in the folder that FAKETIME_FOLDER names."""
    named = os.environ.get("FAKETIME_FOLDER")
    found = (Path(place) / "libfaketimeMT.so.1" for place in ((named,) if named else _FOLDERS))
    return next((one for one in found if one.exists()), None)


def false_clock(file: Path) -> dict[str, str]:
    """Return the environment of a process with this clock; empty where there is no library.

    Only what says which day it is is false: steady clocks go on. The library's own mend of waits by a steady
    clock is switched off, since with it every such wait ends at once, also that of a thread for another one's
    turn in Python: two threads at work then take five times as long as they should.
    """
    path = library()
    if path is None:
        return {}
    return {
        "LD_PRELOAD": str(path),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",  # seconds until a clock that was set is noticed
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "NO_FAKE_STAT": "1",
    }


def set_clock(file: Path, seconds: float) -> None:
    """Set the clock so much off the true time. The file is replaced, since it is read all the time."""
    aside = file.with_suffix(".new")
    aside.write_text(f"{seconds:+.1f}\n")
    aside.rename(file)
