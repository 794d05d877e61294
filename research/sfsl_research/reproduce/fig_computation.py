"""Figures "computation overhead" of the client and of the cloud server, by cohort size and scheme."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sfsl_research.reproduce import paper
from sfsl_research.reproduce.drawing import blank, by_clients, finish
from sfsl_research.reproduce.measured import by_cohort, measure_rounds
from sfsl_research.reproduce.target import Job, Scaled, Story, number, row_from, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Row(Scaled, frozen=True, kw_only=True):
    scheme: str
    clients: int
    client_seconds: float
    server_seconds: float
    paper_client_seconds: float | None = None
    paper_server_seconds: float | None = None


def measure(job: Job) -> list[Row]:
    return [
        row_from(
            Row,
            job,
            found,
            paper_client_seconds=paper.printed(paper.CLIENT_SECONDS, found.scheme, found.clients),
            paper_server_seconds=paper.printed(paper.SERVER_SECONDS, found.scheme, found.clients),
        )
        for found in measure_rounds(job, by_cohort(job)).values()
    ]


def draw(rows: Sequence[Row]) -> "Figure":
    figure, (client, server) = blank(2)
    by_clients(client, rows, "client_seconds", paper.CLIENT_SECONDS)
    client.set(title="Computation overhead per client")
    by_clients(server, rows, "server_seconds", paper.SERVER_SECONDS)
    server.set(title="Computation overhead of the cloud server")
    for panel in (client, server):
        panel.set(ylabel="seconds per round")
        finish(panel)
    return figure


def tell(rows: Sequence[Row]) -> Story:
    most = max(row.clients for row in rows)
    there = {row.scheme: row for row in rows if row.clients == most}
    full = there["sfl"]
    table = [
        [
            paper.LABELS[scheme],
            number(row.client_seconds, 3),
            number(row.paper_client_seconds, 0),
            number(row.server_seconds),
            number(row.paper_server_seconds, 1),
            number(saved(row.client_seconds, full.client_seconds), 1) if scheme != "sfl" else "–",
            number(paper.CLIENT_SAVED.get(scheme), 1),
            number(saved(row.server_seconds, full.server_seconds), 1) if scheme != "sfl" else "–",
            number(paper.SERVER_SAVED.get(scheme), 1),
        ]
        for scheme, row in there.items()
    ]
    two = there["cpp2"]
    differs = [
        f"At CPP2 a client computes {two.client_seconds:.3f} s and the server {two.server_seconds:.2f} s"
        + (
            f", where the paper has {two.paper_client_seconds:.1f} s and {two.paper_server_seconds:.2f} s: "
            f"{two.paper_client_seconds / two.client_seconds:,.0f} and "
            f"{two.paper_server_seconds / two.server_seconds:,.0f} times less. "
            if two.paper_client_seconds and two.paper_server_seconds
            else ". "
        )
        + "Masks come from AES in hardware instead of HMAC in Python 2, keys from X25519 instead of a "
        "2048-bit group. The paper's 100 clients also shared one workstation while they were timed, and its "
        "server had a GPU and several processes; ours are CPU seconds of one thread each, so waiting is in "
        "none of them.",
        f"Cost grows with the CPP, and the full model is dearest: {_agrees(there)}. CPP2 saves a "
        f"client {saved(two.client_seconds, full.client_seconds):.1f} % of the full model's seconds (paper "
        f"{paper.CLIENT_SAVED['cpp2']} %), the server {saved(two.server_seconds, full.server_seconds):.1f} % "
        f"({paper.SERVER_SAVED['cpp2']} %). What grows with the model are masks; they are cheap here, so "
        "that the fixed part of a client's work (keys, shares, the union) weighs more than in the paper.",
        "In ours the server computes more than one client, in the paper less: there every client pays for "
        "masks at full price, and the server is helped by its hardware.",
    ]
    return Story(
        paper="Seconds that a client and the cloud server spend on the protocol in a round, without training "
        "and tests of the model. The text gives CPP2 at 100 clients, and what CPP2 and CPP5 save of "
        "SFL; the other diamonds follow from these percentages.",
        ours=f"CPU seconds of the same rounds as for communication: the median client, and the server. "
        f"The table is for {most} clients.",
        differs=differs,
        heads=(
            "", "client s", "paper", "server s", "paper",
            "client saves of SFL, %", "paper, %", "server saves, %", "paper, %",
        ),
        table=table,
    )  # fmt: skip


def _agrees(there: Mapping[str, Row]) -> str:
    """Whether both parties' seconds stand in the paper's order of schemes."""
    known = [scheme for scheme in paper.SCHEMES if scheme in there]
    right = [
        sorted(known, key=lambda scheme: float(getattr(there[scheme], party))) == known
        for party in ("client_seconds", "server_seconds")
    ]
    match right:
        case [True, True]:
            return "as in the paper"
        case [True, False]:
            return "in the paper, and for the client here; the server's order differs"
        case [False, True]:
            return "in the paper, and for the server here; the client's order differs"
    return "in the paper; here neither party's seconds keep to this order"
