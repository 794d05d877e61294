"""One mutant against the tests that reach it, in a private copy of the source.

Tests run in a fork of this process, which has imported the libraries and nothing of ``sfsl``: a mutant takes
the seconds of its tests. The copy is on the path of processes that the tests start, too."""

import compileall
import gc
import importlib
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import Phase, settings

from sfsl_research.mutation.mutants import ROOMS, Mutant
from sfsl_research.mutation.reach import QUIET, Reach

Verdict = Literal["killed", "timeout", "survived", "unreached"]

_LIBRARIES = (
    "numpy",
    "scipy.stats",
    "torch",
    "cryptography.x509",
    "msgspec",
    "httpx",
    "uvicorn",
    "starlette",
    "lmdb",
)
_FAST = ("-x", "-s", "--assert=plain", "-p", "no:anyio")
_OWN_SECONDS = 40.0  # of unit tests of the room itself, which come first
_OTHER_SECONDS = 20.0
_CPU_SECONDS = 10.0  # beside what the tests take without a mutant
_SILENT_SECONDS = 45.0  # in which no test ends, beside some times what the longest takes:
_BUSY_TIMES = 10.0  # neighbours may be busy


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant, and by which test or why not."""

    verdict: Verdict
    test: str = ""


class Bench:
    """The private copy, and the forks that run tests on it."""

    def __init__(self, root: Path, copy: Path, known: Reach, patience: float = _CPU_SECONDS) -> None:
        self._root, self._copy, self._known, self._patience = root, copy, known, patience
        self._steady: set[str] = set()
        shutil.copytree(root / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "research"):  # the copy is a clone, as the tree is: messages differ
            if (root / name).exists():
                (copy / name).symlink_to(root / name)
        compileall.compile_dir(copy / "src", quiet=2)
        for name in _LIBRARIES:
            importlib.import_module(name)
        paths = os.pathsep.join((str(copy / "src"), str(root / "research")))
        os.environ |= {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        settings.register_profile(
            "mutation",
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
        )
        gc.freeze()  # what is here already is no business of a fork's collector

    def trial(self, mutant: Mutant) -> Outcome:
        """Run tests until one fails, nearest first. One that fails without the mutant too does not count."""
        stages = self._stages(mutant)
        if not any(stages):
            return Outcome("unreached")
        with self._mutated(mutant):
            for stage in stages:
                left = stage
                while left and (failed := self._first_failure(left)):
                    late = failed == "timeout"
                    if self._passes_without(mutant, left if late else {failed: left.get(failed, 1.0)}):
                        return Outcome("timeout") if late else Outcome("killed", failed)
                    left = (
                        {}
                        if late
                        else {test: took for test, took in left.items() if not test.startswith(failed)}
                    )
        return Outcome("survived")

    def _stages(self, mutant: Mutant) -> tuple[dict[str, float], dict[str, float]]:
        """The room's own tests, and then others: the quickest of every test file in turn."""
        lines = range(mutant.first_line, mutant.last_line + 1)
        found = self._known.tests_of(mutant.file, lines)
        if mutant.at_import or not found:  # defaults and constants run when a module is loaded, for no test
            every = self._known.lines.get(mutant.file, {})
            found = self._known.tests_of(mutant.file, range(1, max(every, default=0) + 1))
            # A test that reads a default or a constant may run no line of the file.
            near = _own_tests(mutant)
            found |= {test: took for test, took in self._known.seconds.items() if test.startswith(near)}
        own = {test: took for test, took in found.items() if test.startswith(_own_tests(mutant))}
        others = {test: took for test, took in found.items() if test not in own}
        return _in_turn(own, _OWN_SECONDS), _in_turn(others, _OTHER_SECONDS)

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self._copy / "src" / "sfsl" / mutant.file
        source, times = path.read_bytes(), path.stat()
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that what was compiled is valid

    def _passes_without(self, mutant: Mutant, tests: Mapping[str, float]) -> bool:
        if not tests.keys() <= self._steady:
            path = self._copy / "src" / "sfsl" / mutant.file
            mutated = path.read_bytes()
            path.write_bytes((self._root / "src" / "sfsl" / mutant.file).read_bytes())
            try:
                if self._first_failure(tests):
                    return False
            finally:
                path.write_bytes(mutated)
            self._steady.update(tests)
        return True

    def _first_failure(self, tests: Mapping[str, float]) -> str:
        """The test that failed first, "timeout", or nothing."""
        said = self._copy / "said"
        said.unlink(missing_ok=True)
        most = self._patience + sum(tests.values())
        began = time.time()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(most), math.ceil(most) + 5))
            _run_tests(self._root, self._copy / "src", said, list(tests))
        silent = _SILENT_SECONDS + _BUSY_TIMES * max(tests.values())
        try:
            while time.time() < _heard(said, began) + silent:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                    return "timeout"
                if ended and os.WIFSIGNALED(status):
                    return next(iter(tests))  # a crash is a failure
                if ended:
                    return said.read_text()
                time.sleep(0.02)
            os.waitpid(_ended(child), 0)
            return "timeout"
        finally:
            with suppress(ProcessLookupError):  # what the tests started and left
                os.killpg(child, signal.SIGKILL)


class _Said:
    """A plugin that writes down the first test that failed, at once: what ends badly may not get further."""

    def __init__(self, said: Path) -> None:
        self._said = said
        said.touch()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        os.utime(self._said)  # a sign of life
        if report.failed and not self._said.read_text():
            self._said.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self._said.read_text():
            self._said.write_text(report.nodeid)


def _run_tests(root: Path, sources: Path, said: Path, tests: Sequence[str]) -> None:
    """In the fork: never returns."""
    try:
        os.setpgid(0, 0)
        with open(os.devnull, "w") as nowhere:
            for stream in (1, 2):
                os.dup2(nowhere.fileno(), stream)
        for name in [one for one in sys.modules if one == "sfsl" or one.startswith("sfsl.")]:
            del sys.modules[name]
        sys.path.insert(0, str(sources))
        os.chdir(root)
        settings.load_profile("mutation")
        pytest.main([*QUIET, *_FAST, *tests], plugins=[_Said(said)])
    finally:
        os._exit(0)


def _heard(said: Path, began: float) -> float:
    """When a test ended last; before the first did, when all began."""
    try:
        return max(began, said.stat().st_mtime)
    except FileNotFoundError:
        return began


def _ended(child: int) -> int:
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return child


def _own_tests(mutant: Mutant) -> tuple[str, ...]:
    return tuple(f"tests/unit/{folder}/" for folder in ROOMS[mutant.room])


def _in_turn(tests: Mapping[str, float], most: float) -> dict[str, float]:
    """As many tests as fit into ``most`` seconds: from each file its quickest, then its next, and so on."""
    ranked: list[tuple[int, float, str]] = []
    count: dict[str, int] = {}
    for test, took in sorted(tests.items(), key=lambda one: one[1]):
        file = test.split("::", 1)[0]
        ranked.append((count.setdefault(file, 0), took, test))
        count[file] += 1
    chosen: dict[str, float] = {}
    spent = 0.0
    for _, took, test in sorted(ranked):
        if spent + took <= most or not chosen:
            chosen[test] = took
            spent += took
    return chosen
