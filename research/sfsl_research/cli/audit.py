"""``sfsl privacy audit``: attacks simulated clients, and says whether epsilon keeps its word."""

from pathlib import Path
from typing import Annotated

import typer

from sfsl.cli.output import (
    Json,
    Settings,
    console,
    counts_of_rounds,
    emit_json,
    plain,
    privacy_level,
    progress_console,
    table,
)
from sfsl.cli.privacy import LEVEL, Cohort, Plot, where
from sfsl.cli.run import require_torch
from sfsl.errors import InputError
from sfsl.report.privacy_plots import Picture
from sfsl_research.audit.audit import Audit
from sfsl_research.audit.audit import audit as run_audit
from sfsl_research.audit.countermeasures import AttackReport, Setting
from sfsl_research.audit.simulation import SUBJECTS

_YOURS = "On your own data or run"


def audit(
    level: Annotated[str | None, typer.Argument(help=LEVEL + " Default: cpp2, or that of the run.")] = None,
    rounds: Annotated[str, typer.Option(help="Attack after so many rounds.")] = "1,2,5,10",
    trials: Annotated[int, typer.Option(help="Rows of each kind to estimate epsilon from.")] = 200_000,
    confidence: Annotated[float, typer.Option(help="Of all bounds on epsilon together.")] = 0.999,
    fleet: Annotated[int, typer.Option(help="Simulated clients.")] = 300,
    cohort: Cohort = 100,
    domain: Annotated[int, typer.Option(help="Rows of the table.")] = 143_534,
    set_size: Annotated[int, typer.Option(help="Real rows per client.")] = 301,
    skew: Annotated[float, typer.Option(help="Spread of the rows' popularity; 0 is uniform.")] = 0.6,
    dropout: Annotated[float, typer.Option(help="Share of a fixed group that drops out of a round.")] = 0.1,
    perturber: Annotated[
        str, typer.Option(help="sound, or broken on purpose: forgetful, truthful.")
    ] = "sound",
    run: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Attack the next round of this run.", rich_help_panel=_YOURS),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Attack a first round on this data, as of sfsl run.", rich_help_panel=_YOURS),
    ] = None,
    scheme: Annotated[
        str | None, typer.Option(help="round.scheme: sfsl, hot or sfl.", rich_help_panel=_YOURS)
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's own model and training.", rich_help_panel=_YOURS)
    ] = False,
    settings: Settings = None,
    attacked: Annotated[
        int, typer.Option(min=1, help="Rounds to attack, with different cohorts.", rich_help_panel=_YOURS)
    ] = 1,
    canaries: Annotated[
        int,
        typer.Option(min=0, help="Trials of each kind to bound epsilon by; 0: none.", rich_help_panel=_YOURS),
    ] = 20_000,
    weaken: Annotated[
        float,
        typer.Option(help="Broken on purpose: noise of scheme hot divided by this.", rich_help_panel=_YOURS),
    ] = 1.0,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", help="Write a page to file, for sign-off.", rich_help_panel=_YOURS),
    ] = None,
    seed: Annotated[int, typer.Option(help="Repeats an audit.")] = 0,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Attack simulated clients: is epsilon kept, and what do unions and sums give away beside it?

    With --run or --data a real masked round is attacked: rows are linked by their sums, and their owners
    named; canaries bound what rounds over hot rows cost.

    Exits with status 1 if the answers, or the noise, are not what the accounting claims.
    """
    if run is not None or data is not None:
        if plot is not None:
            raise InputError("--plot is for the audit of simulated clients; --run and --data have --html")
        require_torch()
        from sfsl_research.cli.audit_run import Asked, audit_yours

        asked = Asked(
            run, data, level, cohort, scheme, paper, settings, attacked, canaries, weaken, confidence, seed
        )
        audit_yours(asked, html, json)
        return
    if html is not None or scheme is not None or paper or settings:
        raise InputError("--html, --scheme, --paper and --set go with --data or --run")
    privacy = privacy_level(level or "cpp2")
    counts = counts_of_rounds(rounds)
    if perturber not in SUBJECTS:
        raise InputError(f"no perturber {perturber!r}; there are {', '.join(SUBJECTS)}")
    setting = Setting(fleet, cohort, domain, set_size, skew, max(counts), dropout)
    with progress_console().status("audit") as status:
        found = run_audit(
            privacy,
            setting,
            rounds=counts,
            trials=trials,
            confidence=confidence,
            seed=seed,
            subject=SUBJECTS[perturber],
            progress=status.update,
        )
    if plot is not None:
        _plot(found, plot)
    if json:
        emit_json(
            {
                "perturber": perturber,
                "seed": seed,
                "setting": plain(setting),
                "violated": found.violated,
                **plain(found),
            }
        )
    else:
        _print(found)
        for line in where(plot):
            console().print(line)
    if found.violated:
        raise typer.Exit(1)


def _print(found: Audit) -> None:
    out = console()
    out.print(
        table(
            "Epsilon of the answers",
            ("rounds", "claimed", "at least", "shown by", ""),
            [
                (
                    str(bound.rounds),
                    f"{bound.claimed:.3f}",
                    f"{bound.lower:.3f}",
                    bound.event,
                    "VIOLATED" if bound.violated else "kept",
                )
                for bound in found.bounds
            ],
        )
    )
    out.print(
        table(
            f"Opened rows of one round ({found.single_owner:.1%} with one owner, "
            f"{found.mean_owners:.2f} owners on average)",
            ("", "rows", "happened", "between", "predicted", ""),
            [
                (
                    event.event,
                    f"{event.rows:,}",
                    f"{event.happened:,}",
                    f"{event.lower:.3%} and {event.upper:.3%}",
                    f"{event.predicted:.3%}",
                    "UNEXPECTED" if event.unexpected else "as predicted",
                )
                for event in found.events
            ],
        )
    )
    out.print(
        table(
            "Unions and counts over rounds: (client, row) found by each attack",
            ("countermeasure", "rounds", "unions", "proved", "named", "right"),
            [
                (
                    report.countermeasure,
                    str(report.rounds),
                    _percent(report.intersection.precision),
                    _percent(report.proved.recall),
                    _percent(report.named.recall),
                    _percent(report.named.precision),
                )
                for report in _last(found)
            ],
        )
    )
    out.print(
        "unions: of the rows in all unions of a client, the share that is its own. proved: owners found for "
        "certain. named: with guesses added. right: share of those named that is true."
    )
    for report in _last(found):
        if report.linked is not None:
            out.print(f"Pseudonyms linked to the client's earlier ones: {report.linked:.1%}.")


def _last(found: Audit) -> list[AttackReport]:
    """Each countermeasure after the most rounds; --json and --plot have the others."""
    return list({report.countermeasure: report for report in found.attacks}.values())


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _plot(found: Audit, path: Path) -> None:
    """Draw the bound on epsilon next to the claim, and how many owners the attacks find."""
    with Picture(path, panels=2) as (left, right):
        rounds = [bound.rounds for bound in found.bounds]
        left.plot(rounds, [bound.claimed for bound in found.bounds], label="claimed")
        left.plot(rounds, [bound.lower for bound in found.bounds], "o", label="estimated from below")
        left.set(xlabel="rounds in one period", ylabel="epsilon", title="Epsilon of the answers")
        for name in dict.fromkeys(report.countermeasure for report in found.attacks):
            line = [report for report in found.attacks if report.countermeasure == name]
            right.plot([r.rounds for r in line], [r.named.recall for r in line], "o-", label=name)
        right.set(xlabel="rounds", ylabel="share of (client, row) named", title="Unions, requests and counts")


def register(group: typer.Typer) -> None:
    group.command(
        epilog="Examples:  sfsl privacy audit   |   "
        "sfsl privacy audit cpp3 --rounds 1,5,20 --seed 7 --json   |   "
        "sfsl privacy audit --perturber forgetful   |   "
        "sfsl privacy audit --data csv:clicks.csv --scheme hot --html signoff.html   |   "
        "sfsl privacy audit --run runs/mine --json   |   "
        "sfsl privacy audit --fleet 60 --cohort 20 --domain 3000 --set-size 30 --plot audit.png"
    )(audit)
