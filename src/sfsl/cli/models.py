"""``sfsl models``: versions of the model in a server's folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from sfsl.cli.output import Json, present, table
from sfsl.service.versions import Version, roll_back, tag, versions

app = typer.Typer(help="Versions of a server's model: list, tag, roll back.", no_args_is_help=True)

Folder = Annotated[Path, Argument(metavar="FOLDER", help="The folder of a server, or of one on Flower.")]
Name = Annotated[str, Argument(metavar="NAME", help="What the version is called.")]


@app.command("list", epilog="Example:  sfsl models list /var/lib/sfsl --json")
def list_(folder: Folder, json: Json = False) -> None:
    """List the model that is served and the versions that were tagged; a server may run meanwhile."""
    found = versions(folder)
    lines = [(one.name, str(one.round), _moved(one)) for one in found]
    shown = table(str(folder), ("version", "round", "rows that moved"), lines)
    present({"versions": [asdict(one) for one in found]}, json, shown)


@app.command("tag", epilog="Example:  sfsl models tag /var/lib/sfsl before-spring")
def tag_(folder: Folder, name: Name, json: Json = False) -> None:
    """Keep the model as it is now under a name; a server may run meanwhile."""
    made = tag(folder, name)
    present(asdict(made), json, f"Tagged {made.name}: the model after round {made.round}")


@app.command("rollback", epilog="Example:  sfsl models rollback /var/lib/sfsl before-spring")
def rollback(folder: Folder, name: Name, json: Json = False) -> None:
    """Put a version back, as a new round in which no client took part; the server is stopped.

    Rounds go on from there: no number is used twice, and what clients have spent stays spent. The model that
    it replaces is kept as the version round-N.
    """
    now = roll_back(folder, name)
    said = (
        f"Put {name} back: it is the model of round {now.round} now; the one before is round-{now.round - 1}"
    )
    present(asdict(now) | {"restored": name}, json, said)


def _moved(one: Version) -> str:
    return ", ".join(f"{count:,} of {name}" for name, count in one.rows.items())
