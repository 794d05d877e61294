"""The command ``sfsl``. One file per group of commands; this one puts them together."""

import sys
from typing import Annotated

import typer

from sfsl import __version__
from sfsl.cli import bench, data, join, keys, plan, privacy, report, reproduce, run, serve, swarm, union
from sfsl.cli.output import fail, warned
from sfsl.errors import SfslError

app = typer.Typer(
    name="sfsl",
    help="Secure federated submodel learning.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(keys.app, name="keys")
app.add_typer(privacy.app, name="privacy")
run.register(app)
plan.register(app)
report.register(app)
reproduce.register(app)
join.register(app)
swarm.register(app)
serve.register(app)
data.register(app)
app.command(epilog="Example:  sfsl union alice.txt bob.txt carol.txt --domain 1000000 --json")(union.union)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sfsl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; errors and warnings of ours become one line on stderr, errors exit status 1."""
    try:
        with warned():
            app()
    except SfslError as error:
        fail(error)
        sys.exit(1)
