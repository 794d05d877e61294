"""A client of a deployment, whole: its folder, its link, the server's model, round after round.

``sfsl join`` prints what this tells; an app calls it with data of its own.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sfsl.client.current import KeepingTrainer
from sfsl.client.device import DeviceTrainer
from sfsl.client.events import Backoff, Event, Notify, nobody
from sfsl.client.following import Data, KnownModel, ServedModel, build_device, fetch_model, source_of
from sfsl.client.home import Home, PersonalRows, read_roster
from sfsl.client.hot import DurablePurse
from sfsl.client.link import Link, trusted
from sfsl.client.log import MemberLog
from sfsl.client.participant import HOT, Attempt, Participant, require_mode, require_scheme
from sfsl.client.round import DurableMemory
from sfsl.crypto.secret import Identity, Randomness, SystemRandomness
from sfsl.data.own import Layout
from sfsl.errors import InputError, WrongModel
from sfsl.privacy import ClientState
from sfsl.service.log import LogTrust
from sfsl.settings.terms import Terms

Given = ParamSpec("Given")
Result = TypeVar("Result")


async def join_async(
    server: str,
    data: Data,
    state: str | Path,
    *,
    terms: Terms | None = None,
    ca: str | Path | None = None,
    identity: str | Path | None = None,
    rounds: int | None = None,
    wait: bool = True,
    held_out: float = 0.2,
    columns: Mapping[str, str] | None = None,
    label: str = "",
    plain: bool = False,
    on_event: Notify | None = None,
) -> list[Attempt]:
    """Take part in a deployment's rounds with data that stays here; returns how attempts ended.

    ``data``: a table (CSV, Parquet, JSON lines) with the columns item, label and time, ``Samples`` in the
    numbers of the server's model, or a function that returns either and is asked again for every period. A
    period goes on with what it began with. ``columns`` and ``label``: what columns of a table are called
    otherwise, and which lines are clicks, as ``sfsl.data.load_table`` takes them. ``state``: this client's
    folder; its key, its budget and its own rows live there, and it belongs to one server. ``terms``: what it
    insists on. ``ca``: the one certificate authority to trust; None trusts the system's. ``rounds``: return
    after so many whole rounds. Without ``wait``, return also where this period allows no more. ``held_out``:
    the last share of the samples, for testing only. ``plain``: no TLS, for tests on one machine. ``on_event``
    hears of everything as it happens.

    Cancel it at any time: a round under way goes on without this client, and what was spent stays spent.

    >>> import asyncio, pathlib, tempfile, sfsl
    >>> settings = {
    ...     "data": {"users": 12, "scale": 0.03}, "model": {"kind": "logistic"},
    ...     "round": {"clients": 3, "threshold": 3, "min_contributors": 2},
    ...     "serve": {"enrolment": "open", "plain": True, "port": 0, "rounds": 1, "period_days": 0},
    ... }
    >>> # a trial of three, on one machine; as they come, clients want fifty, and wait a day for their server
    >>> terms = sfsl.Terms(least_cohort=3, patience_hours=0.1)
    >>> async def deployment(folder):
    ...     ready = asyncio.get_running_loop().create_future()
    ...     server = asyncio.create_task(sfsl.serve_async(settings, out=folder, ready=ready.set_result))
    ...     clicks = pathlib.Path(folder, "clicks.csv")
    ...     clicks.write_text("item,label,time\\n" + "".join(f"{n},{n % 2},{n}\\n" for n in range(20)))
    ...     url = (await ready).url
    ...     ended = await asyncio.gather(*(
    ...         sfsl.join_async(url, clicks, f"{folder}/{n}", terms=terms, rounds=1, plain=True)
    ...         for n in range(3)))
    ...     return [one.outcome for attempts in ended for one in attempts], await server
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(deployment(folder))
    (['committed', 'committed', 'committed'], 1)
    """
    require_held_out(held_out)
    notify, randomness, terms = on_event or nobody, SystemRandomness(), terms or Terms()
    home = Home(Path(state), randomness)
    own = home.identity(None if identity is None else Path(identity))
    async with Link(
        server,
        own,
        tls=None if plain else trusted(ca),
        plain=plain,
        deployment=home.deployment(),
        backoff=Backoff(randomness),
        randomness=randomness,
        patience_s=3600 * terms.patience_hours,
        notify=notify,
    ) as link:
        trust = None if terms.log_file is None else LogTrust.read(terms.log_file)
        log = None if trust is None else MemberLog(home.folder / "log", trust)
        layout = Layout(columns or {}, label)
        client = _Client(link, home, own, data, terms, held_out, notify, randomness, log, layout)
        client.require_files()
        served = await client.model()
        loosened = terms.loosened() + ([] if trust is None else trust.loosened())
        if loosened:
            usual = " (in brackets: what clients come with)" if "(" in "".join(loosened) else ""
            notify(Event("terms", f"Its owner has loosened{usual}: {'; '.join(loosened)}"))
        home.note_terms(loosened)
        # Before the deployment is pinned, beside which a state must not be missing. Held, so that no other
        # process moves the head of the log on between question and answer, which would look like a fork.
        with client.state():
            await client.look_at_log()
        home.pin(link.deployment or b"")  # which it met when it was asked for its model
        return await client.take_part(served, rounds, wait)


def blocking(
    asynchronous: Callable[Given, Coroutine[Any, Any, Result]],
) -> Callable[[Callable[[], None]], Callable[Given, Result]]:
    """Make of a name and its docstring the function that runs ``asynchronous``, and takes what it takes."""

    def made(named: Callable[[], None]) -> Callable[Given, Result]:
        @wraps(named)
        def run(*given: Given.args, **more: Given.kwargs) -> Result:
            return asyncio.run(asynchronous(*given, **more))

        run.__signature__ = inspect.signature(asynchronous)  # type: ignore[attr-defined]
        return run

    return made


@blocking(join_async)
def join() -> None:
    """Take part in a deployment's rounds with data that stays here, until ``rounds`` are done.

    Blocks; Ctrl-C stops it. Inside an event loop, or to stop it from elsewhere, use ``join_async``, which
    explains the arguments. A server and three clients, each in a thread:

    >>> import pathlib, queue, tempfile, sfsl
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> settings = {
    ...     "data": {"users": 12, "scale": 0.03}, "model": {"kind": "logistic"},
    ...     "round": {"clients": 3, "threshold": 3, "min_contributors": 2},
    ...     "serve": {"enrolment": "open", "port": 0, "rounds": 1, "period_days": 0},
    ... }
    >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
    ...     ready, clicks = queue.Queue(), pathlib.Path(folder, "clicks.csv")
    ...     _ = clicks.write_text("item,label,time\\n" + "".join(f"{n},{n % 2},{n}\\n" for n in range(20)))
    ...     server = pool.submit(sfsl.serve, settings, out=f"{folder}/server", ready=ready.put)
    ...     serving = ready.get(timeout=60)
    ...     clients = [pool.submit(sfsl.join, serving.url, clicks, f"{folder}/{number}", rounds=1,
    ...                            ca=serving.authority,
    ...                            terms=sfsl.Terms(least_cohort=3, patience_hours=0.1))
    ...                for number in range(3)]
    ...     [one.result()[-1].outcome for one in clients], server.result()
    (['committed', 'committed', 'committed'], 1)
    """


def require_held_out(share: float) -> None:
    """Refuse what is no share of the samples."""
    if not 0 < share < 1:
        raise InputError(f"held-out {share:g}: a share between 0 and 1, such as 0.2")


@dataclass(frozen=True)
class _Client:
    """One client at its server."""

    link: Link
    home: Home
    identity: Identity
    data: Data
    terms: Terms
    held_out: float
    notify: Notify
    randomness: Randomness
    log: MemberLog | None = None
    layout: Layout | None = None

    def require_files(self) -> None:
        """Find out what is wrong here before anybody is asked for anything."""
        if not callable(self.data):
            source_of(self.data)
        pinned = self._pinned()
        if pinned is not None and self.link.client not in pinned:
            raise InputError(
                f"{self.terms.roster} has no line for this client itself ({self.identity.public.hex()}), so "
                "that it would decline every cohort that it is in"
            )

    async def model(self) -> ServedModel:
        """Fetch the model that the server names, if it continues the one that this client knows."""
        about = await self.link.about()
        active = bool(self.terms.roster or self.terms.log)
        require_mode(about, active)
        if active and not about.binds_model:
            raise InputError(
                "this server does not bind its rounds to the model that it tells clients of, as active mode "
                "has to: it is of an earlier version, or lies. Ask who runs it"
            )
        require_scheme(about, self.terms.policy)
        if about.scheme != HOT:  # whose budget is by periods
            await self.link.agree_on_the_day()
        served = await fetch_model(self.link, about)
        self._known.require_extends(served)
        return served

    async def look_at_log(self) -> None:
        """Check the head of the log before anything else: a fork shows here, whoever is invited."""
        if self.log is not None:
            head = self.log.take(await self.link.log(self.log.query()))
            self.notify(Event("log", f"The log of enrolled clients has {head.size:,} entries"))
        elif self.terms.roster:
            said = "new: --log FILE checks them against the log that the server keeps"
            self.notify(Event("log", f"{len(self._pinned() or ()):,} clients are pinned by a file; {said}"))

    def state(self) -> ClientState:
        return self.home.state(self.link.client, self.terms.calendar, self.terms.budget)

    async def take_part(self, served: ServedModel, rounds: int | None, wait: bool) -> list[Attempt]:
        """Take part round after round, in each period with its own data, also while the catalogue grows."""
        ended: list[Attempt] = []
        while True:
            left = None if rounds is None else rounds - sum(one.whole for one in ended)
            with self.state() as state, self.home.personal(served.task.spec) as personal:
                participant = self._participant(served, state, personal)
                try:
                    ended += await participant.run(left, wait=False)
                except WrongModel:
                    ended += participant.ended
                    grown = await self.model()
                    if grown.digest == served.digest:
                        raise
                    served = grown
                    self.notify(
                        Event("model", f"The catalogue has grown to version {grown.catalogue.version}")
                    )
                    continue
            if not wait or (rounds is not None and sum(one.whole for one in ended) >= rounds):
                return ended
            if not await participant.rest():
                return ended
            served = await self.model()  # also looks whether the clock that woke us is right

    def _participant(self, served: ServedModel, state: ClientState, personal: PersonalRows) -> Participant:
        model, trainer = served.client_model, self._trainer(served, state)
        shared = {name: trainer.device.needed[name] for name in model.tables.shared}
        privacy, randomness = self.terms.index_privacy, self.randomness
        memory = DurableMemory(
            state,
            privacy,
            model.tables,
            shared,
            today=_today,
            randomness=randomness,
            require_day=self.link.require_same_day,
        )
        return Participant(
            link=self.link,
            model=model,
            memory=memory,
            trainer=trainer,
            personal=personal,
            policy=self.terms.policy,
            randomness=self.randomness,
            notify=self.notify,
            identity=self.identity,
            pinned=self._pinned() if self.log is None or self.terms.roster else self.log.members,
            log=self.log,
            purse=DurablePurse(state, shared, self.terms.hot_delta),
            now=lambda: datetime.now(UTC).replace(tzinfo=None),
        )

    def _trainer(self, served: ServedModel, state: ClientState) -> DeviceTrainer:
        """Return a trainer on the samples, and the rows of the catalogue, with which this period began."""
        source, today = source_of(self.data), _today()
        going_on = state.going_on(today)
        frozen, changed = self.home.samples(source, state, today)
        if changed:
            what = source if isinstance(source, Path) else "what it was given"
            self.notify(Event("waiting", f"{what} has changed; this period goes on with what it froze"))
        rows = self._known.settle(served, going_on=going_on)
        fresh = partial(self.home.exposed.fresh, state=state, today=today, repeat=self.terms.repeat_samples)
        device, report = build_device(
            served,
            rows,
            frozen,
            source,
            self.held_out,
            self.layout,
            fresh if self.terms.exact_sums else None,
        )
        said = f"{len(device.train):,} samples to train on" if report is None else str(report)
        if not len(device.train) and (report is None or report.samples):
            said = (
                "None of its samples is new since it last took part, so that it does with none: staying away "
                "would tell the server. --repeat-samples uses old ones again"
            )
        elif not any(len(device.needed[name]) for name in served.shared_rows):
            said += (
                ". The server's model has none of its rows, so that it takes part with nothing: staying away "
                "would tell the server. Are they called otherwise there?"
            )
        self.notify(Event("data", said))
        return KeepingTrainer(
            device,
            lambda number: int.from_bytes(self.randomness.bytes(4), "big") >> 1,
            served=served,
            folder=self.home.folder,
        )

    @property
    def _known(self) -> KnownModel:
        return KnownModel(self.home.folder / "model")

    def _pinned(self) -> dict[str, bytes] | None:
        roster = self.terms.roster_file
        return None if roster is None else read_roster(roster)


def _today() -> date:
    return datetime.now(UTC).date()
