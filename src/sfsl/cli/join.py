"""``sfsl join``: one client of a deployment, with data of its own."""

import json as json_text
import logging
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Meta
from typer import Option

from sfsl.cli.logs import LogJson, LogLevel, Verbose, start_logging
from sfsl.cli.output import Stopped, console, run_until_stopped, told_as_json
from sfsl.cli.tables import Columns, Label
from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl.settings.sections import description
from sfsl.settings.source import columns_of
from sfsl.settings.terms import Terms

if TYPE_CHECKING:
    from sfsl.client import Event

TERMS = Terms()
_FIELDS = {field.name: field for field in msgspec.structs.fields(Terms)}


def _term(name: str) -> Any:
    """Make the flag of one of a client's terms."""
    field = _FIELDS[name]
    bounds = (meta.ge for meta in field.type.__metadata__ if isinstance(meta, Meta) and meta.ge is not None)
    return Option(help=description(field), min=None if field.type.__origin__ is float else next(bounds, None))


def _switch(name: str) -> Any:
    return Option(f"--{_FIELDS[name].encode_name}", help=description(_FIELDS[name]))


def join(
    context: typer.Context,
    server: Annotated[str, Option(metavar="URL", help="The server, such as https://host:8443.")],
    data: Annotated[
        Path,
        Option(
            help="A table (CSV, Parquet, JSON lines) of item, label and time, items called as in the "
            "server's catalogue. Where the model is about words: text, or JSON lines with a list named lines."
        ),
    ],
    state: Annotated[Path, Option(metavar="DIR", help="This client's folder; made if it is not there.")],
    ca: Annotated[
        Path | None, Option(help="Trust this certificate authority and no other. Default: the system's.")
    ] = None,
    identity: Annotated[
        Path | None, Option(help="A key of sfsl keys client. Default: one in DIR, made on first use.")
    ] = None,
    hot_epsilon: Annotated[float, _term("hot_epsilon")] = TERMS.hot_epsilon,
    hot_delta: Annotated[float, _term("hot_delta")] = TERMS.hot_delta,
    participations: Annotated[int, _term("participations")] = TERMS.participations,
    corruption: Annotated[float, _term("corruption")] = TERMS.corruption,
    max_marks: Annotated[int, _term("max_marks")] = TERMS.max_marks,
    max_megabytes: Annotated[float, _term("max_megabytes")] = TERMS.max_megabytes,
    exact_sums: Annotated[bool, _switch("exact_sums")] = TERMS.exact_sums,
    roster: Annotated[Path | None, _term("roster")] = None,
    log: Annotated[Path | None, _term("log")] = None,
    privacy: Annotated[str, _term("privacy")] = TERMS.privacy,
    rounds: Annotated[int | None, Option(help="Stop after so many whole rounds.", min=1)] = None,
    wait: Annotated[
        bool, Option(help="Wait for the next period where this one's budget is spent, or stop.")
    ] = True,
    period_days: Annotated[int, _term("period_days")] = TERMS.period_days,
    exposures: Annotated[int, _term("exposures")] = TERMS.exposures,
    epsilon: Annotated[float, _term("epsilon")] = TERMS.epsilon,
    repeat_samples: Annotated[bool, _switch("repeat_samples")] = TERMS.repeat_samples,
    least_cohort: Annotated[int, _term("least_cohort")] = TERMS.least_cohort,
    least_threshold: Annotated[int, _term("least_threshold")] = TERMS.least_threshold,
    least_contributors: Annotated[int, _term("least_contributors")] = TERMS.least_contributors,
    least_set: Annotated[int, _term("least_set")] = TERMS.least_set,
    score_bins: Annotated[int, _term("score_bins")] = TERMS.score_bins,
    dataset_weights: Annotated[bool, _switch("dataset_weights")] = TERMS.dataset_weights,
    max_clip: Annotated[float, _term("max_clip")] = TERMS.max_clip,
    max_rows: Annotated[int, _term("max_rows")] = TERMS.max_rows,
    patience_hours: Annotated[float, _term("patience_hours")] = TERMS.patience_hours,
    threads: Annotated[int, Option(help="CPU threads of training.", min=1)] = 1,
    held_out: Annotated[float, Option(help="Share of the samples, the last, for testing only.")] = 0.2,
    columns: Columns = None,
    label: Label = "",
    plain: Annotated[bool, Option("--plain", help="No TLS, for tests on one machine only.")] = False,
    verbose: Verbose = False,
    log_level: LogLevel = None,
    log_json: LogJson = False,
    json: Annotated[bool, Option("--json", help="One JSON object per line, errors too.")] = False,
) -> None:
    """Take part in a deployment's rounds with samples that stay on this machine.

    What leaves it in rounds over hot rows: one vector a round, under masks and under noise, whose cost this
    client computes itself and adds up in DIR; sfsl privacy show --state DIR/state shows it. Rounds with less
    noise, a smaller threshold, a larger clip or survey than the options below allow go on without it. A
    server of the paper's scheme opens exact sums, which is for its owner to allow: --exact-sums. Ctrl-C or
    SIGTERM stops at once, in a round as a dropout; what was spent stays spent. Exit status: 0 finished, 1
    failed, 130 Ctrl-C, 143 SIGTERM.
    """
    say = _as_json if json else _as_text
    start_logging(logging.WARNING, verbose=verbose, level=log_level, as_json=log_json)

    def told(event: "Event") -> None:
        say(event.kind, event.text, round=event.round, until=event.until, seconds=event.seconds)

    with told_as_json(json):
        try:
            import torch

            import sfsl.client.join as client
        except ImportError as error:
            raise InputError(
                f"a client needs more packages ({error}); install them with: "
                f"{install_command('network,train')}"
            ) from None
        torch.set_num_threads(threads)
        # A test sees to it that every term is a flag above.
        given = {name: value for name, value in context.params.items() if name in _FIELDS}
        try:
            terms = Terms(**given | {"roster": str(roster or ""), "log": str(log or "")})
            client.require_held_out(held_out)
        except InputError as error:  # about a term, which is a flag here
            raise InputError(f"--{error}") from None
        main = client.join_async(
            server,
            data,
            state,
            terms=terms,
            ca=ca,
            identity=identity,
            rounds=rounds,
            wait=wait,
            held_out=held_out,
            columns=None if columns is None else columns_of(columns),
            label=label,
            plain=plain,
            on_event=told,
        )
        try:
            ended = run_until_stopped(main)
        except Stopped as stopped:
            say("stopped", "Stopped; a round under way goes on without this client")
            raise typer.Exit(stopped.status) from None
    whole = sum(one.whole for one in ended)
    say("finished", f"Finished after {whole} whole round{'' if whole == 1 else 's'}")


def _as_text(kind: str, text: str, **_: object) -> None:
    console().print(f"{datetime.now():%H:%M:%S}  {text}", highlight=False, markup=False, soft_wrap=True)


def _as_json(kind: str, text: str, **more: object) -> None:
    known = {
        name: value.isoformat() if isinstance(value, date) else value
        for name, value in more.items()
        if value is not None
    }
    typer.echo(json_text.dumps({"event": kind, "text": text, **known}))
