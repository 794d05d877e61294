"""``sfsl bench worlds``: the default of ``sfsl run`` in many worlds, beside what it is compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sfsl.cli.output import INTERRUPTED, Json, console, emit_json, progress_console, shown, table
from sfsl.data.interactions import Interactions
from sfsl.errors import InputError
from sfsl.settings.toml import read_config, read_run_sections


def worlds(
    names: Annotated[
        str | None, typer.Option("--worlds", help="Some of them, such as films,shop. Default: all.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the real worlds; without it, generated ones only.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Of data, models and cohorts: 0 and on.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every arm.")] = 300,
    clients: Annotated[
        int, typer.Option(min=2, max=512, help="Clients of a round; fewer where a world has fewer.")
    ] = 100,
    candidates: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run file that stands beside the default; repeatable. The choice among them is "
            "made by their worst regret, leaving each world out in turn."
        ),
    ] = None,
    arms: Annotated[
        str | None, typer.Option(help="Some of them, such as default,fl, beside centralized. Default: all.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto, which takes a GPU if there is one.")
    ] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Arms that train at once, each in a process.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for lines, table and picture.")] = Path("worlds"),
    listed: Annotated[bool, typer.Option("--list", help="Describe the worlds and train nothing.")] = False,
    json: Json = False,
) -> None:
    """Train the default in many worlds, with the paper's scheme, FL and centralized training beside it.

    Every arm that is done is a line in --out: the same command goes on where it was stopped. Regret is what
    an arm's AUC lacks to that of centralized training at the best of four rates.
    """
    # What trains needs torch, which takes a moment, and may be missing where others of these commands run.
    from sfsl_research.worlds.arms import DEFAULT
    from sfsl_research.worlds.benchmark import Plan, run_plan, worlds_named
    from sfsl_research.worlds.sheet import overview, result_of, write_sheet
    from sfsl_research.worlds.standings import leave_one_out, shortcomings, standings_of

    chosen = worlds_named(names, data)
    if listed:
        _describe(chosen, data, json)
        return
    some = tuple(one.strip() for one in arms.split(",")) if arms else ()
    rivals = _candidates(candidates or [])
    plan = Plan(chosen, seeds, rounds, clients, _device(device), jobs, data, rivals, some)
    screen = progress_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
    try:
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=screen) as progress:
            bar = progress.add_task("worlds", count="")

            def seen(text: str, done: float, total: int) -> None:
                count = f"{int(done)} of {total} arms"
                progress.update(bar, description=text or "worlds", completed=done, total=total, count=count)

            outcomes = run_plan(plan, out, seen)
    except KeyboardInterrupt:
        screen.print("Stopped. Arms that were done are kept; the same command goes on.")
        raise typer.Exit(INTERRUPTED) from None
    standings = standings_of(outcomes)
    ranked = [one for one in (DEFAULT, *rivals) if not some or one in some]
    left_out = leave_one_out(standings, ranked) if len(ranked) > 1 < len(chosen) else []
    files = write_sheet(out, standings, left_out)
    if json:
        emit_json(result_of(standings, left_out) | {"files": [str(one) for one in files]})
        return
    console().print(table("AUC by world, and the default's regret and log loss", *overview(standings)))
    for world, lacks in shortcomings(standings).items():
        console().print(f"{world}: {'; '.join(lacks) or 'the default holds'}", highlight=False)
    for one in left_out:
        console().print(
            f"{one.world} left out: {one.chosen}, worst regret elsewhere {one.worst_elsewhere:.4f}, here "
            f"{one.regret:.4f}",
            highlight=False,
        )
    console().print(f"Written: {', '.join(map(str, files))}", highlight=False)


def register(bench: typer.Typer) -> None:
    bench.command(
        epilog="Examples:  sfsl bench worlds --list   |   "
        "sfsl bench worlds --worlds films,shop --seeds 1   |   "
        "sfsl bench worlds --data DATA --device cuda --jobs 8 --out worlds   |   "
        "sfsl bench worlds --candidates a.toml --candidates b.toml --json"
    )(worlds)


def _device(name: str) -> str:
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {name}: cpu, cuda or auto")
    gpu = torch.cuda.is_available()
    if name == "cuda" and not gpu:
        raise InputError("--device cuda, and torch sees no GPU here; cpu works everywhere")
    return name if name != "auto" else "cuda" if gpu else "cpu"


def _candidates(files: Sequence[Path]) -> dict[str, Any]:
    """Read settings files; the arm of each has the file's name."""
    from sfsl_research.worlds.arms import CENTRALIZED, DEFAULT, FL, PAPER

    found: dict[str, Any] = {}
    for path in files:
        read_config(path)  # says what is wrong with it, and where
        if path.stem in (*found, DEFAULT, PAPER, FL, CENTRALIZED) or " " in path.stem:
            raise InputError(f"{path}: an arm is called {path.stem!r} already, or cannot be; rename the file")
        found[path.stem] = read_run_sections(path)
    return found


def _describe(names: Sequence[str], data: Path | None, json: bool) -> None:
    from sfsl_research.worlds.benchmark import world_of
    from sfsl_research.worlds.world import facts_of

    made = [world_of(name, 0, data) for name in names]
    facts = [msgspec.to_builtins(facts_of(one)) for one in made if isinstance(one.data, Interactions)]
    if json:
        emit_json({"worlds": facts})
        return
    columns = {
        "": "name", "users": "users", "items": "items", "owners": "owners", "samples": "samples_per_client",
        "clicks": "base_rate", "item AUC": "popularity_auc", "best AUC": "best_auc", "cohort": "clients",
    }  # fmt: skip
    rows = [tuple(_told(one[name]) for name in columns.values()) for one in facts]
    console().print(table("Worlds at seed 0: owners of an item, samples of a client", [*columns], rows))


def _told(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else shown(value)
