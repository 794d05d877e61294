"""A certificate for a server on loopback that was given none, under an authority of its own: for tests.

Its key lies beside the server, where no real authority's belongs.
"""

import os
from datetime import datetime
from pathlib import Path

from sfsl.carriers.https.authority import AUTHORITY, create_authority, expires_within, issue_server
from sfsl.errors import KeyFileError

SERVER = "server"
HOSTS = ("localhost", "127.0.0.1", "::1")
_SERVER_DAYS = 397
_AUTHORITY_DAYS = 3650
_RENEW_DAYS = 7  # before it ends: servers run for days


def loopback_tls(folder: Path, *, now: datetime) -> bool:
    """Make ``folder`` hold an authority and a server's certificate that will last; whether the authority is
    new, and clients need it. What is there and good is kept. One process at a time."""
    fresh = not _lasts(folder, AUTHORITY, _SERVER_DAYS + 1, now)
    if fresh:
        for name in (SERVER, AUTHORITY):
            _remove(folder, name)
        create_authority(folder, "sfsl test authority", _AUTHORITY_DAYS, now=now)
    if not _lasts(folder, SERVER, _RENEW_DAYS, now):
        _remove(folder, SERVER)
        issue_server(folder, HOSTS, _SERVER_DAYS, now=now, name=SERVER)
    return fresh


def _lasts(folder: Path, name: str, days: float, now: datetime) -> bool:
    """The certificate is written after its key: with it, both are there."""
    certificate = folder / f"{name}.pem"
    return certificate.exists() and not expires_within(certificate, days, now=now)


def _remove(folder: Path, name: str) -> None:
    """Certificate first: what is left of a pair is a key, which is removed the next time."""
    try:
        for kind in ("pem", "key"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    except OSError as error:
        raise KeyFileError(f"cannot renew the files in {os.fspath(folder)}: {error.strerror}") from None
