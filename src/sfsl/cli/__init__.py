"""The command ``sfsl``. One file per group of commands; this one puts them together."""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from sfsl import __version__
from sfsl.cli import data, join, keys, plan, privacy, report, run, serve, union
from sfsl.cli.output import warned
from sfsl.errors import InputError, SfslError

app = typer.Typer(
    name="sfsl",
    help="Secure federated submodel learning.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="catalogue")
app.add_typer(keys.app, name="keys")
app.add_typer(privacy.app, name="privacy")
run.register(app)
plan.register(app)
report.register(app)
join.register(app)
serve.register(app)
data.register(app)
app.command(epilog="Example:  sfsl union alice.txt bob.txt carol.txt --domain 1000000 --json")(union.union)

# What measures and reproduces is a package of its own, which a deployment does not install.
# By the name of its entry point, which is that of its command: the group it joins, and what it is for.
RESEARCH = {
    "audit": (privacy.app, "Attack simulated clients: is epsilon kept?"),
    "bench": (app, "Measure what things cost on this machine."),
    "reproduce": (app, "Make the paper's figures and tables again."),
    "swarm": (app, "Run many simulated clients against a server."),
}


def _add_research() -> None:
    """Add the commands of ``sfsl-research``; where it is not installed, each says how to get it."""
    found = {one.name: one for one in entry_points(group="sfsl.commands")}
    for name, (group, about) in RESEARCH.items():
        if name in found:
            found[name].load()(group)
        else:
            anything = {"allow_extra_args": True, "ignore_unknown_options": True}
            group.command(name, help=f"{about} (Not installed.)", context_settings=anything)(_not_installed)


def _not_installed(context: typer.Context) -> None:
    raise InputError(
        f"{context.command_path} is in a package of its own, which is not installed here; from a clone: "
        "pip install ./research, else: pip install 'sfsl[research]'"
    )


_add_research()


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
        typer.echo(f"sfsl: {error}", file=sys.stderr)
        sys.exit(1)
