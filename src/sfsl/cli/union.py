"""``sfsl union``: the private set union of several parties' files."""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sfsl.cli.output import Json, emit_json, facts, progress_console
from sfsl.errors import InputError
from sfsl.union import hash_strings, private_set_union
from sfsl.union.encoding import STRING_DOMAIN


def union(
    files: Annotated[list[Path], Argument(help="One file per party, one index (or string) per line.")],
    domain: Annotated[
        int | None, Option(help="Indices are 0..N-1; up to 2^63. Needed unless --strings.")
    ] = None,
    strings: Annotated[bool, Option("--strings", help="Lines are strings, hashed to a domain.")] = False,
    encoding: Annotated[str, Option(help="auto, identity, bloom or sketch.")] = "auto",
    capacity: Annotated[
        int | None, Option(help="Largest union that fits. Default: parties times largest set.")
    ] = None,
    threshold: Annotated[int | None, Option(help="Parties that must last. Default: over 2/3.")] = None,
    json: Json = False,
) -> None:
    """Unite the index sets of several parties; only the union is revealed, not who holds what.

    All parties run in this process, on the real protocol: this shows what comes out and what it costs. The
    union goes to stdout, one element a line; the table of costs to stderr. With --strings the server sees
    hashes, and whoever guesses a string can tell whether it is in the union.
    """
    if domain is None and not strings:
        raise InputError("--domain N is needed: indices are 0..N-1 (or --strings for lines of text)")
    lines = {file: _lines(file) for file in files}
    if len(lines) < len(files):
        raise InputError("a file is named twice; each party has a file of its own")
    size = domain if domain is not None else STRING_DOMAIN
    names: dict[int, str] = {}
    sets: dict[str, list[int]] = {}
    for number, (file, content) in enumerate(lines.items(), 1):
        party = f"{number}: {file.name}"[:64]
        if strings:
            known = hash_strings(content, size)
            names |= known
            sets[party] = list(known)
        else:
            sets[party] = [_index(file, place, line) for place, line in enumerate(content, 1)]
    with progress_console().status(f"uniting the sets of {len(sets)} parties"):
        result = private_set_union(
            sets, domain=size, encoding=encoding, capacity=capacity, threshold=threshold
        )
    found, cost = result.indices.tolist(), result.cost
    elements: list[Any] = sorted(names[index] for index in found) if strings else found
    summary = {
        "union_size": len(found),
        "domain": size,
        "encoding": result.encoding,
        "reason": result.reason,
        "capacity": result.capacity,
        "false_positives_expected": result.false_positives_expected,
        "parties": len(result.survivors),
        "client_bytes_up": round(mean(cost.client_bytes_up.values())),
        "client_bytes_down": round(mean(cost.client_bytes_down.values())),
        "client_seconds": mean(cost.client_seconds.values()),
        "server_seconds": cost.server_seconds,
    }
    if json:
        emit_json({"union": elements, **summary})
        return
    for element in elements:
        typer.echo(element)
    progress_console().print(facts("Private set union", summary))


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _index(file: Path, place: int, line: str) -> int:
    try:
        return int(line)
    except ValueError:
        what = f"{file}, entry {place}: {line[:40]!r} is not a whole number"
        raise InputError(f"{what} (--strings for lines of text)") from None
