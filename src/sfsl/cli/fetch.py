"""``sfsl data fetch``: public data sets over the network, resumable, checked, with their terms."""

import hashlib
import http.client
import json as json_text
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from typer import Argument, Option

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.cli.output import Json, present, progress_console, table
from sfsl.data.fetched import note_table, read_record, record_of
from sfsl.data.public import DATA_SETS, PublicData, digest_of, require_checksum, write_table
from sfsl.durable import write_whole
from sfsl.errors import InputError

_PIECE = 1 << 18
_NOTED = 1 << 26  # bytes at most that a kill loses of a download
_TRIES = 5  # in a row that bring nothing
_SECONDS = 60.0  # of silence
_OTHERWISE = "A file that you got otherwise is read with --from FILE"


def fetch(
    name: Annotated[str | None, Argument(metavar="NAME", help="A data set; none lists them.")] = None,
    out: Annotated[
        Path | None, Option("-o", "--out", metavar="FILE", help="The table to write. Default: NAME.csv.")
    ] = None,
    source: Annotated[
        str | None, Option("--from", metavar="FILE|URL", help="Another address, or a file you have already.")
    ] = None,
    accept: Annotated[bool, Option("--accept", help="You have read the terms, and accept them.")] = False,
    json: Json = False,
) -> None:
    """Fetch a public data set, check it, and write it as a table with names of columns.

    A download that breaks off goes on where it stopped. What came, from where and with which SHA-256 is
    written beside the table; fetching it again compares.
    """
    if name is None:
        rows = [(one, data.about, data.page) for one, data in DATA_SETS.items()]
        rows.insert(0, ("sample", "made-up film ratings that come with the package", ""))
        sets = {
            one: {"about": data.about, "page": data.page, "terms": data.terms}
            for one, data in DATA_SETS.items()
        }
        present({"data sets": sets}, json, table("sfsl data fetch NAME", ("name", "what", "page"), rows))
        return
    if name == "sample":
        from sfsl.cli.data import SAMPLE, sample

        sample(out or SAMPLE, json)
        return
    if name not in DATA_SETS:
        raise InputError(f"there is no data set {name!r}; there are sample, {', '.join(DATA_SETS)}")
    data, target = DATA_SETS[name], out or Path(f"{name}.csv")
    if target.exists():
        raise InputError(f"{target} exists already; choose another name with --out, or remove it")
    address = source or data.address
    if not address:
        raise InputError(
            f"{name} has no address to fetch it from without an account: get it at {data.page}, then sfsl "
            f"data fetch {name} --from FILE"
        )
    _require_accepted(name, data, accept)
    remote = urlsplit(address).scheme in ("http", "https")
    download = target.with_name(f"{target.name}.download") if remote else Path(address)
    came = None
    if remote:
        came = _download(address, download)
    elif not download.is_file():
        raise InputError(f"{address} is neither an address (http, https) nor a file")
    if not source:
        require_checksum(download, data.checksum, name)
    sha256 = digest_of(download, "sha256")
    if came is not None and came != sha256:
        raise InputError(f"{download} is not what came: the disk changed it. Remove it and fetch it again")
    _require_as_before(target, name, sha256)
    with progress_console().status(f"Writing {target}"):
        lines = write_table(download, target, data)
    facts = {
        "data": name,
        "from": address,
        "page": data.page,
        "terms": data.terms,
        "sha256": sha256,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    note_table(target, facts)
    if remote:
        download.unlink()
    checked = (
        "its checksum is the known one"
        if data.checksum and not source
        else f"no checksum of it is known beforehand; {record_of(target)} has the one that came"
    )
    present(
        {"file": str(target), "lines": lines, **facts},
        json,
        f"Wrote {target}: {lines:,} lines; {checked}. Look at it: sfsl data inspect {target}. Train on it: "
        f'sfsl run --data {target} --label "{data.label}"',
    )


def _require_accepted(name: str, data: PublicData, accept: bool) -> None:
    """Show the terms; go on only with somebody's yes."""
    typer.echo(f"{name}: {data.about}. {data.page}\nTerms: {data.terms}.", err=True)
    if accept or (sys.stdin.isatty() and typer.confirm("Do you accept them?", err=True)):
        return
    raise InputError(f"the terms of {name} ({data.page}) must be accepted; read them, then add --accept")


def _require_as_before(target: Path, name: str, sha256: str) -> None:
    record = record_of(target)
    before = read_record(target, f"remove it if {name} may be taken for what it is now")
    if before.get("data") == name and before.get("sha256") not in (None, sha256):
        raise InputError(
            f"{name} is not what came the last time: its SHA-256 is {sha256}, and {record} says "
            f"{before['sha256']}; if a new version is what you want, remove {record}"
        )


def _download(address: str, path: Path) -> str:
    """Fetch a file beside where it goes, from where an earlier try stopped; return what SHA-256 came."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console()) as progress:
        bar, failures = progress.add_task("", total=None), 0

        def seen(got: int, whole: int | None) -> None:
            progress.update(bar, completed=got, total=whole)

        while failures < _TRIES:
            before = _size(path)
            try:
                return _go_on(address, path, seen)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500:
                    raise InputError(
                        f"{address} answers {error.code} {error.reason}; is it still there?"
                    ) from None
                reason: object = error
            except (OSError, http.client.HTTPException) as error:
                reason = error
            failures = 0 if _size(path) > before else failures + 1
    raise InputError(
        f"{address} cannot be fetched: {reason}; run the same command again to go on. {_OTHERWISE}"
    )


def _go_on(address: str, path: Path, seen: Callable[[int, int | None], None]) -> str:
    """Fetch what is missing of a file; return the SHA-256 of all of it, as it came. What is there counts as
    far as it is what came, and only as long as the server has the same file."""
    note = path.with_name(f"{path.name}.etag")
    tag, got, came = _so_far(path, note)
    headers = {"User-Agent": "sfsl"}
    if got:
        headers |= {"Range": f"bytes={got}-", "If-Range": tag}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 -- http and https only, see above
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {got}-")
        if not goes_on:
            got, came = 0, hashlib.sha256()
        tag = answer.headers.get("ETag") or (tag if goes_on else "")
        length = answer.headers.get("Content-Length")
        whole = got + int(length) if length is not None and length.isdigit() else None
        with path.open("r+b" if goes_on else "wb") as file:
            file.truncate(got)
            file.seek(got)
            noted = got
            try:
                while piece := answer.read(_PIECE):
                    file.write(piece)
                    came.update(piece)
                    got += len(piece)
                    seen(got, whole)
                    if got - noted >= _NOTED:
                        file.flush()
                        _note(note, tag, got, came.hexdigest())
                        noted = got
            finally:
                with suppress(OSError):
                    file.flush()
                    _note(note, tag, got, came.hexdigest())
    if whole is not None and got < whole:
        raise OSError(f"it broke off after {got:,} of {whole:,} bytes")
    note.unlink(missing_ok=True)
    return came.hexdigest()


def _note(note: Path, tag: str, got: int, sha256: str) -> None:
    """Note how far it has come, which may be less than is there. Where the server names no version, nothing
    can be gone on with."""
    if tag:
        facts = {"etag": tag, "bytes": got, "sha256": sha256}
        write_whole(note, with_json_sum(json_text.dumps(facts).encode()))


def _so_far(path: Path, note: Path) -> tuple[str, int, "hashlib._Hash"]:
    """Return of which version how much is there, and its digest so far: nothing, unless it is as noted."""
    try:
        facts = json_text.loads(without_json_sum(note.read_bytes(), str(note)))
        tag, size, sha256 = str(facts["etag"]), int(facts["bytes"]), facts["sha256"]
        came, left = hashlib.sha256(), size
        with path.open("rb") as file:
            while left and (piece := file.read(min(_PIECE, left))):
                came.update(piece)
                left -= len(piece)
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return "", 0, hashlib.sha256()
    return (tag, size, came) if not left and came.hexdigest() == sha256 else ("", 0, hashlib.sha256())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
