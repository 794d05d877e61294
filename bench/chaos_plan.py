"""What happens to a server in a chaos run, drawn from a seed: kills, full disks, damaged files, false clocks.

A plan is a list of strikes, which is written into the result and can be played again, whole or in part. Where
a verdict fails, ``shrink`` looks for the fewest strikes with which it still does.
"""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

# kill: SIGKILL. disk: no room for a while, but for a few bytes. damage: SIGKILL, and metrics.jsonl is harmed
# before the next start. clock: the server's is wrong for a while.
KINDS = ("kill", "disk", "damage", "clock")
HARMS = ("cut", "flip", "gone")
HOUR, DAY = 3600, 86400
STEPS = (HOUR, -HOUR, 10 * DAY, -10 * DAY, 4000 * DAY, -4000 * DAY)


@dataclass(frozen=True)
class Strike:
    """In this round, after this part of a usual round's time. ``shape``, from 0 to 1, says the rest."""

    round: int
    kind: str
    part: float
    shape: float

    @property
    def harm(self) -> str:
        return HARMS[int(self.shape * len(HARMS))]

    @property
    def step(self) -> int:
        """Seconds by which the clock is wrong."""
        return STEPS[int(self.shape * len(STEPS))]

    @property
    def room(self) -> int:
        """Bytes that a full disk still takes."""
        return int(self.shape * 3 * 4096)

    def __str__(self) -> str:
        more = {
            "disk": f", {self.room} bytes left",
            "damage": f", {self.harm}",
            "clock": f", {self.step:+} s",
        }
        return f"round {self.round}: {self.kind}{more.get(self.kind, '')}"


def draw(rounds: int, counts: dict[str, int], seed: int) -> list[Strike]:
    """Draw so many strikes of each kind, no two in one round."""
    source = random.Random(seed)  # noqa: S311 -- a plan, not a secret
    kinds = [kind for kind in KINDS for _ in range(counts.get(kind, 0))]
    numbers = source.sample(range(2, rounds), len(kinds))
    made = [
        Strike(at, kind, source.random(), source.random()) for at, kind in zip(numbers, kinds, strict=True)
    ]
    return sorted(made, key=lambda one: one.round)


def read_strikes(path: Path) -> list[Strike]:
    """Read those of a result, or a list of them."""
    given = json.loads(path.read_text())
    return [Strike(**one) for one in (given["strikes"] if isinstance(given, dict) else given)]


def as_json(strikes: Sequence[Strike]) -> list[dict[str, object]]:
    return [asdict(one) for one in strikes]


def shrink(
    strikes: Sequence[Strike], fails: Callable[[Sequence[Strike]], bool], most: int
) -> tuple[list[Strike], int]:
    """Return as few of these strikes as still fail, and how many runs that took, ``most`` at the most. Halves
    are left out first, then smaller parts, one by one in the end."""
    left, runs, parts = list(strikes), 0, 2
    while left and runs < most:
        size = max(1, -(-len(left) // parts))
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            runs += 1
            if fails(fewer):
                left, parts = fewer, max(2, parts - 1)
                break
            if runs >= most:
                return left, runs
        else:
            if size == 1:
                break
            parts *= 2
    return left, runs


class SmallDisk:
    """A disk of its own in memory, that can be filled; where none can be mounted, a plain folder."""

    def __init__(self, place: Path, mib: int = 64) -> None:
        place.mkdir(mode=0o700, parents=True)
        self._place, self._filler = place, place / "filler"
        words = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "none", str(place)]
        self.mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0

    def fill(self, room: int) -> None:
        """Leave so many bytes, or none: files are written in pages."""
        left = shutil.disk_usage(self._place).free - room
        with suppress(OSError), open(self._filler, "wb", buffering=0) as file:  # others write, too
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 16)))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def keep_and_close(self, elsewhere: Path) -> None:
        """Copy what is on it to a folder that lasts, and take it away."""
        if self.mounted:
            self.free()
            shutil.copytree(self._place, elsewhere)
            subprocess.run(["umount", "--lazy", str(self._place)], check=True)
            self._place.rmdir()
            elsewhere.rename(self._place)
            self.mounted = False


def harm(metrics: Path, strike: Strike) -> bool:
    """Harm a file of lines as a disk may; return whether there was anything to harm."""
    if not metrics.exists() or not (data := bytearray(metrics.read_bytes())):
        return False
    source = random.Random(strike.shape)  # noqa: S311
    match strike.harm:
        case "cut":
            del data[source.randrange(len(data)) :]
        case "flip":
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        case "gone":
            metrics.unlink()
            return True
    metrics.write_bytes(data)
    return True
