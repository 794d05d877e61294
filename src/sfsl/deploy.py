"""From settings to a server that runs: the model, the store, the registry, the rounds, the HTTP surface.

A server on loopback that was given no certificate makes one under an authority of its own, for tests: its
key lies beside the server, where no real authority's belongs.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

import msgspec
from starlette.types import ASGIApp

from sfsl.bundle.describe import describe as describe_model
from sfsl.bundle.describe import write_described
from sfsl.carriers.https.app import AppLimits, Server, create_app
from sfsl.carriers.https.authority import (
    AUTHORITY,
    create_authority,
    expires_within,
    issue_server,
    read_certificate,
)
from sfsl.carriers.https.coordinator import Coordinator, now_ms, steady_ms
from sfsl.carriers.https.expiry import require_current, utc_now, watch_certificate
from sfsl.carriers.https.listen import ConnectionLimits, Listen
from sfsl.carriers.https.listen import serve as listen_until_stopped
from sfsl.client.join import blocking
from sfsl.crypto.secret import SystemRandomness
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import MOST_SERVED, read_catalogue, write_catalogue
from sfsl.data.interactions import MAX_HISTORY
from sfsl.durable import OWNER_ONLY, system_errors_as
from sfsl.errors import InputError, KeyFileError, ParameterError, WrongModel
from sfsl.models import build_task
from sfsl.models.package import describe, package_digest
from sfsl.rounds.params import IndexSpace, plan_round
from sfsl.rounds.record import RoundRecord
from sfsl.run.callbacks import Aside, Callbacks
from sfsl.run.fleet import build_fleet
from sfsl.run.planning import largest_set, plan_from_statistics
from sfsl.run.setup import resolved, with_passes
from sfsl.run.trackers import require_trackers, trackers
from sfsl.service.clock import SigningClock
from sfsl.service.disk import DiskTrouble
from sfsl.service.driver import Service
from sfsl.service.folder import open_server_folder
from sfsl.service.log_file import LogRules, RosterLog, keys_of
from sfsl.service.members import ServiceSettings
from sfsl.service.messages import LogEntry
from sfsl.service.registry import Enrolment, Registry
from sfsl.service.signing import Verifier
from sfsl.settings.rounds import service_settings, store_spec
from sfsl.settings.run import RunConfig
from sfsl.settings.serve import Given, ServeConfig, serve_settings
from sfsl.settings.terms import LEAST_CONTRIBUTORS
from sfsl.submodel import ModelSpec
from sfsl.training.task import Task

log = logging.getLogger(__name__)

SERVER = "server"
HOSTS = ("localhost", "127.0.0.1", "::1")
_SERVER_DAYS = 397
_AUTHORITY_DAYS = 3650
_RENEW_DAYS = 7  # before it ends: servers run for days
TLS, CATALOGUE, CLOCK = "tls", "catalogue.json", "clock"
_HEAD_BYTES = 1024


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
    with system_errors_as(KeyFileError, f"renew the files in {os.fspath(folder)}"):
        for kind in ("pem", "key"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)


@dataclass(frozen=True)
class Deployment:
    """A server about to run. ``close`` gives back what it holds. ``own_authority``: whether the authority of
    the certificate that the server made itself is new; None where it was given one, or needs none. ``hosts``:
    what clients may call it."""

    coordinator: Coordinator
    app: ASGIApp
    listen: Listen
    model: ModelSpec
    min_contributors: int
    own_authority: bool | None
    hosts: tuple[str, ...]
    close: Callable[[], None]

    async def run(self, ready: Callable[[str], None]) -> None:
        with ExitStack() as meanwhile:
            if (certificate := self.listen.certificate) is not None:
                ends = require_current(certificate, now=utc_now())
                self.coordinator.certificate_ends = ends.timestamp()
                watch = asyncio.create_task(watch_certificate(certificate, ends))
                meanwhile.callback(watch.cancel)
            await listen_until_stopped(self.app, self.coordinator, self.listen, ready)


def open_deployment(config: ServeConfig, folder: Path) -> Deployment:
    """Open the deployment in ``folder``, made if there is none. All mistakes in settings show here."""
    own = config.serve
    if own.certificate:
        require_current(Path(own.certificate), now=utc_now())
    require_trackers(config.run.run.track)
    listed = own.enrolment == "list"
    enrolment = Enrolment.listed(own.clients) if listed else Enrolment.open(own.most_enrolled)
    served = _from_catalogue(config) if own.catalogue else _from_data(config)
    run, task, catalogue = served.run, served.task, served.catalogue
    settings = service_settings(
        run,
        own,
        threshold=None if config.run.round.threshold == "auto" else run.round.threshold_clients,
        min_cohort=config.min_cohort,
        period_days=config.period_days,
        largest_set=served.largest_set,
        active=own.active,
        poll_seconds=own.poll_seconds,
        grace_seconds=own.grace_seconds,
        most_clients=own.most_clients,
    )
    _require_fits(config, settings, task.spec)
    package = describe(task)
    with ExitStack() as held:
        if catalogue is not None:
            _require_extends(folder, catalogue)
        spec, grow = store_spec(run, task.spec, devices=False), catalogue is not None
        disk = DiskTrouble(folder)
        registry, store, metrics, lines = open_server_folder(
            folder, spec, task.initial_dense, held, grow=grow, trouble=disk
        )
        if catalogue is not None:
            # After the store: a store that is behind it would be taken for one that never knew old rows.
            write_catalogue(catalogue, folder / CATALOGUE, OWNER_ONLY)
        write_described(folder, task, describe_model(task, run, "https", MAX_HISTORY), catalogue)
        fresh = loopback_tls(folder / TLS, now=utc_now()) if own.own_tls else None
        tracked = _tracked(config, folder, lines, held)

        def record(line: RoundRecord) -> None:
            metrics.append(line)
            if tracked is not None:
                tracked.round(line)

        service = Service(
            settings,
            task.spec,
            task.row_maps,
            store,
            registry,
            model_digest=package_digest(package),
            record=record,
            cpu=time.thread_time,
            clock=time.monotonic,
            today=now_ms,
            names=b"" if catalogue is None else catalogue.contents,
            binds_model=True,
        )
        log_ = _open_log(config, folder, registry, now_ms(), held)
        if own.active:
            service.members.also_bars = log_.bars
        coordinator = Coordinator(service, disk)
        if run.round.scheme == "hot" and run.privacy.participations != "auto":
            coordinator.rounds_allowed = run.privacy.participations + 1  # and a survey
        for line in lines:
            if not line.lost:
                coordinator.totals.show(line)
        limits = AppLimits(**{one.name: getattr(config.serve, one.name) for one in fields(AppLimits)})
        listen, least = _listen(config, folder), settings.rules.min_contributors
        hosts = _hosts(config, listen)
        clock = held.enter_context(SigningClock(folder / CLOCK, wall=now_ms, steady=steady_ms))
        verifier = Verifier(
            registry.deployment,
            registry.public_key,
            hosts=hosts,
            window_ms=round(1000 * own.clock_seconds),
            body_ms=round(1000 * own.body_seconds) + 1000,
            rate=own.client_rate,
            burst=own.client_burst,
            not_before_ms=clock.began_ms,
            cover=clock.cover,
        )
        public = None if catalogue is None else catalogue.public
        app = create_app(
            Server(
                coordinator, verifier, enrolment, package, limits, catalogue=public, log=log_, clock=clock
            ),
            limits,
        )
        return Deployment(coordinator, app, listen, task.spec, least, fresh, hosts, held.pop_all().close)


def _tracked(
    config: ServeConfig, folder: Path, lines: Sequence[RoundRecord], held: ExitStack
) -> Aside | None:
    """Return who tells the trackers of run.track, if there are any. What they hear of settings is what is
    trained, and nothing of [serve], which names files of keys."""
    told = trackers(config.run.run.track, folder)
    if not told:
        return None
    return held.enter_context(Aside(Callbacks(told), msgspec.to_builtins(config.run), tuple(lines)))


@dataclass(frozen=True)
class _Served:
    """What is served: settings with numbers in place of "auto", and the model."""

    run: RunConfig
    task: Task
    largest_set: int
    catalogue: Catalogue | None = None


def _from_catalogue(config: ServeConfig) -> _Served:
    run, own = config.run, config.serve
    catalogue = read_catalogue(own.catalogue)
    if len(catalogue.public) > MOST_SERVED:
        raise ParameterError(
            f"{own.catalogue} has {len(catalogue.public):,} bytes; clients take up to {MOST_SERVED:,}"
        )
    chosen = msgspec.structs.replace(run.round, threshold=run.round.threshold_clients)
    if chosen.min_contributors == "auto" and chosen.scheme == "sfsl":
        # No less than clients want as they come, where a cohort has as many.
        wanted = min(LEAST_CONTRIBUTORS, chosen.clients)
        planned = max(wanted, plan_from_statistics(run, catalogue))
        chosen = msgspec.structs.replace(chosen, min_contributors=planned)
    largest = largest_set(catalogue) if own.largest_set == "auto" else own.largest_set
    task = build_task(catalogue, run.model, run.run.seed)
    known = catalogue.statistics
    server = run.server if known is None else with_passes(run, known.clients)
    return _Served(msgspec.structs.replace(run, round=chosen, server=server), task, largest, catalogue)


def _from_data(config: ServeConfig) -> _Served:
    log.info(
        "tables are those of [data], whose samples are not used; new: serve.catalogue = FILE, which "
        "sfsl catalogue make writes, needs no samples and can grow"
    )
    fleet = build_fleet(config.run)
    largest = config.serve.largest_set
    assert largest != "auto"  # noqa: S101 -- the settings have seen to it
    return _Served(resolved(config.run, fleet), fleet.task, largest)


def _require_extends(folder: Path, catalogue: Catalogue) -> None:
    """Refuse a catalogue in which a row is not as it was in the one that the store was made with."""
    if not (folder / CATALOGUE).exists():
        return
    old = read_catalogue(folder / CATALOGUE)
    try:
        catalogue.require_extends(old)
    except InputError as error:
        raise WrongModel(
            f"{folder} was made with another catalogue (version {old.version}) than serve.catalogue (version "
            f"{catalogue.version}): {error}. Serve one that sfsl catalogue grow made of it"
        ) from None


def _require_fits(config: ServeConfig, settings: ServiceSettings, model: ModelSpec) -> None:
    """Refuse settings with which no client's vector could come in."""
    rules, planned = settings.rules, {"clients": settings.cohort, "largest_set": settings.largest_set}
    if rules.hot is not None:
        what, size = "a survey's vector", 4 * IndexSpace(model).domain
        rules.hot.words(model, rules.bins, rules.precision)
        advice = "serve fewer rows"
    else:
        params = plan_round(rules, model, number=1, seed=bytes(32), scores=None, **planned)
        encoding = params.union.build()
        what, size = "a masked set", encoding.length * encoding.ring.word_bytes
        advice = "lower serve.largest_set or round.clients"
    if size + _HEAD_BYTES > config.serve.largest_body:
        raise ParameterError(
            f"{what} takes {size + _HEAD_BYTES:,} bytes, serve.largest_body allows "
            f"{config.serve.largest_body:,}; raise it, or {advice}"
        )


def _listen(config: ServeConfig, folder: Path) -> Listen:
    own = config.serve
    certificate, key = own.certificate, own.key
    if own.own_tls:
        certificate, key = (str(folder / TLS / f"{SERVER}.{kind}") for kind in ("pem", "key"))
    # To a proxy's clients belongs one address, its own; it counts them itself.
    per_address = own.most_connections if own.proxied else own.most_per_address
    return Listen(
        host=own.host,
        port=own.port,
        certificate=Path(certificate) if certificate else None,
        key=Path(key) if key else None,
        proxied=own.proxied,
        connections=ConnectionLimits(most=own.most_connections, most_per_address=per_address),
    )


def _open_log(config: ServeConfig, folder: Path, registry: Registry, now: int, held: ExitStack) -> RosterLog:
    """Open the log of enrolled identities, with whoever was enrolled before there was one."""
    own = config.serve
    witnesses = keys_of(own.witnesses, "serve.witnesses")
    least = len(witnesses) if own.least_witnesses == "auto" else own.least_witnesses
    rules = LogRules(witnesses, least, keys_of(own.authorities, "serve.authorities"))
    opened = RosterLog(folder, registry.deployment, rules, SystemRandomness(), now)
    held.enter_context(opened)
    opened.enter((LogEntry(client.public) for client in registry.clients()), now)
    return opened


def _hosts(config: ServeConfig, listen: Listen) -> tuple[str, ...]:
    """Return what clients may call this server: the names in its certificate; without one, loopback's."""
    named = HOSTS if listen.certificate is None else read_certificate(listen.certificate).hosts
    return *named, *config.serve.hosts.split()


@dataclass(frozen=True)
class Serving:
    """A server that listens: at ``url``, with these settings. ``authority`` is the certificate authority
    that its clients need, where it made one itself.

    >>> import sfsl
    >>> def ready(serving: sfsl.Serving):
    ...     print("clients join at", serving.url, "and trust", serving.authority)
    """

    url: str
    config: ServeConfig
    deployment: Deployment

    @property
    def authority(self) -> Path | None:
        own = self.config.serve
        return Path(own.state) / TLS / "authority.pem" if own.own_tls else None

    @property
    def join_url(self) -> str:
        """Where clients reach it: under a name of its certificate, since 0.0.0.0 is nobody's address; behind
        a proxy, at the proxy. It is where the server listens, if nothing better is known."""
        own, port = self.config.serve, self.url.rpartition(":")[2]
        if own.plain:
            return f"https://{own.hosts.split()[0]}" if own.hosts else self.url
        named = [host for host in self.deployment.hosts if not host.startswith("*")]
        if own.host in named or not named:
            return self.url
        host = next((one for one in named if one not in HOSTS), named[0])
        return f"https://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def round(self) -> int:
        """The last one in the store."""
        return self.deployment.coordinator.check_ins.round

    async def stop(self) -> None:
        """Let the round under way finish, for serve.grace_seconds at the most, and tell the clients, which
        may take five seconds more."""
        await self.deployment.coordinator.stop()


async def serve_async(
    settings: Given,
    *,
    out: str | Path | None = None,
    host: str | None = None,
    port: int | None = None,
    ready: Callable[[Serving], None] | None = None,
) -> int:
    """``serve`` inside an event loop of your own. Cancelled, it aborts the round under way; ``Serving.stop``
    lets it finish. ``join_async`` has an example with three clients.

    >>> import asyncio, tempfile, sfsl
    >>> async def one_moment(folder):
    ...     ready = asyncio.get_running_loop().create_future()
    ...     settings = {"data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.clients": 5,
    ...                 "serve.enrolment": "open", "serve.plain": True, "serve.port": 0}
    ...     server = asyncio.create_task(sfsl.serve_async(settings, out=folder, ready=ready.set_result))
    ...     serving = await ready
    ...     await serving.stop()
    ...     return await server
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(one_moment(folder))
    0
    """
    config = serve_settings(settings, out=out, host=host, port=port)
    deployment = open_deployment(config, Path(config.serve.state))
    with closing(deployment):
        if not deployment.coordinator.finished:
            await deployment.run(lambda url: ready and ready(Serving(url, config, deployment)))
        return deployment.coordinator.check_ins.round


@blocking(serve_async)
def serve() -> None:
    """Serve rounds to clients on a network until stopped; returns the last round in the store.

    ``settings``: a run file with a section ``serve`` (``sfsl serve --settings`` explains each key), or the
    same from Python. ``out``, ``host`` and ``port`` (0 takes a free one) win over it. ``ready`` is called
    once it listens. Ctrl-C and SIGTERM let the round under way finish; serve.rounds ends it by itself.

    >>> import asyncio, tempfile, sfsl
    >>> settings = {"data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.clients": 5,
    ...             "serve.enrolment": "open", "serve.port": 0}
    >>> def ready(serving):
    ...     print(serving.url.split(":")[0], serving.authority.name)
    ...     asyncio.ensure_future(serving.stop())                   # or go on, for ever
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sfsl.serve(settings, out=folder, ready=ready)
    https authority.pem
    0
    """
