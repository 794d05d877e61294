"""How long a server's certificate lasts: it does not start with one that has ended, and says in time that one
will. Clients refuse a server from the second on in which its certificate has ended."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sfsl.carriers.https.authority import valid_between
from sfsl.errors import KeyFileError

log = logging.getLogger(__name__)

WARN_DAYS = 30
_DAY_SECONDS = 86_400.0
_RENEW = (
    "make a new one (sfsl keys server DIR --host NAME --name server-2), name it in serve.certificate and "
    "serve.key, and start the server again"
)


def utc_now() -> datetime:
    return datetime.now(UTC)


def require_current(certificate: Path, *, now: datetime) -> datetime:
    """Return when a certificate ends; refuse one that no client takes now."""
    begins, ends = valid_between(certificate)
    if ends <= now:
        raise KeyFileError(
            f"the certificate {certificate} ended on {ends:%Y-%m-%d %H:%M} UTC, and here it is "
            f"{now:%Y-%m-%d %H:%M}: no client connects any more. If the clock is right, {_RENEW}"
        )
    if begins > now:
        raise KeyFileError(
            f"the certificate {certificate} begins on {begins:%Y-%m-%d %H:%M} UTC, and here it is "
            f"{now:%Y-%m-%d %H:%M}: set the clock, or make another certificate"
        )
    return ends


def warn_of_end(certificate: Path, ends: datetime, *, now: datetime) -> None:
    """Say in the log that a certificate ends soon, or has ended; nothing where it lasts."""
    left = ends - now
    if left <= timedelta(0):
        log.error("the certificate %s ended on %s: clients refuse this server. %s", certificate, ends, _RENEW)
    elif left < timedelta(days=WARN_DAYS):
        log.warning("the certificate %s ends in %d days, on %s: %s", certificate, left.days, ends, _RENEW)


async def watch_certificate(
    certificate: Path, ends: datetime, now: Callable[[], datetime] = utc_now, every: float = _DAY_SECONDS
) -> None:
    """Warn when a server starts and once a day from then on, for as long as it runs."""
    while True:
        warn_of_end(certificate, ends, now=now())
        await asyncio.sleep(every)
