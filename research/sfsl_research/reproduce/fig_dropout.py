"""Figure "computation overheads of the cloud server with varying dropout ratios"."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfsl_research.reproduce import paper
from sfsl_research.reproduce.drawing import COLORS, blank, diamonds, finish
from sfsl_research.reproduce.measured import Asked, measure_rounds, measure_unions
from sfsl_research.reproduce.target import Job, Scaled, Story, number, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERIES = ("psu", *paper.SCHEMES)
_PAPER_GROWTH = paper.UNION_SERVER_BY_DROPOUT[0.2] / paper.UNION_SERVER_BY_DROPOUT[0.0]


class Row(Scaled, frozen=True, kw_only=True):
    """``scheme``: psu is the union by itself; the others are the sums of updates, without the union."""

    scheme: str
    clients: int
    dropout: float
    server_seconds: float
    paper_server_seconds: float | None = None


def measure(job: Job) -> list[Row]:
    clients = job.scale.most_clients
    unions = measure_unions(job, [(clients, share) for share in job.scale.dropouts])
    asked = [Asked(scheme, clients, dropout) for scheme in paper.SCHEMES for dropout in job.scale.dropouts]
    seconds = {("psu", dropout): one.server_seconds for (_, dropout), one in unions.items()}
    seconds |= {
        (one.scheme, one.dropout): found.summing_seconds for one, found in measure_rounds(job, asked).items()
    }
    return [
        Row(
            scheme=scheme,
            clients=clients,
            dropout=dropout,
            server_seconds=found,
            paper_server_seconds=paper.UNION_SERVER_BY_DROPOUT.get(dropout)
            if scheme == "psu" and clients == paper.CLIENTS
            else None,
            scale=job.scale.name,
            seed=job.seed,
        )
        for (scheme, dropout), found in seconds.items()
    ]


def draw(rows: Sequence[Row]) -> "Figure":
    figure, (panel,) = blank(1)
    for scheme in SERIES:
        line = sorted((100 * row.dropout, row.server_seconds) for row in rows if row.scheme == scheme)
        label = paper.LABELS[scheme] if scheme == "psu" else f"SA, {paper.LABELS[scheme]}"
        panel.plot(*zip(*line, strict=True), "o-", ms=4, color=COLORS[scheme], label=label)
    printed = [
        (100 * row.dropout, row.paper_server_seconds) for row in rows if row.paper_server_seconds is not None
    ]
    diamonds(panel, printed)
    for at, value in printed:
        panel.annotate(
            f"PSU {value:g}", (at, value), (7 if at < 10 else -7, 0), textcoords="offset points",
            va="center", ha="left" if at < 10 else "right", fontsize="small",
        )  # fmt: skip
    savings = ", ".join(
        f"{paper.LABELS[scheme]} {percent} %" for scheme, percent in paper.DROPOUT_SAVED.items()
    )
    note = f"paper at 20 %, saved of SFL:\n{savings}"
    panel.text(0.5, 0.96, note, transform=panel.transAxes, fontsize="small", ha="center", va="top")
    panel.set(
        xlabel="dropout ratio of chosen clients, %",
        ylabel="seconds per round",
        title="Computation overhead of the cloud server under dropout",
        xticks=sorted({100 * row.dropout for row in rows}),
    )
    panel.set_yscale("log")
    finish(panel)
    return figure


def tell(rows: Sequence[Row]) -> Story:
    shares = sorted({row.dropout for row in rows})
    by = {(row.scheme, row.dropout): row for row in rows}
    worst = shares[-1]
    full = by["sfl", worst].server_seconds
    savings = [
        f"{paper.LABELS[scheme]} {saved(by[scheme, worst].server_seconds, full):.1f} % "
        f"(paper {percent} % at 20 %)"
        for scheme, percent in paper.DROPOUT_SAVED.items()
    ]
    union, calm = by["psu", worst], by["psu", shares[0]]
    quoted = "" if union.paper_server_seconds is None else f" (paper {union.paper_server_seconds})"
    return Story(
        paper="The server's seconds when some of the chosen clients vanish after they shared their keys, for "
        "the private set union (PSU) and for the secure aggregations (SA) of updates. The text prints PSU at "
        "20 %, its table PSU without dropout, and what CPP2 and CPP5 save of SFL at 20 %.",
        ours=f"{by['psu', worst].clients} clients. PSU: the union by itself, clients vanish before they send "
        "their masked set. SA: of whole rounds, the server's work on masked updates and on opening their "
        "sum; clients vanish after they got their submodel, the dearest moment.",
        differs=[
            f"At {worst:.0%} dropout, submodels save of the full model's seconds: {', '.join(savings)}.",
            f"The union takes {union.server_seconds:.2f} s at {worst:.0%}{quoted}, "
            f"{union.server_seconds / calm.server_seconds:.1f} times that without dropout; in the paper "
            f"{_PAPER_GROWTH:.1f} times at 20 %. For each client that vanished the server must make the "
            "masks it shares with everybody who is left: the trend is the paper's, the price of a mask is "
            "not.",
        ],
        heads=("", *(f"{share:.0%}" for share in shares), "paper"),
        table=[
            [
                paper.LABELS[scheme],
                *(number(by[scheme, share].server_seconds, 3) for share in shares),
                ", ".join(
                    f"{value} at {share:.0%}"
                    for share in shares
                    if (value := by[scheme, share].paper_server_seconds) is not None
                )
                or "–",
            ]
            for scheme in SERIES
        ],
    )
