"""§V-D, "Memory and Disk Loads": memory of a client and of the server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfsl_research.reproduce import paper
from sfsl_research.reproduce.drawing import blank, finish, grouped
from sfsl_research.reproduce.measured import Asked, measure_rounds
from sfsl_research.reproduce.target import Job, Scaled, Story, number, row_from, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Row(Scaled, frozen=True, kw_only=True):
    """MiB. A process is what it has before a round, plus the peak of what the round allocates."""

    scheme: str
    clients: int
    client_peak_mib: float
    server_peak_mib: float
    client_process_mib: float
    server_process_mib: float
    paper_client_mib: float | None = None
    paper_server_mib: float | None = None


def measure(job: Job) -> list[Row]:
    clients = job.scale.most_clients
    asked = [Asked(scheme, clients, memory=True) for scheme in job.scale.remembered]
    rows = []
    for found in measure_rounds(job, asked).values():
        client, server, bare = found.client_peak_mib or 0, found.server_peak_mib or 0, found.bare_mib or 0
        rows.append(
            row_from(
                Row,
                job,
                found,
                client_peak_mib=client,
                server_peak_mib=server,
                client_process_mib=bare + client,
                server_process_mib=bare + server,
                paper_client_mib=paper.printed(paper.CLIENT_MEMORY, found.scheme, clients),
                paper_server_mib=paper.printed(paper.SERVER_MEMORY, found.scheme, clients),
            )
        )
    return rows


def draw(rows: Sequence[Row]) -> "Figure":
    figure, (panel,) = blank(1)
    bars = {row.scheme: {"client": row.client_process_mib, "server": row.server_process_mib} for row in rows}
    quoted = {
        (party, scheme): numbers[scheme]
        for party, numbers in (("client", paper.CLIENT_MEMORY), ("server", paper.SERVER_MEMORY))
        for scheme in bars
        if scheme in numbers
    }
    grouped(panel, ("client", "server"), bars, quoted)
    panel.set(ylabel="MiB", title=f"Memory of a process, {rows[0].clients} clients, no dropout")
    finish(panel)
    return figure


def tell(rows: Sequence[Row]) -> Story:
    there = {row.scheme: row for row in rows}
    full, two = there["sfl"], there["cpp2"]
    return Story(
        paper="Memory of one client and of the cloud server with 100 clients and no dropout. The text gives "
        "CPP2 and CPP5 and what they save of SFL. On disk, a client's permanent answers take 280 KB within "
        "5,000 rounds.",
        ours="What Python and numpy allocate for one party at its peak, traced in rounds of their own, on "
        "top of an idle process that has the protocol imported: the largest client, and the server with all "
        "messages of an exchange.",
        differs=[
            f"At CPP2 a client allocates {two.client_peak_mib:.1f} MiB for a round and the server "
            f"{two.server_peak_mib:.0f} MiB; with an idle process {two.client_process_mib:.0f} and "
            f"{two.server_process_mib:.0f}. The paper's processes hold TensorFlow and train, ours here do "
            "not: this is not a comparison of like with like. Ours can be compared with each other.",
            f"The full model costs a client {full.client_peak_mib:.0f} MiB and the server "
            f"{full.server_peak_mib:,.0f}: CPP2 saves {saved(two.client_peak_mib, full.client_peak_mib):.1f} "
            f"% and {saved(two.server_peak_mib, full.server_peak_mib):.1f} % of what a round allocates "
            f"(paper, whole processes: {paper.CLIENT_MEMORY_SAVED['cpp2']} % and "
            f"{paper.SERVER_MEMORY_SAVED['cpp2']} %).",
            "On disk, permanent answers are a function of a key here, so that a client keeps some hundred "
            "bytes however many rounds there were (docs/privacy.md).",
        ],
        heads=("", "client, round", "client, process", "paper", "server, round", "server, process", "paper"),
        table=[
            [
                paper.LABELS[row.scheme],
                number(row.client_peak_mib, 1),
                number(row.client_process_mib, 0),
                number(row.paper_client_mib, 0),
                number(row.server_peak_mib, 0),
                number(row.server_process_mib, 0),
                number(row.paper_server_mib, 0),
            ]
            for row in rows
        ],
    )
