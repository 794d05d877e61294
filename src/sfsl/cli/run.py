"""``sfsl run`` and ``init``: training a model over simulated private clients."""

import logging
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from typer import Argument, Option

from sfsl.cli.logs import LogJson, LogLevel, Verbose, start_logging
from sfsl.cli.output import (
    INTERRUPTED,
    Json,
    Settings,
    Track,
    console,
    emit_json,
    probabilities,
    progress_console,
)
from sfsl.cli.run_output import RunProgress, print_summary, print_verdict
from sfsl.cli.tables import Columns, Label, table_flags
from sfsl.durable import write_new
from sfsl.errors import InputError, ParameterError
from sfsl.installed import install_command
from sfsl.plan.hot import MOST_NOISE, noise_share
from sfsl.rounds.hot_server import honest_of
from sfsl.run.folder import RunFolder
from sfsl.settings.paper import as_in_paper
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.toml import default_toml, overridden, read_run_sections, with_settings
from sfsl.submodel import ModelSpec

if TYPE_CHECKING:
    from sfsl.run.runner import Runner

PLAIN_LABEL = "; PLAIN SUMS: a simulation that hides nothing, with the same result"


def run(
    config: Annotated[
        Path | None, Argument(help="A run file (see sfsl init). Default: all defaults.")
    ] = None,
    out: Annotated[Path, Option(help="The run's folder.")] = Path("sfsl-run"),
    rounds: Annotated[int | None, Option(help="run.rounds")] = None,
    clients: Annotated[int | None, Option(help="round.clients")] = None,
    scheme: Annotated[str | None, Option(help="round.scheme: sfsl, hot, sfl, fsl, fl or centralized")] = None,
    sums: Annotated[str | None, Option(help="round.sums: auto, masked or plain")] = None,
    privacy: Annotated[
        str | None, Option(help="privacy.preset, cpp1 to cpp5, or probabilities p1,p2,p3,p4")
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="A table (CSV, TSV, Parquet, JSON lines); amazon:, taobao:, shakespeare: or python: and a "
            "file; stored: and a folder; or synthetic"
        ),
    ] = None,
    columns: Columns = None,
    label: Label = "",
    unusable: Annotated[
        float | None, Option(help="data.unusable: most lines of a table to leave out")
    ] = None,
    settings: Settings = None,
    paper: Annotated[
        bool,
        Option("--paper", help="The paper's own model and training, where nothing else is said."),
    ] = False,
    device: Annotated[
        str | None, Option(help="run.device: cpu or cuda, for fast experiments with --sums plain")
    ] = None,
    engine: Annotated[
        str | None, Option(help="run.engine: local, or ray for a cluster (sfsl init has its settings)")
    ] = None,
    patience: Annotated[
        int | None, Option(help="run.patience: stop after so many rounds without a better model; 0: never")
    ] = None,
    track: Track = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in --out.")] = False,
    verbose: Verbose = False,
    log_level: LogLevel = None,
    log_json: LogJson = False,
    json: Json = False,
) -> None:
    """Train a model over simulated clients on the real protocol: secure sums, private rows, dropouts.

    --scheme hot trains rows that many clients have, under differential privacy (privacy.epsilon); all others
    stay at home. Other schemes, to compare with: --scheme fl, sfl, fsl or centralized. --sums plain gives the
    same model without the protocol, for experiments.

    Ctrl-C stops after the round; once more, at once. Either way --resume goes on from the last whole round.
    """
    base = read_run_sections(config) if config else RunFolder(out).sections() if resume else {}
    flags: dict[str, Any] = {
        "run.rounds": rounds,
        "round.clients": clients,
        "round.scheme": scheme,
        "round.sums": sums,
        "run.device": device,
        "run.engine": engine,
        "run.patience": patience,
        "run.track": track or None,
    }
    if privacy is not None:
        numbers = probabilities(privacy) if "," in privacy else []
        preset = None if numbers else privacy
        flags |= {"privacy.probabilities": numbers, "privacy.mix": {}, "privacy.preset": preset}
    flags |= table_flags(data, columns, label, unusable)
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        sections = overridden(with_settings(base, given), settings or ())
        wanted = from_sections(as_in_paper(sections) if paper else sections)
    except ParameterError as error:
        raise ParameterError(f"{config}: {error}" if config else str(error)) from None
    require_torch()
    from sfsl.run import start

    usual = logging.INFO if log_json else logging.WARNING
    start_logging(usual, verbose=verbose, level=log_level, as_json=log_json)
    screen = progress_console(quiet=log_json)
    with screen.status("reading data and settings"):
        opened = start.resume(out, wanted) if resume else start.begin(out, wanted)
    with opened as runner:
        _say_start(screen, runner)
        shown = RunProgress(screen, runner.lines, wanted.run.rounds, lambda: runner.evaluation)
        with stopping(screen) as asked, shown as progress:
            try:
                summary = runner.run(stop=lambda: bool(asked), seen=progress.seen)
            except KeyboardInterrupt:
                summary = None
    if summary is None:
        screen.print(f"Stopped at once; the last whole round stands. Go on: sfsl run --out {out} --resume")
        raise typer.Exit(INTERRUPTED)
    if json:
        emit_json(msgspec.to_builtins(summary))
    else:
        print_summary(console(), summary)
        kept = ", best/" if summary.best else ""
        console().print(f"Everything is in {out}: metrics.jsonl, summary.json, config.toml, store/{kept}")
        print_verdict(console(), summary)
    if summary.stopped == "budget":
        screen.print(
            f"Stopped after round {summary.rounds}: too few clients have budget left for another round "
            f"(privacy.epsilon = {wanted.privacy.epsilon:g}, privacy.participations). To go on takes a run "
            "of its own, with more of either, or more users.",
            highlight=False,
            soft_wrap=True,
        )
    elif summary.stopped == "patience" and summary.best:
        screen.print(
            f"Stopped after round {summary.rounds}: no model was better on validation devices than that of "
            f"round {summary.best.round}, for {summary.rounds - summary.best.round} rounds (run.patience = "
            f"{wanted.run.patience}). To go on: sfsl run --out {out} --resume --patience, with more or 0",
            highlight=False,
            soft_wrap=True,
        )
    elif not summary.complete:
        screen.print(f"Stopped after round {summary.rounds}. Go on with: sfsl run --out {out} --resume")
        raise typer.Exit(INTERRUPTED)


def init(file: Annotated[Path, Argument(help="The file to write.")] = Path("sfsl.toml")) -> None:
    """Write a run file with every setting, its default and what it means."""
    try:
        write_new(file, default_toml().encode())
    except FileExistsError:
        raise InputError(f"{file} exists already; choose another name or remove it") from None
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}") from None
    typer.echo(f"Wrote {file}. Change what you like, then: sfsl run {file}")


def require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(f"training needs torch; install it with: {install_command('train')}") from None


@contextmanager
def stopping(screen: Console) -> Iterator[list[bool]]:
    """Yield a list that is empty until Ctrl-C; a second Ctrl-C raises where it falls."""
    asked: list[bool] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        screen.print("Stopping after this round; Ctrl-C again stops at once.")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _say_start(screen: Console, runner: "Runner") -> None:
    fleet, model = runner.fleet, runner.fleet.task.spec
    if fleet.report is not None:
        screen.print(str(fleet.report), highlight=False, soft_wrap=True)
    parameters = model.dense + sum(table.rows * table.width for table in model.tables)
    screen.print(
        f"{type(fleet.task.module).__name__}: {parameters:,} parameters, {model.dense:,} of them dense; "
        f"{len(fleet.devices):,} clients, {len(fleet.train):,} samples to train on, "
        f"{_held_out(runner)}; {described(runner.config)}"
        + (f"; going on after round {runner.store.round}" if runner.store.round else ""),
        highlight=False,
        soft_wrap=True,
    )
    _warn_of_noise(screen, runner.config, model)


def _warn_of_noise(screen: Console, config: RunConfig, model: ModelSpec) -> None:
    """Say so where noise will drown what a cohort of this size learns."""
    if config.round.scheme != "hot":
        return
    rules, clients = round_rules(config), config.round.clients
    rho = math.inf if rules.hot is None else rules.hot.rho
    share = noise_share(rho, model.dense, clients, honest_of(rules, clients))
    if share > MOST_NOISE:
        screen.print(
            f"Warning: noise in a mean update will be {share:.2g} times as long as a client's update may be, "
            f"from the dense part alone; {MOST_NOISE:g} is bearable. This learns next to nothing: take more "
            "clients a round, a larger privacy.epsilon, or see sfsl plan --scheme hot",
            highlight=False,
            soft_wrap=True,
        )


def _held_out(runner: "Runner") -> str:
    valid, test = runner.pools.get("valid"), len(runner.pools["test"])
    if valid is not None:
        return f"{len(valid):,} of validation devices to choose the model, {test:,} to test"
    wanted = runner.config.data.validation
    few = " (none for validation: a share of these devices has too few clicks; the last model is exported)"
    return f"{test:,} to test{few if wanted else ''}"


def described(config: RunConfig) -> str:
    """Say in words what the scheme of a run hides."""
    label = PLAIN_LABEL if config.round.stands_in else ""
    match config.round.scheme:
        case "sfsl":
            least = config.round.min_contributors
            return f"sfsl, {config.privacy.name}, rows with at least {least} contributors{label}"
        case "hot":
            privacy = config.privacy
            noise = (
                f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g} for everything that leaves a client"
            )
            if math.isinf(privacy.epsilon):
                noise = "NO NOISE (privacy.epsilon = inf): sums are exact, and can betray their owners"
            return f"hot rows together, cold rows at home; {noise}{label}"
        case "sfl":
            return f"sfl: the full model under secure sums{label}"
        case other:
            return f"{other}: nothing is hidden"
