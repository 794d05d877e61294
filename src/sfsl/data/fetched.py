"""What stands beside a table that was fetched: where it is from, and what it was when it was written."""

import json
from pathlib import Path
from typing import Any

from sfsl.checksums import sha256_of, with_json_sum, without_json_sum
from sfsl.durable import system_errors_as, write_whole
from sfsl.errors import InputError

_TABLE = "table_sha256"  # versions before this one did not note it


def record_of(table: Path) -> Path:
    return table.with_name(f"{table.name}.source.json")


def note_table(table: Path, facts: dict[str, Any]) -> None:
    """Write the facts about a table beside it, with its digest."""
    text = json.dumps({**facts, _TABLE: sha256_of(table)}, indent=2).encode()
    with system_errors_as(InputError, f"write {record_of(table)}"):
        write_whole(record_of(table), with_json_sum(text + b"\n"))


def read_record(table: Path, advice: str) -> dict[str, Any]:
    """Return the facts, or none where there is no such file; ``advice``: what to do with a damaged one."""
    record = record_of(table)
    if not record.is_file():
        return {}
    try:
        facts = json.loads(without_json_sum(record.read_bytes(), str(record), advice))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def require_as_fetched(table: Path) -> None:
    """Refuse a table that is not as it was written: a byte of it may be damaged that no line shows."""
    advice = f"remove it if {table.name} is sound"
    was = read_record(table, advice).get(_TABLE)
    if was is not None and was != sha256_of(table):
        raise InputError(
            f"{table} is not as sfsl data fetch wrote it: {record_of(table)} has another SHA-256. Fetch it "
            f"again; or, if you changed it yourself, remove {record_of(table).name}"
        )
