"""``python -m sfsl_research.trace``: what one round of a carrier touches, room by room."""

import json as json_text
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sfsl.errors import SfslError
from sfsl_research.trace.calls import PACKAGE, Calls, Edge
from sfsl_research.trace.carriers import CARRIERS, trace

_BUSIEST = 15


def floors() -> dict[str, int]:
    """How far down each room is, by the import contract of the clone; nothing where there is no clone."""
    try:
        settings = tomllib.loads((Path(PACKAGE).parents[1] / "pyproject.toml").read_text())
    except FileNotFoundError:
        return {}
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    found = {room.strip(): floor for floor, rooms in enumerate(layers) for room in rooms.split("|")}
    return found | {"ray": found["carriers"]}  # the carrier that is in a package of its own


def room_of(file: str) -> str:
    """``rounds`` for ``rounds/server.py``, ``codec`` for ``codec.py``; a carrier is a room of its own."""
    parts = file.removesuffix(".py").split("/")
    return "/".join(parts[:2]) if parts[0] == "carriers" and len(parts) > 2 else parts[0]


def summary(calls: Calls) -> dict[str, Any]:
    """Files, edges, edges between rooms, pairs of rooms that call each other, and calls that go upwards."""
    rooms: Counter[Edge] = Counter()
    busy: Counter[str] = Counter()
    for caller, called in calls.edges:
        rooms[room_of(caller), room_of(called)] += 1
        busy.update((caller, called))
    floor = floors()
    between = {pair: count for pair, count in rooms.items() if pair[0] != pair[1]}
    return {
        "files": len(calls.files),
        "edges": len(calls.edges),
        "edges_within_rooms": sum(count for (one, other), count in rooms.items() if one == other),
        "edges_between_rooms": sum(between.values()),
        "rooms": {f"{one} -> {other}": count for (one, other), count in rooms.most_common()},
        "both_ways": sorted(
            f"{one} <-> {other}" for one, other in between if one < other and (other, one) in between
        ),
        "upwards": sorted(f"{one} -> {other}" for one, other in calls.edges if _rises(floor, one, other)),
        "busiest": dict(busy.most_common(_BUSIEST)),
        "files_touched": sorted(calls.files),
        "all_edges": sorted(f"{one} -> {other}" for one, other in calls.edges),
    }


def _rises(floor: Mapping[str, int], caller: str, called: str) -> bool:
    """Whether a room calls one above it: a callback, or a method that the lower room was given."""
    lower, upper = (floor.get(room_of(one).split("/")[0]) for one in (caller, called))
    return lower is not None and upper is not None and upper < lower


def show(
    carrier: Annotated[str, typer.Option(help=f"Which one: {', '.join(CARRIERS)}.")] = "local",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every edge.")] = False,
) -> None:
    """Trace one small masked round and count files touched and calls between files."""
    with tempfile.TemporaryDirectory(prefix="sfsl-trace-") as folder:
        found = summary(trace(carrier, Path(folder)))
    if json:
        typer.echo(json_text.dumps(found, indent=2))
        return
    typer.echo(
        f"{carrier}: {found['files']} files, {found['edges']} edges between files, "
        f"{found['edges_within_rooms']} of them within a room\n"
    )
    for title in ("rooms", "busiest"):
        typer.echo(f"{title}:")
        for name, count in found[title].items():
            typer.echo(f"  {count:4}  {name}")
    for title in ("both_ways", "upwards"):
        typer.echo(f"{title.replace('_', ' ')}:")
        for name in found[title]:
            typer.echo(f"  {name}")


def main() -> None:
    try:
        typer.run(show)
    except SfslError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
