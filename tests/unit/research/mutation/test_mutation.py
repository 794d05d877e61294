"""Mutants of a small room, and what becomes of them by tests that do and do not look."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from sfsl_research.mutation.gate import EQUIVALENT, ROOT, Kept, Tried, equivalents, kill_rate
from sfsl_research.mutation.mutants import ROOMS, Mutant, mutants_of, sample
from sfsl_research.mutation.notes import read_notes, replace_notes
from sfsl_research.mutation.trial import Outcome

SOURCE = '''"""A room of one file."""

LIMIT: int = 3


class Box:
    def __repr__(self) -> str:
        return "1 < 2"

    def put(self, words: list[int], room: int = 4) -> list[int]:
        """Put words."""
        if len(words) > room and words:
            raise ValueError(f"{len(words) + 1} words")
        self.note(room)
        return words[:room] if LIMIT else []

    def note(self, room: int) -> None:
        assert room < 9
'''


@pytest.fixture
def found(tmp_path: Path) -> list[Mutant]:
    (tmp_path / "crypto").mkdir()
    (tmp_path / "crypto" / "box.py").write_text(SOURCE)
    return mutants_of(tmp_path, "crypto")


def test_every_change_of_a_room(found: list[Mutant]) -> None:
    changes = {(one.kind, one.before, one.after) for one in found}
    assert changes == {
        ("constant", "3", "(4)"),
        ("constant", "4", "(5)"),
        ("branches", "len(words) > room and words", "(not (len(words) > room and words))"),
        ("boolean", "len(words) > room and words", "(len(words) > room or words)"),
        ("comparison", "len(words) > room", "(len(words) >= room)"),
        ("removed", 'raise ValueError(f"{len(words) + 1} words")', "pass"),
        ("removed", "self.note(room)", "pass"),
        ("branches", "words[:room] if LIMIT else []", "([] if LIMIT else words[:room])"),
        ("off by one", "words[:room]", "(words[:room + 1])"),
    }
    assert {one.where for one in found} == {"module", "Box.put"}
    assert {one.before for one in found if one.at_import} == {"3", "4"}
    for one in found:
        ast.parse(one.applied(SOURCE.encode()))


def test_names_and_the_sample_outlast_edits_elsewhere(tmp_path: Path, found: list[Mutant]) -> None:
    (tmp_path / "crypto" / "box.py").write_text(SOURCE.replace("LIMIT: int", "\n\nMORE = 7\nLIMIT: int"))
    later = mutants_of(tmp_path, "crypto")
    assert {one.name for one in found} < {one.name for one in later}
    assert {one.name for one in sample(found, 1, 4)} <= {one.name for one in sample(later, 1, 5)}
    assert sample(found, 1, 4) != sample(found, 2, 4)
    drawn = sample(found, 1, 99)
    assert len({one.first_line for one in drawn}) == len(drawn)


def test_what_was_killed_stays_so_and_what_survived_is_tried_by_new_tests(
    tmp_path: Path, found: list[Mutant]
) -> None:
    kept = Kept(tmp_path / "outcomes")
    kept.add(found[0], ["source", "tests"], Outcome("killed", "a test"))
    kept.add(found[1], ["source", "tests"], Outcome("survived"))
    again = Kept(tmp_path / "outcomes")
    assert again.find(found[0], ["source", "new tests"]) == Outcome("killed", "a test")
    assert again.find(found[0], ["new source", "tests"]) is None
    assert again.find(found[1], ["source", "tests"]) == Outcome("survived")
    assert again.find(found[1], ["source", "new tests"]) is None
    assert again.find(found[2], ["source", "tests"]) is None


def test_notes_that_are_cut_or_damaged_are_left_out_and_the_others_stand(
    tmp_path: Path, found: list[Mutant]
) -> None:
    path = tmp_path / "outcomes"
    for one in found[:3]:
        Kept(path).add(one, ["source", "tests"], Outcome("killed", "a test"))
    whole = path.read_bytes()
    second = whole.index(b"\n") + 40
    path.write_bytes(whole[:second] + bytes([whole[second] ^ 1]) + whole[second + 1 : -9])
    kept = Kept(path)
    assert [kept.find(one, ["source", "tests"]) for one in found[:3]] == [
        Outcome("killed", "a test"),
        None,
        None,
    ]
    kept.add(found[3], ["source", "tests"], Outcome("survived"))
    again = Kept(path)
    assert again.find(found[3], ["source", "tests"]) == Outcome("survived")
    assert again.find(found[0], ["source", "tests"]) == Outcome("killed", "a test")


def test_every_bit_of_a_note_counts(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    replace_notes(path, {"seconds": {"a test": 1.5}})
    assert list(read_notes(path)) == [{"seconds": {"a test": 1.5}}]
    whole = path.read_bytes()
    for at in range(8 * len(whole)):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        assert list(read_notes(path)) in ([], [{"seconds": {"a test": 1.5}}]), at


def test_the_rate_is_of_those_that_change_behaviour(found: list[Mutant]) -> None:
    outcomes = [Outcome("killed"), Outcome("timeout"), Outcome("survived"), Outcome("unreached")]
    tried = [Tried(mutant, outcome) for mutant, outcome in zip(found, outcomes, strict=False)]
    assert kill_rate(tried) == 50
    assert kill_rate([*tried[:3], Tried(found[3], outcomes[3], "it is the same")]) == pytest.approx(200 / 3)


def test_equivalent_mutants_are_there_and_have_a_reason() -> None:
    there = {one.name for room in ROOMS for one in mutants_of(ROOT / "src" / "sfsl", room)}
    for name, reason in equivalents().items():
        assert name in there, f"{EQUIVALENT.name} names {name}, which is gone"
        assert len(reason.split()) >= 4


_TRIAL = """
import sys
from pathlib import Path
from sfsl_research.mutation.mutants import mutants_of
from sfsl_research.mutation.reach import Reach, reach
from sfsl_research.mutation import reach as module
from sfsl_research.mutation.trial import Bench
root = Path(sys.argv[1])
module.TESTS = ("tests",)
sources = root / "src" / "sfsl"
files = [sources / "crypto" / "box.py"]
for _ in range(2):  # made, and read again
    known = reach(root, root / "out" / "reach.json", files)
bench = Bench(root, root / "copy", known, patience=5)
for one in mutants_of(sources, "crypto"):
    outcome = bench.trial(one)
    print(one.kind, one.before.split("\\n")[0], outcome.verdict, outcome.test.split("::")[-1], sep="|")
"""


@pytest.mark.slow
def test_trials_in_a_private_copy(tmp_path: Path) -> None:
    room = tmp_path / "src" / "sfsl" / "crypto"
    room.mkdir(parents=True)
    for folder in (room, room.parent):
        (folder / "__init__.py").touch()
    source = """def least(one: int, other: int) -> int:
    if one < other:
        return one
    return other


def endless(count: int) -> int:
    while count < 5:
        count += 1
    return count


def unseen() -> int:
    return 1 + 1
"""
    (room / "box.py").write_text(source)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_box.py").write_text(
        "from sfsl.crypto.box import endless, least\n"
        "def test_least():\n    assert least(1, 2) == 1 and least(2, 1) == 1\n"
        "def test_broken_anyway():\n    assert least(1, 1) == 2\n"
        "def test_end():\n    assert endless(2) == 5\n"
    )
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _TRIAL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = [line for line in ran.stdout.splitlines() if line.count("|") == 3]
    assert lines == [
        "branches|one < other|killed|test_least",
        "comparison|one < other|survived|",  # of equal ones either is the least
        "comparison|count < 5|killed|test_end",
        "constant|5|killed|test_end",
        "removed|count += 1|timeout|",
        "constant|1|killed|test_end",
        "arithmetic|1 + 1|survived|",  # no test reaches it: those of the file are tried
        "constant|1|survived|",
        "constant|1|survived|",
    ]
    assert (room / "box.py").read_text() == source
    assert (tmp_path / "copy" / "pyproject.toml").is_file()  # a clone, as the tree is
