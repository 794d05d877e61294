"""``sfsl backup`` and ``sfsl restore``: a copy of a server's folder, and the way back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument

from sfsl.cli.output import Json, present
from sfsl.service.backup import back_up
from sfsl.service.backup import restore as put_back


def backup(
    state: Annotated[Path, Argument(metavar="STATE", help="The server's folder (serve.state).")],
    target: Annotated[Path, Argument(metavar="BACKUP", help="A folder that is not there yet.")],
    json: Json = False,
) -> None:
    """Copy a server's folder, also while the server runs: model, registry, metrics, log of clients.

    The copy is whole or not there, and has the log's private key in it: keep it as you keep the server. The
    settings, the list of clients and the certificate are elsewhere, and yours to keep.
    """
    made = back_up(state, target, now=datetime.now(UTC))
    present(
        msgspec.to_builtins(made),
        json,
        f"{target}: round {made.round} of deployment {made.deployment}, {len(made.files)} files",
    )


def restore(
    source: Annotated[Path, Argument(metavar="BACKUP", help="What sfsl backup made.")],
    state: Annotated[Path, Argument(metavar="STATE", help="A folder that is not there yet, or empty.")],
    json: Json = False,
) -> None:
    """Put a backup back as a server's folder, every byte checked. The server is stopped meanwhile.

    What came after the backup is forgotten: clients that were revoked since are let in again, and must be
    revoked again before the server starts.
    """
    made = put_back(source, state)
    present(
        msgspec.to_builtins(made),
        json,
        f"{state}: round {made.round} of deployment {made.deployment}, as of {made.made}",
        f"Forgotten is what came since. Compare, and revoke again:  sfsl keys list --registry {state}/"
        "registry.sqlite",
    )
