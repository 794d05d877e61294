"""``sfsl privacy …``: what index privacy costs and gives. ``sfsl-research`` adds ``audit`` to the group."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from sfsl.cli.output import Json, counts_of_rounds, facts, plain, present, privacy_level, table
from sfsl.client.home import Home
from sfsl.crypto.secret import SystemRandomness
from sfsl.privacy import (
    PRESETS,
    Events,
    IndexPrivacy,
    Tuned,
    Workload,
    epsilon_of,
    frontier,
    owner_distribution,
    rho_for,
)
from sfsl.privacy import tune as run_tune
from sfsl.privacy.parameters import PAPER_COHORT, PAPER_MEAN_OWNERS, PAPER_SINGLE_OWNER
from sfsl.privacy.state import StateRecord, read_state
from sfsl.service.identities import read_identity
from sfsl.service.signing import client_id
from sfsl.settings.terms import Terms

app = typer.Typer(help="Index privacy: what it gives, what it costs, an audit.", no_args_is_help=True)

Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it too: a .png or .svg.")]
Cohort = Annotated[int, typer.Option(min=2, help="Clients per round.")]
Single = Annotated[float, typer.Option(help="Share of the union's rows that one client of the cohort has.")]
Mean = Annotated[float, typer.Option(help="Clients of the cohort per row of the union, on average.")]
LEVEL = "A preset, cpp1 to cpp5, or p1,p2,p3,p4."
# Of rows that one client alone trained, the share whose owner the exact sums of one round name, by data set:
# as ``sfsl privacy audit --data`` measured it (docs/privacy.md).
LINKED = {
    "cpp1": {"amazon": 1.0, "synthetic": 1.0},
    "cpp2": {"amazon": 0.927, "taobao": 0.961, "synthetic": 0.805},
    "cpp3": {"amazon": 0.87, "taobao": 0.936, "synthetic": 0.658},
    "cpp4": {"amazon": 0.775, "taobao": 0.856, "synthetic": 0.344},
    "cpp5": {"amazon": 0.009, "taobao": 0.011, "synthetic": 0.008},
}
_LINKED_DATA = ("amazon", "taobao", "synthetic")
_LEGEND = (
    "p1: a row of one's own gets a permanent yes; p2: another row does. p3: a permanent yes is a yes in a\n"
    "round; p4: a permanent no is. p5, p6: what comes of it for a row of one's own, and for another. p7: an\n"
    "owner asks for its row alone, so that the sum is its update. p8: a row is asked for, but by no owner.\n"
    "ε(k): k rounds of answers move the odds that one has a row by e^ε at most; ε₁, ε∞: the paper's bounds."
)
_LINKED_NOTE = (
    "Owners named: of rows that one client alone trained, in the paper's scheme, measured with 100 clients.\n"
    "Epsilon is about requests and does not cover this; the scheme hot does (docs/privacy.md). On your own\n"
    "data: sfsl privacy audit --data or --run."
)


@app.command(
    epilog="Examples:  sfsl privacy show   |   "
    "sfsl privacy show cpp2 15/16,1/16,1,0 --rounds 1,10,1000   |   "
    "sfsl privacy show --plot privacy.svg --json   |   "
    "sfsl privacy show --state alice.state --epsilon 8"
)
def show(
    levels: Annotated[list[str] | None, typer.Argument(help=LEVEL + " Default: all presets.")] = None,
    rounds: Annotated[str, typer.Option(help="Show epsilon after so many rounds.")] = "1,2,5,10,100",
    cohort: Cohort = PAPER_COHORT,
    single_owner: Single = PAPER_SINGLE_OWNER,
    mean_owners: Mean = PAPER_MEAN_OWNERS,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Show instead what a client has given away so far."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="With --state: the owner's limit for all hot rounds.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With --state: the delta of that limit.")] = 1e-6,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """The paper's table for any parameters: p5 to p8 and epsilon, exact over any number of rounds. Or, with
    --state, what one client has spent."""
    if state is not None:
        spent = _spent_figures(read_state(state), epsilon, delta)
        present(spent, json, facts(f"What {spent['client']} has given away", _spent_lines(spent)))
        return
    chosen = {name: privacy_level(name) for name in levels or PRESETS}
    counts = counts_of_rounds(rounds)
    owners = owner_distribution(single_owner, mean_owners, cohort)
    events = {name: privacy.events(owners, cohort) for name, privacy in chosen.items()}
    if plot is not None:
        from sfsl.report.privacy_plots import plot_levels

        plot_levels(chosen, max(counts), cohort, plot)
    figures = {
        "cohort": cohort,
        "single_owner": single_owner,
        "mean_owners": mean_owners,
        "levels": [
            {"name": name, **_level_figures(privacy, events[name], counts), "linked": LINKED.get(name)}
            for name, privacy in chosen.items()
        ],
    }
    tables = _level_tables(chosen, events, counts, cohort)
    present(figures, json, *tables, _LEGEND, _LINKED_NOTE, *where(plot))


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
    figures = {
        "wanted": {"epsilon": plain(epsilon), "rounds": rounds, "p5": p5, "flip": flip},
        "workload": plain(workload),
        "union_size": workload.union_size,
        "best": _tuned_figures(best),
        "bytes_whole_union": full,
        "frontier": [_tuned_figures(point) for line in lines.values() for point in line],
    }
    present(figures, json, *_tuned_texts(best, rounds, full), *where(plot))


@app.command(
    epilog="Examples:  sfsl privacy renew me   |   sfsl privacy renew me --identity ada.key --period-days 30"
)
def renew(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The client's folder (sfsl join --state).")],
    identity: Annotated[Path | None, typer.Option(help="Its key, where that is not in DIR.")] = None,
    client: Annotated[str | None, typer.Option(help="Its name, where that is not its key's.")] = None,
    period_days: Annotated[int, typer.Option(min=1, help="Days in a period.")] = Terms().period_days,
    json: Json = False,
) -> None:
    """Begin a new ledger for a client whose state is lost for good. It sits out the period; what it had spent
    is known from the server only."""
    name = client or client_id(read_identity(identity or folder / "identity.key").public)
    calendar, today = Terms(period_days=period_days).calendar, datetime.now(UTC).date()
    Home(folder, SystemRandomness()).renew(name, calendar, today)
    until = calendar.first_day(calendar.period(today) + 1).isoformat()
    present(
        {"client": name, "state": str(folder / "state"), "sits_out_until": until},
        json,
        f"client {name} begins a new ledger in {folder}/state and sits out until {until}",
        "Rounds that the server remembers are charged when it checks in. A server that remembers fewer than "
        "there were makes this ledger too small: if in doubt, lower --epsilon",
    )


def _spent_figures(record: StateRecord, limit: float | None, delta: float) -> dict[str, Any]:
    """What a state says. ``hot_rounds_left`` is at the mean cost so far, None where that is unknown."""
    hot, ledger = record.hot, record.ledger
    left = None
    if limit is not None and 0 < hot.rho < math.inf and limit < math.inf:
        room = rho_for(limit, delta) - hot.rho
        left = max(0, math.floor(room / (hot.rho / hot.rounds) + 1e-6))
    return {
        "client": record.client,
        "hot_rounds": hot.rounds,
        "hot_rounds_lost": hot.lost,
        "rho": plain(hot.rho),
        "epsilon": plain(epsilon_of(hot.rho, delta)),
        "delta": delta,
        "epsilon_limit": plain(limit),
        "hot_rounds_left": left,
        "rounds_begun": ledger.begun,
        "rounds_lost": ledger.lost,
        "epsilon_per_index": plain(record.epsilon_total),
    }


def _spent_lines(spent: Mapping[str, Any]) -> dict[str, object]:
    left, limit = spent["hot_rounds_left"], spent["epsilon_limit"]
    return {
        "hot rounds": spent["hot_rounds"],
        "… known from the server only": spent["hot_rounds_lost"],
        "rho of all of them": spent["rho"],
        f"epsilon at delta {spent['delta']:g}": spent["epsilon"],
        "… allowed (--epsilon)": "not said" if limit is None else limit,
        "hot rounds left at that": "unknown" if left is None else left,
        "rounds of any kind": spent["rounds_begun"],
        "… known from the server only ": spent["rounds_lost"],
        "epsilon per index in requests": spent["epsilon_per_index"],
    }


def _level_tables(
    levels: Mapping[str, IndexPrivacy], events: Mapping[str, Events], counts: list[int], cohort: int
) -> list[Table]:
    chances = [
        (
            name,
            *(str(Fraction(p).limit_denominator(10_000)) for p in (x.p1, x.p2, x.p3, x.p4)),
            *(f"{p:.1%}" for p in (x.p5, x.p6)),
        )
        for name, x in levels.items()
    ]
    given = [
        (
            name,
            *(f"{p:.1%}" for p in (events[name].p7, events[name].p8)),
            *(f"{e:.2f}" for e in (x.epsilon_one, x.epsilon_infinity)),
            *(f"{x.epsilon(count):.3f}" for count in counts),
        )
        for name, x in levels.items()
    ]
    linked = [
        (name, *(f"{found[data]:.1%}" if data in found else "–" for data in _LINKED_DATA))
        for name, found in LINKED.items()
        if name in levels
    ]
    heads = ("", "p7", "p8", "ε₁", "ε∞", *(f"ε({count})" for count in counts))
    return [
        table("Probabilities", ("", "p1", "p2", "p3", "p4", "p5", "p6"), chances),
        table(f"What they give away, in a cohort of {cohort}", heads, given),
        table("Owners named from the exact sums of one round", ("", *_LINKED_DATA), linked),
    ]


def _tuned_texts(best: Tuned, rounds: int | None, full: float) -> list[Table | str]:
    span = "for ever" if rounds is None else f"over {rounds} rounds"
    rows = [(name, f"{getattr(best.privacy, name):.6g}") for name in ("p1", "p2", "p3", "p4", "p5", "p6")]
    rows += [
        (f"epsilon {span}", f"{best.epsilon:.4g}"),
        ("rows asked for per round", f"{best.rows:,.0f}"),
        ("bytes per client and round", f"{best.bytes_per_round:,.0f}"),
        ("… for the whole union", f"{full:,.0f}"),
        ("p7, p8", f"{best.events.p7:.2%}, {best.events.p8:.2%}"),
    ]
    noise = "Noise in each round (--flip) never lowers epsilon for its bytes; see docs/privacy.md."
    return [table("Fewest bytes", ("", ""), rows), *([noise] if rounds is None or rounds > 1 else [])]


def _level_figures(privacy: IndexPrivacy, events: Events, counts: list[int]) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(privacy),
        "p5": privacy.p5,
        "p6": privacy.p6,
        "epsilon_one": plain(privacy.epsilon_one),
        "epsilon_infinity": plain(privacy.epsilon_infinity),
        **msgspec.to_builtins(events),
        "epsilon": {str(count): plain(privacy.epsilon(count)) for count in counts},
    }


def _tuned_figures(tuned: Tuned) -> dict[str, Any]:
    privacy = tuned.privacy
    return {
        **msgspec.to_builtins(privacy),
        "p5": privacy.p5,
        "p6": privacy.p6,
        "epsilon": plain(tuned.epsilon),
        "rows": tuned.rows,
        "bytes_per_round": tuned.bytes_per_round,
        **msgspec.to_builtins(tuned.events),
    }


def where(plot: Path | None) -> list[str]:
    """Return a line that says where a picture is, if one was drawn."""
    return [] if plot is None else [f"Plot: {plot}"]
