"""Everything that leaves or reaches a client of a round over hot rows is in the spec's table of leakage, and
no message is longer for one client than for another."""

import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from cohort import CATEGORY_OF, GOODS
from hot_cohort import HOT_CATEGORIES, HOT_GOODS, HotCohort
from sfsl.carriers.flower import messages as flower
from sfsl.codec import Message
from sfsl.rounds.exchanges import CODEC, HOT_STEPS, SURVEY_STEPS
from sfsl.rounds.hot import HotSet
from sfsl.service import messages as network

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "hot.md"
ENTRY = re.compile(r"^\| `([A-Za-z]+\.[a-z_]+)` \| (up|down|up, down) \| (.+?) \| (.*?) ?\|$", re.M)
# What the words of the last column may be; of a struct inside another the entries follow by themselves.
COVER = re.compile(r"^(public|takes part|fresh|rho)(; fresh|, of those (rounds|surveys))?$|^$")


def messages() -> set[type[msgspec.Struct]]:
    """All that is sent in such a round: its table of exchanges, what precedes it, and what is published."""
    steps = [*SURVEY_STEPS, *HOT_STEPS]
    rounds = {step.message for step in steps} | {step.answer for step in steps}
    around = {*network.CODEC.types, *flower.CODEC.types} - set(CODEC.types)
    return {*rounds, *around, HotSet}


def structs_in(annotation: object) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for part in typing.get_args(annotation):
        if not isinstance(part, msgspec.Meta):
            yield from structs_in(part)


def fields() -> dict[str, object]:
    found, waiting = dict[str, object](), list[type[msgspec.Struct]](messages())
    seen = set(waiting)
    while waiting:
        struct = waiting.pop()
        for name, annotation in typing.get_type_hints(struct, include_extras=True).items():
            if name in struct.__struct_fields__:
                found[f"{struct.__name__}.{name}"] = annotation
                new = set(structs_in(annotation)) - seen
                seen |= new
                waiting += new
    return found


def entries() -> dict[str, tuple[str, str, str]]:
    return {name: (way, says, cover) for name, way, says, cover in ENTRY.findall(SPEC.read_text())}


def test_the_fields_are_found() -> None:
    """Those of messages, of structs inside them, and of structs in lists and options."""
    names = fields()
    for known in ("MaskedVector.words", "Keys.masks", "ScoreBins.centre", "Table.rows", "CheckIn.keys"):
        assert known in names
    assert len(names) > 80
    assert not isinstance(names["HotParams.model"], types.UnionType)


@pytest.mark.parametrize("name", sorted(fields()))
def test_every_field_is_accounted_for(name: str) -> None:
    table = entries()
    assert name in table, f"docs/spec/hot.md 10 does not say what {name} tells about a client"
    _, says, cover = table[name]
    assert COVER.match(cover), cover
    if not cover:  # only where the field is a struct whose own fields are in the table
        assert says.startswith(("below, ", "above, "))
        assert set(structs_in(fields()[name]))


def test_no_entry_is_about_what_there_is_not() -> None:
    assert entries().keys() == fields().keys()


def test_only_the_sum_is_worth_anything() -> None:
    """What goes up and costs rho: the vector, and the shares that open the sum."""
    costs = {name for name, (way, _, cover) in entries().items() if "up" in way and cover.startswith("rho")}
    assert costs == {"MaskedVector.words", "UnmaskShares.shares"}


# -- lengths -----------------------------------------------------------------------------------

COLD = [row for row in range(GOODS) if row not in HOT_GOODS and CATEGORY_OF[row] not in HOT_CATEGORIES]
REAL: dict[str, Sequence[int]] = {
    "c000": [],
    "c001": range(GOODS),
    "c002": COLD,
    "c003": HOT_GOODS.tolist(),
    "c004": [0],
    "c005": [59],
}


@pytest.mark.parametrize("active", [False, True], ids=["curious", "active"])
@pytest.mark.parametrize("kind", ["survey", "train"])
@pytest.mark.parametrize("rho", [0.5, float("inf")])
def test_messages_of_all_clients_have_the_same_length(kind: str, active: bool, rho: float) -> None:
    """No rows, all rows, cold rows only: each client at each exchange, and its check-in."""
    cohort = HotCohort(6, kind, active=active, real=REAL, rho=rho, survey_rho=rho)
    cohort.finish()
    lengths = {tuple(map(len, frames)) for frames in cohort.sent.values()}
    assert len(lengths) == 1
    (one,) = lengths
    assert len(one) == (4 if active else 3)
    check_ins = {len(network.CODEC.encode(network.CheckIn(bytes(32), keys))) for keys in cohort.keys.values()}
    assert len(check_ins) == 1


def test_what_clients_are_sent_is_the_same_for_all() -> None:
    """Invitations are equal; boxes and lists have the same length."""
    cohort = HotCohort(6, real=REAL)
    first: list[Message] = list(cohort.outbound.values())
    assert len(set(map(CODEC.encode, first))) == 1
    while cohort.order:
        assert len({len(CODEC.encode(one)) for one in cohort.outbound.values()}) == 1
        cohort.exchange()
