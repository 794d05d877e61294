"""The settings of a server: the section [serve], beside those of a run file that say what is trained."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import ParameterError
from sfsl.secagg.messages import MAX_COMPLETE
from sfsl.settings.run import MOST_CLIENTS, RunConfig, from_sections
from sfsl.settings.sections import explained, section_from
from sfsl.settings.terms import PERIOD_DAYS
from sfsl.settings.toml import Sections, read_sections, with_settings, written_section

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Rate = Annotated[float, Meta(gt=0, le=1e6)]

SECTION = "serve"
SERVED = ("hot", "sfsl")
# Rounds that train in which a client can be, where a server's settings do not say.
PARTICIPATIONS = 10
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# A cohort this much smaller than planned is still worth a round.
_LEAST_SHARE = 0.8


@explained
class ServeSettings(Checked, frozen=True):
    """How the model is served.

    host: The address to listen on; 0.0.0.0 is all of this machine's.
    port: The port; 0 takes a free one.
    certificate: TLS: the certificate's file (sfsl keys server makes one). On loopback it and the key may be
        empty: the server then makes its own, for tests, in state/tls.
    key: TLS: the file of its private key.
    plain: No TLS: only on loopback, for tests or behind a proxy on this machine that has it.
    proxied: Behind a proxy on this machine: take clients' addresses from X-Forwarded-For.
    hosts: Names that clients call this server by and that are not in its certificate, with spaces between:
        behind a proxy, the proxy's. Requests that were signed for another host are refused.
    state: The folder of the store, the registry and the metrics.
    catalogue: What the model is about: a file that sfsl catalogue made. [data] is then not looked at. Empty:
        tables are those of [data], whose samples are read and not used.
    rounds: Stop after so many rounds in the store; 0 goes on for ever.
    min_cohort: Least clients in a round, where round.clients did not check in in time. "auto" is 80 % of
        round.clients.
    check_in_seconds: How long the server waits for a whole cohort once someone has checked in.
    phase_seconds: How long a client has for an answer; whoever is late is out of the round.
    training_seconds: How long it has to download its submodel, train and upload.
    poll_seconds: How long a question for the next message is held open.
    grace_seconds: How long a round may go on when the server is told to stop, before it is aborted.
    largest_set: The most rows a client has. Unions are planned for the worst case of it; a union over what
        was planned costs the round. "auto" is the most in the statistics of the catalogue.
    largest_body: The most bytes of any body. Each answer has its own limit too.
    body_seconds: How long a whole body may take to arrive.
    client_rate: Requests a second of one client, in the long run.
    client_burst: Requests of one client at once.
    address_rate: Requests a second from one address, in the long run.
    address_burst: Requests from one address at once.
    most_connections: Open connections in all.
    most_per_address: Open connections of one address.
    most_clients: Clients that are checked in at a time.
    clock_seconds: How far the clock of a signed request may be off, either way.
    period_days: A client is invited once in so many days. "auto" is what clients allow unless told otherwise:
        7 with exact sums, of which they take one round in a period, and 1 with scheme "hot". 0 sets no limit
        here; clients keep to their own budgets anyway.
    enrolment: Who may enrol: the public keys on a "list", or in "open" mode anyone, which invites Sybils.
    clients: The file of the "list": a public key in hexadecimal on each line.
    most_enrolled: With "open" enrolment: clients in all.
    authorities: Public keys of enrolment authorities, with spaces between: only clients that one of them has
        vouched for on the list are enrolled (sfsl keys log vouch). Their keys belong on no server.
    witnesses: Public keys of those who witness the log of enrolled clients, with spaces between.
    least_witnesses: So many of them sign a head of the log before clients are shown it. "auto" is all.
    active: Active mode: clients that pin each other's identities check what they are told.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8443
    certificate: str = ""
    key: str = ""
    plain: bool = False
    proxied: bool = False
    hosts: str = ""
    state: str = "sfsl-serve"
    catalogue: str = ""
    rounds: Annotated[int, Meta(ge=0, le=10**7)] = 0
    min_cohort: Annotated[int, Meta(ge=2, le=MOST_CLIENTS)] | Literal["auto"] = "auto"
    check_in_seconds: Seconds = 60.0
    phase_seconds: Seconds = 60.0
    training_seconds: Seconds = 600.0
    poll_seconds: Annotated[float, Meta(gt=0, le=50)] = 25.0
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    largest_set: Annotated[int, Meta(ge=1, le=2**24)] | Literal["auto"] = 1000
    largest_body: Annotated[int, Meta(ge=4096, le=2**32)] = 64 << 20
    body_seconds: Seconds = 60.0
    client_rate: Rate = 20.0
    client_burst: Annotated[int, Meta(ge=1, le=10**6)] = 100
    address_rate: Rate = 500.0
    address_burst: Annotated[int, Meta(ge=1, le=10**6)] = 2000
    most_connections: Annotated[int, Meta(ge=1, le=10**6)] = 5000
    most_per_address: Annotated[int, Meta(ge=1, le=10**6)] = 1000
    most_clients: Annotated[int, Meta(ge=2, le=10**6)] = 10_000
    clock_seconds: Annotated[float, Meta(ge=1, le=3600)] = 120.0
    period_days: Annotated[int, Meta(ge=0, le=3650)] | Literal["auto"] = "auto"
    enrolment: Literal["list", "open"] = "list"
    clients: str = ""
    most_enrolled: Annotated[int, Meta(ge=1, le=10**9)] = 1000
    authorities: str = ""
    witnesses: str = ""
    least_witnesses: Annotated[int, Meta(ge=0, le=64)] | Literal["auto"] = "auto"
    active: bool = False

    def require_sound(self) -> None:
        if self.plain and (self.certificate or self.key):
            raise ParameterError("serve.plain = true and a certificate contradict each other")
        if self.plain and self.host not in _LOOPBACK:
            raise ParameterError(
                f"serve.plain = true on {self.host}: without TLS only loopback, {_LOOPBACK[0]}"
            )
        if not self.plain and not ((self.certificate and self.key) or self.own_tls):
            raise ParameterError(
                "serve.certificate and serve.key are needed for TLS; make them with: sfsl keys authority tls "
                "&& sfsl keys server tls --host NAME"
            )
        if (self.enrolment == "list") != (self.clients != ""):
            raise ParameterError(
                f'serve.enrolment = "{self.enrolment}" with serve.clients = "{self.clients}": "list" needs '
                'the file of public keys, "open" has none'
            )

    @property
    def own_tls(self) -> bool:
        """Whether the server makes its certificate itself."""
        return not (self.plain or self.certificate or self.key) and self.host in _LOOPBACK


class ServeConfig(Checked, frozen=True):
    """What is trained, and how it is served."""

    run: RunConfig
    serve: ServeSettings

    def require_sound(self) -> None:
        one, engine = self.run.round, self.run.run.engine
        if one.scheme not in SERVED:
            raise ParameterError(
                f'round.scheme = "{one.scheme}" is for simulations; a server runs {" or ".join(SERVED)}'
            )
        if self.serve.active and one.clients > MAX_COMPLETE:
            raise ParameterError(
                f"round.clients = {one.clients} with serve.active = true: in active mode everybody checks "
                f"everybody, which is for {MAX_COMPLETE} clients at the most"
            )
        if one.sums == "plain":
            raise ParameterError('round.sums = "plain" hides nothing; clients on a network refuse it')
        if one.cohorts > 1 or engine != "local":
            raise ParameterError(
                f'round.cohorts = {one.cohorts} and run.engine = "{engine}" are for simulations; a server '
                "runs one cohort at a time"
            )
        if self.serve.largest_set == "auto" and not self.serve.catalogue:
            raise ParameterError(
                'serve.largest_set = "auto" is read from the statistics of serve.catalogue; give one, or '
                "write a number"
            )
        if not 2 <= self.min_cohort <= one.clients:
            raise ParameterError(
                f"serve.min_cohort = {self.min_cohort}, but a round has at most {one.clients} clients "
                "(round.clients)"
            )

    @property
    def min_cohort(self) -> int:
        return least_cohort(self.run.round.clients, self.serve.min_cohort)

    @property
    def period_days(self) -> int:
        return days_between(self.run.round.scheme, self.serve.period_days)


def days_between(scheme: str, chosen: int | Literal["auto"]) -> int:
    """Return in how many days a client is invited once. "auto" follows the clients: with exact sums a period
    of theirs; over hot rows, which they count by epsilon and not by periods, a day."""
    if chosen != "auto":
        return chosen
    return 1 if scheme == "hot" else PERIOD_DAYS


def least_cohort(clients: int, chosen: int | Literal["auto"]) -> int:
    """Return the least clients of a round that is to have so many."""
    return min(clients, max(3, math.ceil(_LEAST_SHARE * clients))) if chosen == "auto" else chosen


Given = ServeConfig | Mapping[str, Any] | str | Path


def run_sections(sections: Mapping[str, object]) -> Sections:
    """Return what a server's file says about rounds, with the defaults of a deployment. Its scheme is "hot"
    unless it says otherwise. A server does not know how many clients there are: noise is then made for
    ``PARTICIPATIONS`` rounds of each, after one survey."""
    rest = with_settings({name: content for name, content in sections.items() if name != SECTION}, {})
    if isinstance(one := rest.setdefault("round", {}), dict) and one.setdefault("scheme", "hot") == "hot":
        for section, key, number in (("privacy", "participations", PARTICIPATIONS), ("hot", "surveys", 1)):
            if isinstance(own := rest.setdefault(section, {}), dict):
                own.setdefault(key, number)
    return rest


def from_all_sections(sections: Mapping[str, object]) -> ServeConfig:
    """Read settings from nested mappings as TOML gives them; what is not there has its default."""
    serve = section_from(SECTION, ServeSettings, sections.get(SECTION, {}))
    rest = run_sections(sections)
    if serve.catalogue:
        rest["data"] = {"source": "catalogue", "path": serve.catalogue}
    return ServeConfig(run=from_sections(rest), serve=serve)


def serve_settings(
    given: Given,
    *,
    out: str | Path | None = None,
    catalogue: str | Path | None = None,
    host: str | None = None,
    port: int | None = None,
) -> ServeConfig:
    """Return settings from a run file or from Python; ``out`` (serve.state) and the others win over them."""
    flags = {"state": out, "catalogue": catalogue, "host": host, "port": port}
    own: dict[str, Any] = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in flags.items()
        if value is not None
    }
    if isinstance(given, ServeConfig):
        return msgspec.structs.replace(given, serve=msgspec.structs.replace(given.serve, **own))
    sections = read_sections(Path(given)) if isinstance(given, str | Path) else with_settings({}, given)
    return from_all_sections(with_settings(sections, {SECTION: own}))


def section_toml() -> str:
    """Write the section with every key, its default and what it means, to put into a run file."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(ServeSettings)}
    return written_section(SECTION, "How the model is served: sfsl serve THIS_FILE", ServeSettings, defaults)
