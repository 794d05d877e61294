"""The command ``sfsl``. One file per group of commands; this one puts them together."""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from sfsl import __version__
from sfsl.cli import (
    backup,
    catalogue,
    data,
    join,
    keys,
    model,
    models,
    plan,
    predict,
    privacy,
    report,
    run,
    serve,
    union,
)
from sfsl.cli.output import warned
from sfsl.errors import InputError, SfslError
from sfsl.installed import install_research

app = typer.Typer(
    name="sfsl",
    help="Secure federated submodel learning.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(catalogue.app, name="catalogue")
app.add_typer(data.app, name="data")
app.add_typer(keys.app, name="keys")
app.add_typer(models.app, name="models")
app.add_typer(privacy.app, name="privacy")
# Each command with what its help ends with.
COMMANDS: dict[Callable[..., None], str] = {
    run.run: "Examples:  sfsl run   |   "
    'sfsl run --data ratings.csv --columns user=user_id,item=movie_id,time=timestamp --label "rating>=4"'
    "   |   "
    "sfsl run my.toml --out runs/cpp3 --privacy cpp3 --rounds 200   |   "
    "sfsl run --data amazon:interactions.tsv.gz --set faults.submodel=0.1   |   "
    "sfsl run --paper   |   sfsl run --engine ray --set run.together=25   |   "
    "sfsl run --out runs/cpp3 --resume",
    run.init: "Example:  sfsl init my.toml && sfsl run my.toml --out runs/first",
    model.evaluate: "Examples:  sfsl evaluate runs/first --json   |   sfsl evaluate films.zip --data new.csv",
    model.export: "Examples:  sfsl export runs/first films.zip   |   sfsl export srv films --onnx --last"
    "   |   sfsl export runs/first state.pt",
    predict.predict: "Examples:  sfsl predict films.zip --history 12,7 --top 10   |   "
    "sfsl predict films.zip --data ratings.csv --user 17   |   "
    "sfsl predict films.zip --history 12,7 --items 3,5 --json   |   "
    "sfsl predict films.zip --data ratings.csv --requests pairs.csv   |   sfsl predict films.zip --state me",
    plan.plan: "Examples:  sfsl plan   |   sfsl plan --config run.toml --json   |   "
    "sfsl plan --clients 200 --set-size 50 --union 8000 --table item:2000000000:32 --dense 20000",
    report.report: "Example:  sfsl report runs/cpp1 runs/cpp2 --out compared",
    join.join: "Examples:  sfsl join --server https://host:8443 --ca authority.pem --data my.csv --state me"
    "   |   sfsl join --server https://host:8443 --data my.csv --state me --rounds 1 --json"
    "   |   sfsl join --server https://host:8443 --data my.csv --state me --hot-epsilon 2 --participations 20"
    "   |   sfsl join --server https://host:8443 --data my.csv --state me --exact-sums --privacy cpp3",
    serve.serve: "Examples:  sfsl serve --settings >> my.toml   |   sfsl serve my.toml --out srv --port 9443"
    "   |   sfsl serve my.toml --catalogue catalogue.json",
    backup.backup: "Example:  sfsl backup /var/lib/sfsl /backup/sfsl-monday",
    backup.restore: "Example:  sfsl restore /backup/sfsl-monday /var/lib/sfsl",
    union.union: "Example:  sfsl union alice.txt bob.txt carol.txt --domain 1000000 --json",
}
for command, examples in COMMANDS.items():
    app.command(epilog=examples)(command)

# What measures and reproduces is a package of its own, which a deployment does not install.
# By the name of its entry point, which is that of its command: the group it joins, and what it is for.
RESEARCH = {
    "audit": (privacy.app, "Attack simulated clients: is epsilon kept?"),
    "bench": (app, "Measure what things cost on this machine."),
    "reproduce": (app, "Make the paper's figures and tables again."),
    "swarm": (app, "Run many simulated clients against a server."),
    "tune": (app, "Search for settings that suit your data."),
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
        f"{context.command_path} is in a package of its own, which is not installed here; install it with: "
        f"{install_research()}"
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
