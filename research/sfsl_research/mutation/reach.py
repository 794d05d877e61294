"""Which tests run which lines: recorded once by coverage, and again only for test files that changed.

Lines of the source that moved make the record of every test stale, so that it is made anew. A test that fails
without any mutant is left out: it could say nothing of one."""

import hashlib
import json
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

from sfsl_research.mutation.notes import read_notes, replace_notes

# Whatever talks to the rooms that are mutated, and takes less than tests of whole pages, wheels or models do.
_ROOMS = ("crypto", "secagg", "union", "privacy", "submodel", "rounds", "service", "carriers/https", "client")
_ROUNDS = ("narrated_round", "round", "cohorts", "catalogue", "local_engine", "client_round", "second_client")
_SERVED = ("second_client_hot", "http_rounds", "http_server", "http_page", "hot_http", "roster_log", "backup")
TESTS = (
    *(f"tests/{kind}" for kind in ("vectors", "property", "adversary", "statistical", "fuzz")),
    *(f"tests/unit/{room}" for room in _ROOMS),
    *(f"tests/integration/test_{name}.py" for name in (*_ROUNDS, *_SERVED)),
    "tests/unit/test_deploy.py",
)
QUIET = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "--no-header", "--tb=no", "-rN"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # libraries are imported before pytest looks
)


@dataclass
class Reach:
    """For each test its seconds, and for each line of a file the tests that run it."""

    sources: str
    files: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    @property
    def tests(self) -> str:
        """Which tests there were, as a digest."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()

    def tests_of(self, file: str, lines: range) -> dict[str, float]:
        """The tests that run one of these lines, with their seconds."""
        found = self.lines.get(file, {})
        return {test: self.seconds[test] for line in lines for test in found.get(line, ())}

    def forget(self, files: set[str]) -> None:
        """Drop what is known of these test files."""
        self.seconds = {test: took for test, took in self.seconds.items() if _file_of(test) not in files}
        self.lines = {
            source: {line: [one for one in tests if one in self.seconds] for line, tests in lines.items()}
            for source, lines in self.lines.items()
        }


class _Recorder:
    """A plugin that tells coverage which test runs, and keeps how long it took."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:  # skipped ones say nothing either
            self.failed.add(report.nodeid)


def reach(root: Path, kept: Path, sources: Sequence[Path]) -> Reach:
    """The record in ``kept``, brought up to date with the tests and sources below ``root``."""
    source = digest(*sources)
    known = _read(kept)
    if known is None or known.sources != source:
        known = Reach(source)
    now = {str(one.relative_to(root)): digest(one) for one in _test_files(root)}
    stale = {name for name in now.keys() | known.files.keys() if now.get(name) != known.files.get(name)}
    if not stale:
        return known
    known.forget(stale)
    known.files = now
    kept.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()  # so that nothing of sfsl and no test is imported here
    if child == 0:
        failed = 1
        try:
            _record(root, known, sorted(stale & now.keys()))
            replace_notes(kept, vars(known))
            failed = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(failed)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the tests could not be run; what is above says why")
    if (made := _read(kept)) is None:
        raise SystemExit(f"{kept} is not what was written a moment ago; look at the disk")
    return made


def _record(root: Path, known: Reach, files: Sequence[str]) -> None:
    if not files:
        return
    sources = root / "src" / "sfsl"
    measured = coverage.Coverage(data_file=None, source=[str(sources)], config_file=False)
    recorder = _Recorder(measured)
    measured.start()
    try:
        os.chdir(root)
        sys.path.insert(0, str(root / "src"))
        pytest.main([*QUIET, *files], plugins=[recorder])
    finally:
        measured.stop()
    known.seconds |= {test: s for test, s in recorder.seconds.items() if test not in recorder.failed}
    if recorder.failed:
        print(f"{len(recorder.failed)} tests fail or are skipped without a mutant", file=sys.stderr)  # noqa: T201
    found = measured.get_data()
    for file in found.measured_files():
        lines = known.lines.setdefault(str(Path(file).relative_to(sources)), {})
        for line, tests in found.contexts_by_lineno(file).items():
            lines.setdefault(line, []).extend(one for one in tests if one in known.seconds)


def _test_files(root: Path) -> list[Path]:
    named = [root / one for one in TESTS]
    return sorted(file for one in named for file in ([one] if one.suffix else one.rglob("test_*.py")))


def _file_of(test: str) -> str:
    return test.split("::", 1)[0]


def digest(*files: Path) -> str:
    """Of what is in these files, in this order."""
    together = hashlib.sha256()
    for one in files:
        together.update(hashlib.sha256(one.read_bytes()).digest())
    return together.hexdigest()


def _read(kept: Path) -> Reach | None:
    """The record; None where there is none, or a damaged one."""
    for raw in read_notes(kept):
        lines = {
            file: {int(line): tests for line, tests in found.items()} for file, found in raw["lines"].items()
        }
        return Reach(raw["sources"], raw["files"], raw["seconds"], lines)
    return None
