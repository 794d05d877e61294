"""``sfsl bench …``: what things cost, measured here and now."""

from typing import Annotated, Any

import typer

from sfsl.bench.secagg import bench_secagg
from sfsl.cli.output import console, emit_json, progress_console, table

app = typer.Typer(help="Measure what things cost on this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(
    epilog="Examples:  sfsl bench secagg --clients 100 --length 143534 --dropout 0.2   |   "
    "sfsl bench secagg --clients 1000 --length 10000 --json   |   "
    "sfsl bench secagg --clients 50 --length 18 --rows 10000 --share 0.2"
)
def secagg(
    clients: Annotated[int, typer.Option(help="Clients in the cohort.")] = 100,
    length: Annotated[int, typer.Option(help="Words per vector; with --rows, words per row.")] = 10_000,
    dropout: Annotated[float, typer.Option(help="Share of clients that vanish before they upload.")] = 0.0,
    neighbours: Annotated[
        int | None, typer.Option(help="Degree of a sparse graph. Default: complete up to 512 clients.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Sum rows of a table with so many rows, each client its own rows.")
    ] = None,
    share: Annotated[float, typer.Option(help="With --rows: share of the rows a client asks for.")] = 0.1,
    ring: Annotated[str, typer.Option(help="z32, z64 or f31.")] = "z32",
    active: Annotated[bool, typer.Option("--active", help="Signed keys and consistency checks.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the made-up data and dropouts, not of any key.")] = 0,
    json: Json = False,
) -> None:
    """A secure sum: CPU of client and server, bytes, and the raw cipher's time for the same masks."""
    with progress_console().status(f"{clients} clients × {length} words"):
        result = bench_secagg(
            clients,
            length,
            dropout=dropout,
            neighbours=neighbours,
            rows=rows,
            share=share,
            ring=ring,
            active=active,
            seed=seed,
        )
    if json:
        emit_json(result)
    else:
        console().print(
            table("Secure aggregation", ("", ""), [(key, _shown(value)) for key, value in result.items()])
        )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
