"""``sfsl serve``: the server of a deployment."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sfsl.cli.logs import LogJson, LogLevel, Verbose, start_logging
from sfsl.cli.output import Settings, Track
from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl.settings.serve import section_toml, serve_settings
from sfsl.settings.toml import overridden, read_sections, with_settings

if TYPE_CHECKING:
    from sfsl.deploy import Serving


def _settings(wanted: bool) -> None:
    if wanted:
        typer.echo(section_toml(), nl=False)
        raise typer.Exit


def serve(
    config: Annotated[Path, Argument(help="A run file with a serve section.")],
    out: Annotated[Path | None, Option(help="serve.state: the server's folder.")] = None,
    catalogue: Annotated[
        Path | None, Option(help="serve.catalogue: what the model is about (sfsl catalogue make).")
    ] = None,
    host: Annotated[str | None, Option(help="serve.host")] = None,
    port: Annotated[int | None, Option(help="serve.port; 0 takes a free one.")] = None,
    settings: Settings = None,
    track: Track = None,
    verbose: Verbose = False,
    log_level: LogLevel = None,
    log_json: LogJson = False,
    show: Annotated[
        bool,
        Option(
            "--settings",
            callback=_settings,
            is_eager=True,
            help="Print the serve section of a run file and exit.",
        ),
    ] = False,
) -> None:
    """Serve rounds to clients on a network, over TLS, until stopped.

    Ctrl-C or SIGTERM lets the round under way finish, for serve.grace_seconds at the most, and tells the
    clients, which may take five seconds more; once more waits for nobody. Killed, the server comes back with
    the last whole round.
    """
    sections = overridden(read_sections(config), settings or ())
    if track:
        sections = with_settings(sections, {"run.track": track})
    chosen = serve_settings(sections, out=out, catalogue=catalogue, host=host, port=port)
    start_logging(logging.INFO, verbose=verbose, level=log_level, as_json=log_json)
    try:
        import sfsl.deploy as server
    except ImportError as error:
        raise InputError(
            f"a server needs more packages ({error}); install them with: "
            f"{install_command('network,store,train')}"
        ) from None
    typer.echo(f"Reading {chosen.serve.catalogue or 'data'} and settings …", err=True)
    listened: list[str] = []

    def ready(serving: "Serving") -> None:
        listened.append(serving.url)
        _say(serving)

    last = server.serve(chosen, ready=ready)
    ended = f"Stopped after round {last}."
    if not listened:
        ended = (
            f"serve.rounds = {chosen.serve.rounds}, and round {last} is in the store in "
            f"{chosen.serve.state}: nothing to do. To go on, raise serve.rounds; 0 has no end."
        )
    typer.echo(ended, err=True)


def _say(serving: "Serving") -> None:
    url, config, deployment = serving.url, serving.config, serving.deployment
    own, coordinator, model = config.serve, deployment.coordinator, deployment.model
    parameters = model.dense + sum(table.rows * table.width for table in model.tables)
    who = (
        f"clients whose public key is in {own.clients}"
        if own.enrolment == "list"
        else f"ANYONE, up to {own.most_enrolled} clients; whoever makes keys makes clients"
    )
    days = config.period_days
    turns = f"once in {days} day{'' if days == 1 else 's'}" if days else "as often as it likes"
    lines = [
        f"Serving at {url}   (status: {url}/)",
        f"  deployment  {coordinator.registry.deployment.hex()}",
        f"  model       {parameters:,} parameters, {coordinator.model_digest.hex()}",
        f"  round       {coordinator.check_ins.round} is the last; state in {own.state}",
        f"  cohorts     {config.min_cohort} to {config.run.round.clients} clients, each {turns}",
        f"  privacy     {_privacy(serving)}; {'active' if own.active else 'honest-but-curious'} mode",
        f"  enrolment   {own.enrolment}: {who}",
        f"  TLS         {_tls(serving)}",
        f"Join with:  sfsl join --server {serving.join_url} --data FILE --state DIR"
        + ("" if config.run.round.scheme == "hot" else " --exact-sums")
        + (" --log log.toml" if own.active else "")
        + _trust(serving),
    ]
    if own.active:
        lines.append(f"            log.toml is what  sfsl keys log trust {own.state}  writes")
    typer.echo("\n".join(lines), err=True)


def _trust(serving: "Serving") -> str:
    """Return what a client needs to know of the server's certificate, as flags of sfsl join."""
    if not serving.config.serve.plain:
        return f" --ca {serving.authority or 'authority.pem'}"
    return " --plain" if serving.join_url.startswith("http:") else ""


def _privacy(serving: "Serving") -> str:
    run = serving.config.run
    if run.round.scheme != "hot":
        least = serving.deployment.min_contributors
        return f"EXACT sums of rows with at least {least} contributors, which can be linked to their owners"
    own = run.privacy
    return (
        f"scheme hot: epsilon {own.epsilon:g} at delta {own.delta:g} for {run.hot.surveys} surveys and "
        f"{own.participations} rounds of a client"
    )


def _tls(serving: "Serving") -> str:
    own = serving.config.serve
    if own.plain:
        return "NONE: for tests, or behind a proxy on this machine"
    if serving.authority is None:
        return own.certificate
    made = "made just now" if serving.deployment.own_authority else "made before"
    return f"an authority of its own, {made}, for tests on this machine; clients need {serving.authority}"
