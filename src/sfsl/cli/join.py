"""``sfsl join``: one client of a deployment, with data of its own."""

import json as json_text
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfsl.cli.output import console
from sfsl.cli.stopping import Stopped, run_until_stopped, told_as_json
from sfsl.crypto.randomness import SystemRandomness
from sfsl.errors import InputError, WrongModel
from sfsl.privacy import PRESETS, Budget, Calendar, IndexPrivacy

if TYPE_CHECKING:
    from sfsl.client import Attempt, Event, Link, Participant
    from sfsl.client.following import KnownModel, ServedModel
    from sfsl.client.home import Home
    from sfsl.crypto.identity import Identity

# As servers count them, so that a client's period and a server's of the same length are the same.
_PERIODS_FROM = date(1970, 1, 1)
_MOST_WORDS = 1 << 25  # of a sum: 128 MiB at four bytes


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  sfsl join --server https://host:8443 --ca authority.pem --data my.csv --state me"
        "   |   sfsl join --server https://host:8443 --data my.csv --state me --rounds 1 --json"
    )(join)


@dataclass(frozen=True)
class _Terms:
    """What this client insists on."""

    privacy: IndexPrivacy
    budget: Budget
    calendar: Calendar
    cohort: int
    threshold: int
    contributors: int
    clip: float
    rows: int
    held_out: float
    roster: Path | None = None


def join(
    server: Annotated[str, typer.Option(metavar="URL", help="The server, such as https://host:8443.")],
    data: Annotated[
        Path,
        typer.Option(
            help="CSV with a header: item,label,time, items called as in the server's catalogue. Where the "
            'model is about words: text, or lines of JSON with a list "lines".'
        ),
    ],
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="This client's folder; made if it is not there.")
    ],
    ca: Annotated[
        Path | None,
        typer.Option(help="Trust this certificate authority and no other. Default: the system's."),
    ] = None,
    identity: Annotated[
        Path | None, typer.Option(help="A key of sfsl keys client. Default: one in DIR, made on first use.")
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(help="Public keys of all clients, one a line: insist on active mode, and on these."),
    ] = None,
    privacy: Annotated[str, typer.Option(help="How it answers which rows it has: cpp1 to cpp5.")] = "cpp2",
    rounds: Annotated[int | None, typer.Option(help="Stop after so many whole rounds.", min=1)] = None,
    wait: Annotated[
        bool, typer.Option(help="Wait for the next period where this one's budget is spent, or stop.")
    ] = True,
    period_days: Annotated[int, typer.Option(help="Days in a period; fixed with DIR.", min=1)] = 7,
    exposures: Annotated[
        int, typer.Option(help="Rounds in a period. Epsilon does not cover what more of them show.", min=0)
    ] = 1,
    epsilon: Annotated[
        float, typer.Option(help="Epsilon per index over all periods, after which it takes no more part.")
    ] = math.inf,
    least_cohort: Annotated[int, typer.Option(help="Decline rounds of fewer clients.", min=2)] = 3,
    least_threshold: Annotated[int, typer.Option(help="Decline rounds that fewer can open.", min=2)] = 3,
    least_contributors: Annotated[
        int, typer.Option(help="Decline rounds that open rows of fewer clients.", min=1)
    ] = 2,
    max_clip: Annotated[float, typer.Option(help="Decline updates clipped at more than this.")] = 10.0,
    max_rows: Annotated[int, typer.Option(help="Decline submodels of more rows.", min=1)] = 10**6,
    threads: Annotated[int, typer.Option(help="CPU threads of training.", min=1)] = 1,
    held_out: Annotated[float, typer.Option(help="Share of the samples, the last, for testing only.")] = 0.2,
    plain: Annotated[bool, typer.Option("--plain", help="No TLS, for tests on one machine only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, errors too.")] = False,
) -> None:
    """Take part in a deployment's rounds with samples that stay on this machine.

    What leaves it: masked sums, and answers with deniable errors about which rows it has. Ctrl-C or
    SIGTERM stops at once, in a round as a dropout; what was spent stays spent. Exit status: 0 finished, 1
    failed, 130 Ctrl-C, 143 SIGTERM.
    """
    say = _as_json if json else _as_text
    with told_as_json(json):
        if privacy not in PRESETS:
            raise InputError(f"--privacy {privacy!r}: there are {', '.join(PRESETS)}")
        if not epsilon >= 0:
            raise InputError(f"--epsilon {epsilon:g}: a number from 0 up; without it there is no limit")
        if not max_clip > 0:
            raise InputError(f"--max-clip {max_clip:g}: a number above 0")
        if not 0 < held_out < 1:
            raise InputError(f"--held-out {held_out:g}: a share between 0 and 1, such as 0.2")
        chosen = PRESETS[privacy]
        terms = _Terms(
            chosen,
            Budget(chosen.epsilon_infinity, epsilon, exposures),
            Calendar(start=_PERIODS_FROM, days=period_days),
            least_cohort,
            least_threshold,
            least_contributors,
            max_clip,
            max_rows,
            held_out,
            roster,
        )
        _use_threads(threads)
        main = _run(server, data, state, ca, identity, terms, rounds, wait, plain, say)
        try:
            ended = run_until_stopped(main)
        except Stopped as stopped:
            say("stopped", "Stopped; a round under way goes on without this client")
            raise typer.Exit(stopped.status) from None
    whole = sum(one.whole for one in ended)
    say("finished", f"Finished after {whole} whole round{'' if whole == 1 else 's'}")


async def _run(
    server: str,
    data: Path,
    folder: Path,
    ca: Path | None,
    identity: Path | None,
    terms: _Terms,
    rounds: int | None,
    wait: bool,
    plain: bool,
    say: Callable[..., None],
) -> "list[Attempt]":
    client, following = _imports()
    from sfsl.client.home import Home, read_roster, require_readable
    from sfsl.client.participant import require_mode

    randomness = SystemRandomness()
    home = Home(folder, randomness)
    own = home.identity(identity)

    def told(event: "Event") -> None:
        say(event.kind, event.text, round=event.round, until=event.until)

    async with client.Link(
        server,
        own,
        tls=None if plain else client.trusted(ca),
        plain=plain,
        deployment=home.deployment(),
        backoff=client.Backoff(randomness),
        randomness=randomness,
        notify=told,
    ) as link:
        require_readable(data)
        if terms.roster is not None:
            read_roster(terms.roster)
        about = await link.about()
        require_mode(about, terms.roster is not None)
        known = following.KnownModel(home.folder / "model")
        served = await following.fetch_model(link, about)
        known.require_extends(served)
        home.pin(bytes.fromhex(about.deployment))
        ended: list[Attempt] = []
        while True:
            left = None if rounds is None else rounds - sum(one.whole for one in ended)
            participant = _participant(client, home, own, link, served, known, data, terms, told, say)
            try:
                ended += await participant.run(left, wait=False)
            except WrongModel:
                ended += participant.ended
                grown = await following.fetch_model(link, await link.about())
                known.require_extends(grown)
                if grown.digest == served.digest:
                    raise
                served = grown
                say("model", f"The catalogue has grown to version {served.catalogue.version}")
                continue
            finally:
                participant.personal.close()
                participant.memory.state.close()  # type: ignore[attr-defined]
            if not wait or (rounds is not None and sum(one.whole for one in ended) >= rounds):
                return ended
            if not await participant.rest():
                return ended


def _participant(
    client: Any,
    home: "Home",
    identity: "Identity",
    link: "Link",
    served: "ServedModel",
    known: "KnownModel",
    data: Path,
    terms: _Terms,
    told: "Callable[[Event], None]",
    say: Callable[..., None],
) -> "Participant":
    """With the data of this period."""
    from sfsl.client.following import own_device
    from sfsl.client.home import read_roster
    from sfsl.client.training import DeviceTrainer
    from sfsl.rounds import RoundPolicy
    from sfsl.secagg import Policy

    randomness = SystemRandomness()
    state = home.state(link.client, terms.calendar, terms.budget)
    try:
        going_on = state.period == state.calendar.period(_today())
        copy, changed = home.samples(data, state, _today())
        if changed:
            say("waiting", f"{data} has changed; this period goes on with what it froze")
        rows = known.settle(served, going_on=going_on)
        device, report = own_device(served, copy, rows, held_out=terms.held_out, name=data)
        say("data", str(report))
        model = served.client_model
        shared = {name: device.needed[name] for name in model.tables.shared}
        session = Policy(
            min_clients=terms.cohort,
            min_threshold=terms.threshold,
            min_contributors=terms.contributors,
            max_words=_MOST_WORDS,
        )
        made: Participant = client.Participant(
            link=link,
            model=model,
            memory=client.DurableMemory(
                state, terms.privacy, model.tables, shared, today=_today, randomness=randomness
            ),
            trainer=DeviceTrainer(device, lambda number: int.from_bytes(randomness.bytes(4), "big") >> 1),
            personal=home.personal(model.spec),
            policy=RoundPolicy(session=session, max_clip=terms.clip, max_rows=terms.rows),
            randomness=randomness,
            notify=told,
            identity=identity,
            pinned=None if terms.roster is None else read_roster(terms.roster),
            now=lambda: datetime.now(UTC).replace(tzinfo=None),
        )
    except BaseException:
        state.close()
        raise
    return made


def _use_threads(threads: int) -> None:
    _imports()
    import torch

    torch.set_num_threads(threads)


def _imports() -> tuple[Any, Any]:
    try:
        import sfsl.client as client
        import sfsl.client.following as following
    except ImportError as error:
        raise InputError(
            f"a client needs more packages ({error}); install them with: pip install 'sfsl[network,train]'"
        ) from None
    return client, following


def _today() -> date:
    return datetime.now(UTC).date()


def _as_text(kind: str, text: str, **_: object) -> None:
    console().print(f"{datetime.now():%H:%M:%S}  {text}", highlight=False, markup=False, soft_wrap=True)


def _as_json(kind: str, text: str, **more: object) -> None:
    shown = {name: value.isoformat() if isinstance(value, date) else value for name, value in more.items()}
    known = {name: value for name, value in shown.items() if value is not None}
    typer.echo(json_text.dumps({"event": kind, "text": text, **known}))
