"""Table "overheads … in private set union": bytes and seconds by cohort size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfsl_research.reproduce import paper
from sfsl_research.reproduce.drawing import COLORS, blank, diamonds, finish
from sfsl_research.reproduce.measured import measure_unions
from sfsl_research.reproduce.target import Job, Scaled, Story, number, row_from

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Row(Scaled, frozen=True, kw_only=True):
    clients: int
    union_size: int
    encoding: str
    mib: float
    client_seconds: float
    server_seconds: float
    paper_mib: float | None = None
    paper_client_seconds: float | None = None
    paper_server_seconds: float | None = None


_KINDS = (
    ("mib", "MiB", "Communication per client"),
    ("client_seconds", "seconds", "Computation per client"),
    ("server_seconds", "seconds", "Computation of the server"),
)


def measure(job: Job) -> list[Row]:
    found = measure_unions(job, [(clients, 0.0) for clients in job.scale.clients])
    return [row_from(Row, job, one, **_printed(one.clients)) for one in found.values()]


def _printed(clients: int) -> dict[str, float]:
    """What the paper has for so many clients."""
    there = paper.UNION.get(clients)
    return {f"paper_{kind}": getattr(there, kind) for kind, _, _ in _KINDS} if there else {}


def draw(rows: Sequence[Row]) -> "Figure":
    figure, panels = blank(3, height=3.3)
    counts = [row.clients for row in rows]
    for panel, (kind, unit, title) in zip(panels, _KINDS, strict=True):
        panel.plot(counts, [getattr(row, kind) for row in rows], "o-", color=COLORS["psu"], label="ours")
        diamonds(panel, [(count, getattr(one, kind)) for count, one in paper.UNION.items()])
        panel.set(xlabel="number of chosen clients", ylabel=unit, title=title, xticks=sorted(paper.UNION))
        if kind == "mib":
            panel.set_ylim(0)
        else:
            panel.set_yscale("log")
        finish(panel)
    return figure


def tell(rows: Sequence[Row]) -> Story:
    last = rows[-1]
    differs = [
        f"Bytes grow with the cohort in both, but from another start: the paper's vector has a word for each "
        f"of 143,534 items whoever takes part, ours is a {last.encoding} sized for what the cohort can have. "
        f"At {last.clients} clients that is {last.mib:.2f} MiB"
        + ("" if last.paper_mib is None else f" against {last.paper_mib:.2f}")
        + f" for a union of {last.union_size:,} items. The size of the table shows only in the "
        "packed union that comes back.",
    ]
    if last.paper_client_seconds and last.paper_server_seconds:
        differs.append(
            f"Seconds: {last.paper_client_seconds / last.client_seconds:,.0f} times less for a client and "
            f"{last.paper_server_seconds / last.server_seconds:,.0f} times less for the server, for the "
            "reasons given under computation."
        )
    return Story(
        paper="What the private set union alone costs per round, for 20 to 100 clients with 301 items each; "
        "the paper's Bloom filter is one word per item (an identity map).",
        ours="The union by itself, on simulated sets of 301 items of which 86.7 % of the union is held by "
        "one client, as in the paper's data; every union is checked.",
        differs=differs,
        heads=("clients", "MiB", "paper", "client s", "paper", "server s", "paper", "union"),
        table=[
            [
                str(row.clients),
                number(row.mib, 3),
                number(row.paper_mib),
                number(row.client_seconds, 3),
                number(row.paper_client_seconds),
                number(row.server_seconds, 3),
                number(row.paper_server_seconds),
                f"{row.union_size:,}",
            ]
            for row in rows
        ],
    )
