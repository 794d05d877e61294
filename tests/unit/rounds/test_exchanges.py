"""The table of a round is complete, and nobody else names an exchange."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfsl.rounds.client import RoundClient
from sfsl.rounds.exchanges import (
    EXPOSES,
    MAY_DECLINE,
    ORDER,
    STEP,
    STEPS,
    SUMS,
    TRAINS,
    UNION_SUM,
    UPDATE_SUM,
    Exchange,
    Step,
    order,
)
from sfsl.service.messages import CODEC
from sfsl.settings.run import FaultSettings

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "src/sfsl/rounds/exchanges.py"
SPEC = ROOT / "docs/spec/round.md"

# Where a word that also names an exchange means something else: an index set, in JSON, a record or a state.
OTHER_MEANINGS = {
    ("research/sfsl_research/mutation/mutants.py", "submodel"),  # the rooms
    ("research/sfsl_research/mutation/mutants.py", "union"),
    ("src/sfsl/cli/union.py", "union"),
    ("src/sfsl/rounds/record.py", "union"),
    ("src/sfsl/rounds/snapshots.py", "union"),
}


def test_every_exchange_but_the_check_in_is_a_step_in_order() -> None:
    assert [step.exchange for step in STEPS] == [one for one in Exchange if one is not Exchange.CHECK_IN]
    assert order(active=True) == tuple(STEP)
    assert ORDER == order(active=False) == tuple(step.exchange for step in STEPS if not step.active)
    assert ORDER.index(MAY_DECLINE) < ORDER.index(EXPOSES) < ORDER.index(TRAINS) < len(ORDER) - 1


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.exchange)
def test_a_step_has_a_handler_and_messages_that_travel(step: Step) -> None:
    assert callable(getattr(RoundClient, step.handler))
    assert {one.handler for one in STEPS if one.message is step.message} == {step.handler}
    assert {step.message, step.answer} <= set(CODEC.types)
    assert step.sum in range(SUMS)


def test_the_sums_come_one_after_the_other() -> None:
    sums = [step.sum for step in STEPS]
    assert sums == sorted(sums)
    assert set(sums) == {UNION_SUM, UPDATE_SUM} == set(range(SUMS))


def test_faults_may_strike_at_every_exchange_of_a_round() -> None:
    every = {name: 0.5 for name in FaultSettings.__struct_encode_fields__ if name != "late"}
    assert tuple(every) == ORDER


def in_the_spec() -> list[tuple[str, str, int | None]]:
    """What the server sends, what the client answers, and the sum where one is named."""
    section = SPEC.read_text(encoding="utf-8").split("## 1 Exchanges\n", 1)[1].split("\n## ", 1)[0]
    rows = []
    for line in re.findall(r"^\| [1-9]\d* \|(.*)\|$", section, re.MULTILINE):
        sent, answered = line.split("|")
        named = re.search(r"sum (\d)", line)
        message, answer = (re.search(r"`(\w+)", part) for part in (sent, answered))
        assert message is not None
        assert answer is not None
        rows.append((message[1], answer[1], int(named[1]) if named else None))
    return rows


def test_the_specification_lists_the_same_exchanges() -> None:
    steps = [STEP[exchange] for exchange in ORDER]
    listed = in_the_spec()
    assert [(message, answer) for message, answer, _ in listed] == [
        (step.message.__name__, step.answer.__name__) for step in steps
    ]
    for (_, _, named), step in zip(listed, steps, strict=True):
        assert named in (None, step.sum)
    between = [
        (step.message.__name__, step.answer.__name__, STEPS[place + 1].exchange)
        for place, step in enumerate(STEPS)
        if step.active
    ]
    assert {(message, answer) for message, answer, _ in between} == {("Survivors", "Consistency")}
    precede = " and ".join(str(ORDER.index(exchange) + 1) for _, _, exchange in between)
    assert f"In active mode `Survivors` and `Consistency` precede {precede}." in SPEC.read_text(
        encoding="utf-8"
    )


# -- nobody else names an exchange ---------------------------------------------------------------------

NAMES = frozenset(map(str, Exchange))


def named_in(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and use of each text that is the name of an exchange; the tag of a message is not one."""
    tree = ast.parse(source)
    for parent in ast.walk(tree):
        if isinstance(parent, ast.ClassDef):
            tags = {id(one.value) for one in parent.keywords if one.arg == "tag"}
            parent.keywords = [one for one in parent.keywords if id(one.value) not in tags]
    for parent in ast.walk(tree):
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.Constant) and child.value in NAMES:
                key = isinstance(parent, ast.Dict) and child in parent.keys
                compared = isinstance(parent, ast.Compare | ast.Subscript | ast.MatchValue)
                yield child.lineno, str(child.value), "names" if key or compared else "mentions"


def test_no_other_module_names_an_exchange() -> None:
    """A name with a hyphen means nothing else. A word may, except as a key or in a comparison."""
    found = []
    for file in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "research").rglob("*.py")]):
        place = str(file.relative_to(ROOT))
        for line, name, use in named_in(file.read_text(encoding="utf-8")):
            wrong = "-" in name or use == "names"
            if file != TABLE and wrong and (place, name) not in OTHER_MEANINGS:
                found.append(f"{place}:{line} {name}")
    assert found == []


def test_the_search_finds_what_it_is_for() -> None:
    source = (
        'class A(Message, tag="submodel"): pass\n'
        'heads = ("union", "real")\n'
        'bill["inbound"] += 1\n'
        'if phase == "submodel": pass\n'
        'sizes = {"union": 1}\n'
        'wait("unmask-union")\n'
        'match phase:\n    case "invitation": pass\n'
    )
    assert list(named_in(source)) == [
        (2, "union", "mentions"),
        (3, "inbound", "names"),
        (4, "submodel", "names"),
        (5, "union", "names"),
        (6, "unmask-union", "mentions"),
        (8, "invitation", "names"),
    ]
