"""``sfsl privacy …``: what index privacy costs and gives, and whether it keeps its word."""

from pathlib import Path
from typing import Annotated

import typer

from sfsl.cli.output import counts_of_rounds, emit_json, privacy_level, progress_console
from sfsl.cli.privacy_output import (
    level_figures,
    plain,
    print_audit,
    print_levels,
    print_tuned,
    say_where,
    tuned_figures,
)
from sfsl.errors import InputError
from sfsl.privacy import (
    PRESETS,
    Setting,
    Workload,
    frontier,
    owner_distribution,
)
from sfsl.privacy import audit as run_audit
from sfsl.privacy import tune as run_tune
from sfsl.privacy.parameters import PAPER_COHORT, PAPER_MEAN_OWNERS, PAPER_SINGLE_OWNER
from sfsl.privacy.simulation import SUBJECTS

app = typer.Typer(help="Index privacy: what it gives, what it costs, an audit.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it too: a .png or .svg.")]
Cohort = Annotated[int, typer.Option(min=2, help="Clients per round.")]
Single = Annotated[float, typer.Option(help="Share of the union's rows that one client of the cohort has.")]
Mean = Annotated[float, typer.Option(help="Clients of the cohort per row of the union, on average.")]
LEVEL = "A preset, cpp1 to cpp5, or p1,p2,p3,p4."


@app.command(
    epilog="Examples:  sfsl privacy show   |   "
    "sfsl privacy show cpp2 15/16,1/16,1,0 --rounds 1,10,1000   |   "
    "sfsl privacy show --plot privacy.svg --json"
)
def show(
    levels: Annotated[list[str] | None, typer.Argument(help=LEVEL + " Default: all presets.")] = None,
    rounds: Annotated[str, typer.Option(help="Show epsilon after so many rounds.")] = "1,2,5,10,100",
    cohort: Cohort = PAPER_COHORT,
    single_owner: Single = PAPER_SINGLE_OWNER,
    mean_owners: Mean = PAPER_MEAN_OWNERS,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """The paper's table for any parameters: p5 to p8 and epsilon, exact over any number of rounds."""
    chosen = {name: privacy_level(name) for name in levels or PRESETS}
    counts = counts_of_rounds(rounds)
    owners = owner_distribution(single_owner, mean_owners, cohort)
    events = {name: privacy.events(owners, cohort) for name, privacy in chosen.items()}
    if plot is not None:
        from sfsl.report.privacy_plots import plot_levels

        plot_levels(chosen, max(counts), cohort, plot)
    if json:
        emit_json(
            {
                "cohort": cohort,
                "single_owner": single_owner,
                "mean_owners": mean_owners,
                "levels": [
                    {"name": name, **level_figures(privacy, events[name], counts)}
                    for name, privacy in chosen.items()
                ],
            }
        )
        return
    print_levels(chosen, events, counts, cohort)
    say_where(plot)


@app.command(
    epilog="Examples:  sfsl privacy tune --epsilon 2 --p5 0.9   |   "
    "sfsl privacy tune --epsilon 1 --rounds 10 --cohort 200 --set-size 50 --row-width 32 --json   |   "
    "sfsl privacy tune --epsilon 2 --plot frontier.png"
)
def tune(
    epsilon: Annotated[float, typer.Option(help="Epsilon per index that must not be exceeded.")],
    rounds: Annotated[int | None, typer.Option(help="… after so many rounds. Default: for ever.")] = None,
    p5: Annotated[float, typer.Option(help="Least share of a client's real rows to train on.")] = 0.9,
    cohort: Cohort = PAPER_COHORT,
    set_size: Annotated[int, typer.Option(min=1, help="Real rows per client.")] = 301,
    row_width: Annotated[int, typer.Option(min=1, help="Words per row.")] = 18,
    single_owner: Single = PAPER_SINGLE_OWNER,
    mean_owners: Mean = PAPER_MEAN_OWNERS,
    flip: Annotated[
        float, typer.Option(help="Flip each round's answer with this probability: p3 = 1 - flip, p4 = flip.")
    ] = 0.0,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """The parameters that cost the fewest bytes for an epsilon, and the frontier around them."""
    workload = Workload(cohort, set_size, row_width, single_owner, mean_owners)
    best = run_tune(epsilon, rounds, p5, workload, flip=flip)
    steps = [step / 20 for step in range(2, 20)] + [0.99]
    epsilons = sorted({0.5, 1.0, 2.0, 3.0, epsilon})
    lines = {wanted: frontier([wanted], rounds, steps, workload, flip=flip) for wanted in epsilons}
    if plot is not None:
        from sfsl.report.privacy_plots import plot_frontier

        plot_frontier(lines, rounds, plot)
    full = workload.bytes_per_round(PRESETS["cpp5"])
    if json:
        emit_json(
            {
                "wanted": {"epsilon": plain(epsilon), "rounds": rounds, "p5": p5, "flip": flip},
                "workload": plain(workload),
                "union_size": workload.union_size,
                "best": tuned_figures(best),
                "bytes_whole_union": full,
                "frontier": [tuned_figures(point) for line in lines.values() for point in line],
            }
        )
        return
    print_tuned(best, rounds, full)
    say_where(plot)


@app.command(
    epilog="Examples:  sfsl privacy audit   |   "
    "sfsl privacy audit cpp3 --rounds 1,5,20 --seed 7 --json   |   "
    "sfsl privacy audit --perturber forgetful   |   sfsl privacy audit --fleet 60 --cohort 20 --domain 3000 "
    "--set-size 30 --plot audit.png"
)
def audit(
    level: Annotated[str, typer.Argument(help=LEVEL)] = "cpp2",
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
    seed: Annotated[int, typer.Option(help="Repeats an audit.")] = 0,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Attack simulated clients: is epsilon kept, and what do unions and sums give away beside it?

    Exits with status 1 if the answers are not what the accounting claims.
    """
    privacy = privacy_level(level)
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
        from sfsl.report.privacy_plots import plot_audit

        plot_audit(found, plot)
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
        print_audit(found)
        say_where(plot)
    if found.violated:
        raise typer.Exit(1)
