"""A disk whose power can be cut, for tests of what survives that."""

import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sfsl import durable

# No test needs a platter: flushes are simulated, and a kill loses nothing.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108


class PowerCut(BaseException):
    """Not an ``Exception``: nothing may catch it, as nothing survives a power cut."""


class Disk:
    """Stands in for ``os`` in ``durable``. Works on a real folder and notes what a power cut would leave.
    Locks, which a power cut releases, are the real ones.

    Unflushed bytes of a file may be there in full, in part or not at all. Names made since the folder was
    last flushed may be there up to any point. Only what was flushed is certain.
    """

    def __init__(self, cut_before: float = math.inf) -> None:
        self.calls = 0
        self._cut_before = cut_before
        self._live: dict[str, bytearray] = {}  # file contents by name, as programs see them
        self._flushed: dict[int, bytes] = {}  # by identity of the file: what is certain
        self._files: list[bytearray] = []  # keeps every file, so that no two have one identity
        self._names: list[dict[str, bytearray]] = [{}]  # the folder as flushed, then after each change
        self._open: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _call(self) -> None:
        if self.calls >= self._cut_before:
            raise PowerCut
        self.calls += 1

    def open(self, path: Any, flags: int, *mode: int) -> int:
        if str(path).endswith(".lock"):
            return os.open(path, flags, *mode)
        self._call()
        descriptor = os.open(path, flags, *mode)
        name = os.path.basename(path)
        self._open[descriptor] = name
        if flags & os.O_CREAT:
            self._files.append(bytearray())
            self._live[name] = self._files[-1]
            self._names.append(dict(self._live))
        return descriptor

    def fchmod(self, descriptor: int, mode: int) -> None:
        self._call()
        os.fchmod(descriptor, mode)

    def write(self, descriptor: int, data: bytes) -> int:
        self._call()
        written = os.write(descriptor, data[: max(1, len(data) // 2)])  # a disk may take less than offered
        self._live[self._open[descriptor]] += data[:written]
        return written

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._call()
        os.ftruncate(descriptor, size)
        del self._live[self._open[descriptor]][size:]

    def fsync(self, descriptor: int) -> None:
        self._call()
        name = self._open.get(descriptor) or self._taken_up(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name in self._live:
            self._flushed[id(self._live[name])] = bytes(self._live[name])
        else:
            self._names = [dict(self._live)]

    def close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._call()
            del self._open[descriptor]
        os.close(descriptor)

    def unlink(self, path: Any) -> None:
        self._call()
        os.unlink(path)
        self._live.pop(os.path.basename(path), None)  # not ours if it was left by an earlier cut
        self._names.append(dict(self._live))

    def _taken_up(self, path: Any) -> str:
        """Note a file that a library has written, as it is now; what it had before is not certain."""
        name = os.path.basename(path)
        with open(path, "rb") as file:
            self._files.append(bytearray(file.read()))
        self._live[name] = self._files[-1]
        self._names.append(dict(self._live))
        return name

    def link(self, old: Any, new: Any) -> None:
        self._call()
        os.link(old, new)
        self._live[os.path.basename(new)] = self._live[os.path.basename(old)]
        self._names.append(dict(self._live))

    def rename(self, old: Any, new: Any) -> None:
        self._call()
        if os.path.basename(old) not in self._live:
            self._taken_up(old)
        os.rename(old, new)
        self._live[os.path.basename(new)] = self._live.pop(os.path.basename(old))
        self._names.append(dict(self._live))

    def after_a_cut(self) -> Iterator[dict[str, bytes]]:
        """Every folder that may be found when the power is back."""
        seen = set()
        for names in self._names:
            choices = [self._contents(content) for content in names.values()]
            for contents in itertools.product(*choices):
                left = dict(zip(names, contents, strict=True))
                if (key := tuple(sorted(left.items()))) not in seen:
                    seen.add(key)
                    yield left

    def _contents(self, content: bytearray) -> list[bytes]:
        certain = self._flushed.get(id(content))
        if certain == content:
            return [bytes(content)]
        kept = len(certain) if certain and content.startswith(certain) else 0  # what was appended to
        return [certain or b"", bytes(content[: (kept + len(content)) // 2]), bytes(content)]


@contextmanager
def powered_by(disk: Disk) -> Iterator[None]:
    real, durable.os = durable.os, disk  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        durable.os = real  # type: ignore[attr-defined]
