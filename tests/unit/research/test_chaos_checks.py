"""The judge of chaos runs: it passes what is right, and finds each kind of wrong that is put before it."""

import importlib.util
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from sfsl.privacy.ledger import Ledger
from sfsl.rounds.record import RoundRecord

ROUNDS, START = 40, 1_800_000_000.0


def load() -> ModuleType:
    path = Path(__file__).parents[3] / "bench/chaos_checks.py"
    spec = importlib.util.spec_from_file_location("chaos_checks", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = load()


def line(number: int, aborted: str | None = None) -> RoundRecord:
    empty: dict[str, Any] = {}
    return RoundRecord(
        round=number, aborted=aborted, cohort=3, survivors=3, dropped=empty, late=0, declined=empty,
        diverged=0, samples=0, unknown_rows=0, loss=None, auc=None, auc_secure=None, auc_secure_error=None,
        union=empty, opened=empty, moved=empty, refused=empty, bytes_up=empty, bytes_down=empty,
        client_seconds=empty, server_seconds=empty, training_seconds=0.0, wall_seconds=1.0,
    )  # fmt: skip


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def begun(at: float, number: int, name: int) -> str:
    return f"{stamp(at)} INFO round {number} ({name:032x}): 3 clients invited to submodels\n"


def evidence() -> Any:
    """Forty rounds of ten seconds; the fifth aborted, the ninth was killed once and begun again."""
    log, told, name, at = "", {f"c{client}": [] for client in range(3)}, 0, START
    kills, lines = [], []

    def check_in() -> None:
        for events in told.values():
            events.append((at - 1, "checked-in", None))

    for number in range(1, ROUNDS + 1):
        check_in()
        log += begun(at, number, name := name + 1)
        if number == 9:
            kills.append(at + 5)
            at += 20
            check_in()
            log += begun(at, number, name := name + 1)
        how = "aborted" if number == 5 else "committed"
        why = "2 clients answered in phase shares, 3 are needed" if number == 5 else None
        lines.append(line(number, why))
        level = "WARNING" if why else "INFO"
        log += f"{stamp(at + 8)} {level} round {number} {how}: {why or '3 of 3 clients'}; heard: all\n"
        for events in told.values():
            events.append((at + 9, how, number))
        at += 10
    names = list(told)
    samples = [(START - 5 + moment, 300.0) for moment in range(int(at - START) + 5)]
    return checks.Evidence(
        rounds=ROUNDS,
        log=log,
        kills=kills,
        lines=lines,
        store_round=ROUNDS,
        told=told,
        whole=dict.fromkeys(names, ROUNDS - 1),
        exposed=dict.fromkeys(names, ROUNDS + 1),
        ledgers=dict.fromkeys(names, Ledger(exposures=ROUNDS + 1, begun=ROUNDS + 1)),
        acknowledged=dict.fromkeys(names, ROUNDS),
        server=[samples],
        swarm=samples,
    )


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    found = evidence()
    assert len(found.begun()) == ROUNDS + 1
    assert set(checks.quarters(found)) == {"clients", "server 1"}
    assert checks.verdicts(found) == {name: [] for name in checks.CHECKS}


def growing(samples: Any, share: float) -> list[tuple[float, float]]:
    return [(at, mib * (1 + share * place / len(samples))) for place, (at, mib) in enumerate(samples)]


def without_check_ins(found: Any, client: str, few: slice) -> Any:
    events = list(found.told[client])
    gone = [event for event in events if event[1] == "checked-in"][few]
    return replace(found, told=found.told | {client: [one for one in events if one not in gone]})


TAMPERED = {
    "a commit is lost": ("commits", lambda e: replace(e, lines=e.lines[:-1])),
    "the store is behind": ("commits", lambda e: replace(e, store_round=ROUNDS - 1)),
    "a commit is doubled": (
        "commits",
        lambda e: replace(e, log=e.log + f"{stamp(START)} INFO round 7 committed: 3 of 3\n"),
    ),
    "a round id is used twice": (
        "commits",
        lambda e: replace(e, log=e.log.replace(f"{3:032x}", f"{4:032x}")),
    ),
    "a client heard of another end": (
        "commits",
        lambda e: replace(e, told=e.told | {"c1": [*e.told["c1"], (START, "committed", 5)]}),
    ),
    "an abort without a reason": (
        "explained",
        lambda e: replace(e, log=e.log.replace("2 clients answered", "something")),
    ),
    "a round without an end": (
        "explained",
        lambda e: replace(
            e, log="\n".join(one for one in e.log.split("\n") if "round 6 committed" not in one)
        ),
    ),
    "a round that nobody killed": (
        "explained",
        lambda e: replace(e, kills=[], log=e.log.replace("round 9 committed", "round 9 is gone")),
    ),
    "a client sleeps": ("in_step", lambda e: without_check_ins(e, "c2", slice(10, 12))),
    "a client never comes back": ("in_step", lambda e: without_check_ins(e, "c2", slice(30, None))),
    "a client never comes": ("in_step", lambda e: without_check_ins(e, "c2", slice(None))),
    "a debit is missing": (
        "charged",
        lambda e: replace(e, ledgers=e.ledgers | {"c0": Ledger(exposures=ROUNDS, begun=ROUNDS)}),
    ),
    "the server counts too much": ("charged", lambda e: replace(e, acknowledged=e.acknowledged | {"c0": 99})),
    "the server counts too little": (
        "charged",
        lambda e: replace(e, acknowledged=e.acknowledged | {"c0": 3}),
    ),
    "a state taken for an old copy": (
        "charged",
        lambda e: replace(e, ledgers=e.ledgers | {"c0": msgspec.structs.replace(e.ledgers["c0"], lost=1)}),
    ),
    "a line lost and nobody harmed it": (
        "mended",
        lambda e: replace(e, lines=[*e.lines[:-1], RoundRecord.of_lost(ROUNDS)]),
    ),
    "damage that is told twice": (
        "mended",
        lambda e: replace(
            e, damaged=[2], log=f"=== start 1\n{e.log}=== start 2\n" + 2 * "WARNING x is mended: y\n"
        ),
    ),
    "a lost line of a round that ended otherwise": (
        "commits",
        lambda e: replace(
            e,
            lines=[*e.lines[:6], RoundRecord.of_lost(7), *e.lines[7:]],
            told=e.told | {"c1": [*e.told["c1"], (2 * START, "aborted", 7)]},
        ),
    ),
    "a trace in the log": (
        "handled",
        lambda e: replace(e, log=e.log + "Traceback (most recent call last):\n"),
    ),
    "an error in the log": ("handled", lambda e: replace(e, log=e.log + f"{stamp(START)} ERROR a request\n")),
    "a task that failed": ("handled", lambda e: replace(e, unhandled=["never retrieved"])),
    "a client that gave up": ("handled", lambda e: replace(e, failed={"c0": "StateError"})),
    "a server that grows": ("flat", lambda e: replace(e, server=[growing(e.server[0], 0.15)])),
    "clients that grow": ("flat", lambda e: replace(e, swarm=growing(e.swarm, 0.15))),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_each_wrong_is_found(what: str) -> None:
    check, tamper = TAMPERED[what]
    assert getattr(checks, check)(tamper(evidence()))


def test_rounds_that_begin_while_a_client_waits_as_it_says_are_not_slept_through() -> None:
    found = without_check_ins(evidence(), "c2", slice(10, 13))
    assert checks.in_step(found) == ["c2 slept through 3 rounds (10, 11, 12)"]
    tenth, twelfth = (next(one.at for one in found.begun() if one.number == number) for number in (10, 12))
    assert checks.in_step(replace(found, waits={"c2": [(tenth - 1, twelfth + 1)]})) == []
    some = checks.in_step(replace(found, waits={"c2": [(tenth - 1, tenth + 1)]}))
    assert some == ["c2 slept through 2 rounds (11, 12)"]


def test_a_client_that_vanished_at_its_check_in_begins_anew_from_there() -> None:
    found = without_check_ins(evidence(), "c2", slice(10, 12))
    assert checks.in_step(found) == ["c2 slept through 2 rounds (10, 11)"]
    tenth = next(one.at for one in found.begun() if one.number == 10)
    assert checks.in_step(replace(found, vanished={"c2": [tenth - 0.5]})) == []
    gone = without_check_ins(found, "c2", slice(None))
    assert checks.in_step(replace(gone, vanished={"c2": [tenth]})) == ["c2 never checked in"]


def test_a_round_that_a_client_was_invited_to_was_not_slept_through() -> None:
    """It may hear that it is checked in when the round has begun, or be in one with keys that it dropped."""
    found = without_check_ins(evidence(), "c2", slice(8, 10))
    (first, second), (tenth,) = (
        [one.at for one in found.begun() if one.number == number] for number in (9, 10)
    )

    def invited(*told: tuple[float, int]) -> list[str]:
        events = [*found.told["c2"], *((at, "invited", number) for at, number in told)]
        return checks.in_step(replace(found, told=found.told | {"c2": events}))

    assert invited() == ["c2 slept through 2 rounds (9, 9)"]
    assert invited((second + 1, 9)) == []
    assert invited((first + 1, 9)) == []
    assert invited((tenth + 1, 10)) == ["c2 slept through 2 rounds (9, 9)"]
    assert invited((tenth + 1, 9)) == []
    assert invited((first - 5, 9)) == ["c2 slept through 2 rounds (9, 9)"]


def test_damage_that_is_mended_and_told_is_fine() -> None:
    found = evidence()
    lines = [RoundRecord.of_lost(one.round) if one.round in (5, 6) else one for one in found.lines]
    log = f"=== start 1\n{found.log}=== start 2\nWARNING metrics.jsonl is mended: 2 rounds\n"
    found = replace(found, lines=lines, damaged=[2], log=log)
    assert checks.verdicts(found) == {name: [] for name in checks.CHECKS}


def test_a_false_clock_of_the_server_is_not_believed() -> None:
    """When a round began is known by another clock."""
    found = evidence()
    right = {one.id: one.at for one in found.begun()}
    wrong = replace(found, log=found.log.replace(stamp(START)[:4], "2099"))
    assert checks.in_step(wrong)
    assert not checks.in_step(replace(wrong, seen=right))


def test_a_round_that_was_cut_short_may_be_called_aborted() -> None:
    found = evidence()
    first, second = (one.at for one in found.begun() if one.number == 9)

    def told(at: float, how: str) -> Any:
        return replace(found, told=found.told | {"c1": [*found.told["c1"], (at, how, 9)]})

    assert not checks.commits(told(first + 5, "aborted"))
    assert checks.commits(told(second + 5, "aborted"))


def test_missing_one_round_is_in_step() -> None:
    assert not checks.in_step(without_check_ins(evidence(), "c2", slice(10, 11)))
