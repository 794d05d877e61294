"""Counting calls between files while one round goes from its predecessor's commit to its own.

What is counted, exactly. The package is ``sfsl`` with the one carrier that is apart from it, that of Ray.
Every call of a Python function whose code lies in a file of the package is seen by a profile hook, in every
thread and in every process that took part. A file is *touched* if a function of it was called. An *edge* is a
pair of files, from the nearest caller whose code lies in the package, through any code of others in between
(a callback of numpy, of a thread pool, of Starlette), to the file of the called function; calls within a file
are no edge, and neither is what an event loop resumes: a loop is not called by whoever started it long ago.
Code that runs on import does not count, nor does what is generated and lies in no file (the methods of a
dataclass). The round is the second of a small run: counting begins when the store has committed the first and
ends when it has committed the second. So the choice of a cohort, keys, exchanges, training, the commit and,
of the round before, the record that follows a commit are in it; reading settings, data and the model before
the first round, evaluation, and the summary at the end are not.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import sfsl
import sfsl_research

PACKAGE = os.path.dirname(os.path.abspath(sfsl.__file__)) + os.sep
# Files of the carrier of Ray are named ray/engine.py and the like, as if it were a room.
_RESEARCH = os.path.dirname(os.path.abspath(sfsl_research.__file__)) + os.sep
_RAY = os.path.join(_RESEARCH, "ray") + os.sep
# Whoever is above these frames did not call what runs below them: it started a loop.
_LOOPS = ("asyncio/events.py", "asyncio/base_events.py", "asyncio/runners.py")

Edge = tuple[str, str]


@dataclass
class Calls:
    """Calls by file, and by pair of files. Files are named as in the package: ``rounds/server.py``."""

    files: Counter[str] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)


class Recorder:
    """The hook, and whether it counts now. Calls of several threads may be lost to a race, edges are not."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.counting = False
        self._names: dict[str, str] = {}

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.counting or event != "call":
            return
        code = frame.f_code
        called = self._name(code.co_filename)
        if not called or code.co_name == "<module>":
            return
        self.calls.files[called] += 1
        caller = frame.f_back
        while caller is not None and not (name := self._name(caller.f_code.co_filename)):
            if caller.f_code.co_filename.endswith(_LOOPS):
                return
            caller = caller.f_back
        if caller is not None and name != called:
            self.calls.edges[name, called] += 1

    def _name(self, path: str) -> str:
        """The path within the package; empty for what is not of it."""
        found = self._names.get(path)
        if found is None:
            found = ""
            if path.startswith((PACKAGE, _RAY)):
                found = path.removeprefix(PACKAGE).removeprefix(_RESEARCH)
            self._names[path] = found
        return found


@contextmanager
def hooked(recorder: Recorder) -> Iterator[None]:
    """Threads that start from here on are seen as well."""
    threading.setprofile(recorder.hook)
    sys.setprofile(recorder.hook)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@contextmanager
def second_round(
    recorder: Recorder, stores: Sequence[type[Any]], mark: Callable[[bool], None]
) -> Iterator[None]:
    """Count from the first commit to the second. The stores' ``commit`` says where a run is; ``mark`` is told
    when counting begins and ends."""
    originals = [store.commit for store in stores]

    def watched(commit: Callable[..., Any]) -> Callable[..., Any]:
        def then(store: Any, *given: Any, **named: Any) -> Any:
            done = commit(store, *given, **named)
            recorder.counting = store.round == 1
            mark(recorder.counting)
            return done

        return then

    for store, commit in zip(stores, originals, strict=True):
        store.commit = watched(commit)
    try:
        yield
    finally:
        recorder.counting = False
        for store, commit in zip(stores, originals, strict=True):
            store.commit = commit
