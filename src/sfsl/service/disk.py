"""What the disk does not take at present, and when it takes things again: one line in the log for each."""

import logging
import threading
from pathlib import Path

from sfsl.durable import takes

log = logging.getLogger(__name__)

_PROBE_BYTES = 1 << 16


class DiskTrouble:
    """Knows who cannot write at present. The first of them says so in the log, and the last one that it is
    over, however often they try meanwhile and whoever joins them. ``folder``: where to try; None where there
    is none, in tests and simulations. It is safe for several threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._waiting: set[str] = set()
        self._one = threading.Lock()

    @property
    def why(self) -> str:
        """What to tell of it; empty where there is nothing."""
        return "the disk has no room, or fails" if self._waiting else ""

    def begins(self, who: str, said: str) -> None:
        with self._one:
            if not self._waiting:
                log.warning("%s", said)
            self._waiting.add(who)

    def ends(self, who: str, said: str) -> None:
        with self._one:
            if self._waiting == {who}:
                log.warning("%s", said)
            self._waiting.discard(who)

    def takes_again(self) -> bool:
        """Try whether the disk takes a little more than a request ever writes."""
        return self._folder is None or takes(self._folder, _PROBE_BYTES)
