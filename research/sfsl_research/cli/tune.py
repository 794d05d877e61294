"""``sfsl tune``: a search for settings that suit somebody's data, by what validation devices say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from sfsl.cli.output import INTERRUPTED, Json, Settings, console, emit_json, plain, progress_console
from sfsl.cli.run import require_torch, stopping
from sfsl.cli.tables import Columns, Label, table_flags
from sfsl.errors import InputError
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.source import source_of
from sfsl.settings.toml import Sections, overridden, read_run_sections, with_settings
from sfsl_research.cli.tune_output import TuneProgress, print_summary

if TYPE_CHECKING:
    import torch

    from sfsl.run.fleet import Fleet
    from sfsl_research.tune.folder import Plan
    from sfsl_research.tune.search import Search

# Validation devices train like all others. With half of them the choice is as good as can be, and the other
# half says what it is worth.
VALIDATION = 0.5
ARMS = 16


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  sfsl tune clicks.csv   |   "
        "sfsl tune stars.csv --columns time=at --label 'rating>=4'   |   "
        "sfsl tune my.toml --rounds 200 --clients 50 --out tuned   |   "
        "sfsl tune amazon:interactions.tsv.gz --arms 18 --device cuda   |   "
        "sfsl tune --out tuned --resume   |   then:  sfsl run tuned/tuned.toml --out runs/tuned"
    )(tune)


def tune(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A run file (.toml); or what sfsl run takes as --data: a table (CSV, TSV, Parquet, JSON "
            "lines), amazon:, taobao: or stored: and a path, or synthetic.",
        ),
    ] = None,
    columns: Columns = None,
    label: Label = "",
    out: Annotated[Path, typer.Option(help="The folder of the search.")] = Path("sfsl-tune"),
    arms: Annotated[
        int | None, typer.Option(min=2, help="How many settings to try, with those as they are. Default: 16.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="run.rounds: of the arms that are not dropped before.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="round.clients")] = None,
    seed: Annotated[int | None, typer.Option(help="run.seed, and of the draw of arms.")] = None,
    by: Annotated[
        str | None, typer.Option(help="run.keep, by which validation devices choose: log_loss or auc.")
    ] = None,
    settings: Settings = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes a GPU where there is one.")
    ] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the search in --out.")] = False,
    json: Json = False,
) -> None:
    """Search for settings that suit your data: many arms train side by side, and the worse half is dropped
    again and again.

    The settings as they are (defaults, your run file and --set) are one arm and stay to the end. Half of the
    devices choose (data.validation), by held-out samples; the other half test what was chosen. tuned.toml in
    --out trains the choice with sfsl run; summary.json, curves.csv, curves.png and .svg tell the rest.

    Ctrl-C stops after the round; --resume goes on from the last checkpoint.
    """
    require_torch()
    from sfsl.run.fleet import build_fleet
    from sfsl_research.tune.folder import TuneFolder, require_free
    from sfsl_research.tune.search import begin, go_on, on_device

    where, screen = _device(device), progress_console()
    given = {"run.rounds": rounds, "round.clients": clients, "run.seed": seed, "run.keep": by}
    flags = {key: value for key, value in given.items() if value is not None}
    flags |= table_flags(None, columns, label, None)
    if resume:
        with TuneFolder(out) as folder, screen.status("reading data and settings"):
            stored = folder.plan
            sections = _sections(data) if data else msgspec.to_builtins(stored.base)
            _require_same(stored, _asked(sections, flags, settings), arms)
            fleet = build_fleet(stored.base)
        search = go_on(out, fleet, where)
    else:
        require_free(out)
        base = _asked(_sections(data), flags, settings)
        on_device(base, where.type)  # refused before data are read
        with screen.status("reading data and settings"):
            fleet = build_fleet(base)
            search = begin(out, _plan(base, fleet, arms or ARMS), fleet, where)
    with search:
        if fleet.report is not None:
            screen.print(str(fleet.report), highlight=False, soft_wrap=True)
        _run(search, json)


def _run(search: "Search", json: bool) -> None:
    from sfsl_research.tune.picture import draw
    from sfsl_research.tune.result import summarize, write_results

    screen, folder, out = progress_console(), search.folder, search.folder.path
    with stopping(screen) as asked, TuneProgress(screen, search) as progress:
        try:
            complete = search.run(stop=lambda: bool(asked), seen=progress.seen)
        except KeyboardInterrupt:
            complete = None
    if not complete:
        where = "at once; the last checkpoint stands" if complete is None else f"after round {search.round}"
        screen.print(f"Stopped {where}. Go on with: sfsl tune --out {out} --resume", soft_wrap=True)
        raise typer.Exit(INTERRUPTED)
    summary = summarize(search.plan, search.rungs, search.arms)
    draw(summary, search.arms, out)
    write_results(folder, summary, search.arms)
    if json:
        emit_json(plain(summary))
    else:
        print_summary(console(), summary, out)


def _sections(data: str | None) -> Sections:
    """Return the sections of a run file, or those that name the data."""
    if data is None:
        raise InputError(
            "which data? sfsl tune DATA, or sfsl tune --out FOLDER --resume; see sfsl tune --help"
        )
    if data.endswith(".toml"):
        return read_run_sections(Path(data))
    source, path = source_of(data)
    return {"data": {"source": source, "path": path}}


def _asked(
    sections: Mapping[str, Any], flags: Mapping[str, Any], settings: Sequence[str] | None
) -> RunConfig:
    """Return the run that the search is about, with the path of its data whole."""
    from sfsl.run.start import with_whole_path

    base = with_settings({"data": {"validation": VALIDATION}}, sections)
    return with_whole_path(from_sections(overridden(with_settings(base, flags), settings or ())))


def _plan(base: RunConfig, fleet: "Fleet", arms: int) -> "Plan":
    from sfsl_research.tune.folder import Plan
    from sfsl_research.tune.halving import DEFAULT
    from sfsl_research.tune.space import draw_arms

    drawn = draw_arms(base, arms, base.run.seed, personal=bool(fleet.task.personal))
    named = {f"arm-{place}" if one else DEFAULT: dict(one) for place, one in enumerate(drawn)}
    return Plan(base, named, len(fleet.devices), len(fleet.train))


def _require_same(plan: "Plan", wanted: RunConfig, arms: int | None) -> None:
    """Refuse to go on with other settings than a search began with."""
    old, new = _flat(plan.base), _flat(wanted)
    old["--arms"], new["--arms"] = len(plan.arms), arms or len(plan.arms)
    for key, value in new.items():
        if value != old[key]:
            raise InputError(
                f"{key} is {old[key]!r} in this search and {value!r} here; leave the change out, or begin "
                "another search with --out"
            )


def _flat(config: RunConfig) -> dict[str, object]:
    sections = msgspec.to_builtins(config)
    return {f"{name}.{key}": value for name, content in sections.items() for key, value in content.items()}


def _device(name: str) -> "torch.device":
    import torch

    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("--device cuda: torch sees no GPU here; --device cpu works everywhere")
    return torch.device("cuda" if there and name != "cpu" else "cpu")
