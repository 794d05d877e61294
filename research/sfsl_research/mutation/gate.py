"""``python -m sfsl_research.mutation``: the share of mutants that some test finds, and those that none does.

It needs a clone, whose tests it runs. What was tried is kept in a file and not tried again for as long as the
mutated file is the same; what survived is tried again whenever a test changed."""

import json as json_text
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sfsl_research.mutation.mutants import ROOMS, Mutant, mutants_of, sample
from sfsl_research.mutation.notes import add_note, read_notes
from sfsl_research.mutation.reach import Reach, digest, reach
from sfsl_research.mutation.trial import Bench, Outcome

ROOT = Path(__file__).resolve().parents[3]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
# Per cent of the mutants that change behaviour.
WANTED = dict.fromkeys(ROOMS, 92.0) | {"rounds": 95.0, "secagg": 95.0}


@dataclass(frozen=True)
class Tried:
    """A mutant and what became of it; ``reason`` says why one changes nothing that can be seen."""

    mutant: Mutant
    outcome: Outcome
    reason: str = ""

    @property
    def killed(self) -> bool:
        return self.outcome.verdict in ("killed", "timeout")


def equivalents() -> dict[str, str]:
    """Mutants that were looked at and change no behaviour, each with the reason."""
    read: dict[str, str] = tomllib.loads(EQUIVALENT.read_text())
    return read


def kill_rate(tried: Sequence[Tried]) -> float:
    """Per cent of those that change behaviour."""
    counted = [one for one in tried if not one.reason]
    return 100 * sum(one.killed for one in counted) / len(counted) if counted else 100.0


class Kept:
    """Outcomes of earlier runs, in a file, one line for each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[list[str], Outcome]] = {}
        for name, key, outcome in read_notes(path):
            self._known[name] = (key, Outcome(**outcome))

    def find(self, mutant: Mutant, key: list[str]) -> Outcome | None:
        """The outcome, if the mutated file is as it was and, of a survivor, the tests are as well."""
        was, outcome = self._known.get(mutant.name, ([], None))
        if outcome is None or was[0] != key[0]:
            return None
        return outcome if outcome.verdict == "killed" or was == key else None

    def add(self, mutant: Mutant, key: list[str], outcome: Outcome) -> None:
        self._known[mutant.name] = (key, outcome)
        add_note(self._path, [mutant.name, key, asdict(outcome)])


def main() -> None:
    typer.run(_command)


def _command(
    room: Annotated[list[str] | None, typer.Option(help="Only these rooms.")] = None,
    each: Annotated[int, typer.Option(help="Mutants of each room.")] = 30,
    seed: Annotated[int, typer.Option(help="Which mutants: one that nobody looked at is the judge.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Try again what was tried before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try a sample of mutants against the tests that reach them; exit code 1 where too many survive."""
    rooms = room or list(ROOMS)
    if unknown := [one for one in rooms if one not in ROOMS]:
        raise typer.BadParameter(f"no room {', '.join(unknown)}; there are {', '.join(ROOMS)}")
    sources = ROOT / "src" / "sfsl"
    every = {one: mutants_of(sources, one) for one in ROOMS}
    reasons = equivalents()
    if gone := reasons.keys() - {mutant.name for room_ in every.values() for mutant in room_}:
        raise typer.BadParameter(f"{EQUIVALENT.name} names mutants that are gone: {', '.join(sorted(gone))}")
    folder = ROOT / "out" / "mutation"
    files = sorted({sources / mutant.file for room_ in every.values() for mutant in room_})
    known = reach(ROOT, folder / "reach.json", files)
    outcomes = folder / "outcomes.jsonl"
    if fresh:
        outcomes.unlink(missing_ok=True)
    chosen = [mutant for one in rooms for mutant in sample(every[one], seed, each)]
    tried = _try_all(chosen, known, Kept(outcomes), reasons, json)
    _tell(f"seed {seed}, {each} mutants of each room", rooms, tried, sources, json)
    wrong = [one for one in tried if one.reason and one.killed]
    if wrong or any(kill_rate([one for one in tried if one.mutant.room == r]) < WANTED[r] for r in rooms):
        raise typer.Exit(1)


def _try_all(
    chosen: Sequence[Mutant], known: Reach, kept: Kept, reasons: dict[str, str], quiet: bool
) -> list[Tried]:
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="sfsl-mutants-") as copy:
        bench = Bench(ROOT, Path(copy), known)
        for number, mutant in enumerate(chosen, 1):
            path = ROOT / "src" / "sfsl" / mutant.file
            reason = reasons.get(mutant.name, "")
            key = [digest(path), "" if reason else known.tests]  # what changes nothing no new test can find
            if (outcome := kept.find(mutant, key)) is None:
                outcome = bench.trial(mutant)
                kept.add(mutant, key, outcome)
                if not quiet:
                    typer.echo(
                        f"{number:4}/{len(chosen)}  {outcome.verdict:9}  {mutant.name}  {outcome.test}"
                    )
            tried.append(Tried(mutant, outcome, reason))
    return tried


def _tell(which: str, rooms: Sequence[str], tried: Sequence[Tried], sources: Path, json: bool) -> None:
    figures: dict[str, Any] = {}
    for room in rooms:
        here = [one for one in tried if one.mutant.room == room]
        figures[room] = {
            "mutants": len(here),
            "equivalent": sum(bool(one.reason) for one in here),
            "killed": sum(one.killed and not one.reason for one in here),
            "rate": round(kill_rate(here), 1),
            "wanted": WANTED[room],
        }
    left = [one for one in tried if not one.killed and not one.reason]
    wrong = [one for one in tried if one.killed and one.reason]
    if json:
        survivors = [
            {"name": one.mutant.name, "verdict": one.outcome.verdict, "diff": _diff(one.mutant, sources)}
            for one in left
        ]
        found = {
            "sample": which,
            "rooms": figures,
            "rate": round(kill_rate(tried), 1),
            "survivors": survivors,
        }
        typer.echo(json_text.dumps(found | {"not equivalent": [one.mutant.name for one in wrong]}, indent=2))
        return
    for one in left:
        typer.echo(f"\n{one.outcome.verdict}: {one.mutant.name}\n{_diff(one.mutant, sources)}")
    for one in wrong:
        typer.echo(f"\nnot equivalent after all: {one.mutant.name} is killed by {one.outcome.test}")
    typer.echo("\nroom       mutants  equivalent  killed    rate  wanted")
    for room, row in figures.items():
        typer.echo(
            f"{room:9}  {row['mutants']:7}  {row['equivalent']:10}  {row['killed']:6}"
            f"  {row['rate']:5.1f}%  {row['wanted']:5.1f}%"
        )
    counted = sum(not one.reason for one in tried)
    typer.echo(f"{which}: together {kill_rate(tried):.1f}% of {counted} that change behaviour")


def _diff(mutant: Mutant, sources: Path) -> str:
    return mutant.diff((sources / mutant.file).read_bytes())
