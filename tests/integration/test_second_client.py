"""Rounds with clients written from docs/spec alone (tests/second_client), on a real server over TLS."""

import asyncio
import math
import re
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clocks import PATIENCE
from deployment import HOSTS, settings
from second_client import client
from second_client.client import SecondClient
from second_client.hot import HotDownload, Limits
from second_client.log import Log
from second_client.rounds import Download, Update
from second_client.secagg import Policy
from second_client.wire import Refused, digest, encode
from sfsl import secagg
from sfsl.carriers.https.app import AppLimits, Server, create_app
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.carriers.https.coordinator import Coordinator, now_ms
from sfsl.carriers.https.listen import Listen
from sfsl.carriers.https.listen import serve as serve_forever
from sfsl.client import Backoff, ClientModel, DurableMemory, Lesson, Link, Participant, PersonalRows
from sfsl.client.participant import Settings
from sfsl.crypto.secret import Identity, Secret, SystemRandomness
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState
from sfsl.rounds import RoundPolicy, Trained
from sfsl.rounds.params import ANYTHING, HotRules
from sfsl.rounds.record import RoundRecord
from sfsl.service.driver import Kept, Service
from sfsl.service.identities import Enrolment
from sfsl.service.log_file import LogRules, RosterLog
from sfsl.service.registry import Registry
from sfsl.service.signing import Verifier
from sfsl.submodel import MemoryStore, ModelSpec, RowMaps, RowSet, StoreSpec, Table, TrainedRows

ITEMS, CATEGORIES, LEVELS = 60, 6, 1024
CATEGORY_OF = np.arange(ITEMS) % CATEGORIES
MODEL = ModelSpec(
    tables=(
        Table(name="user", rows=10, width=1, kind="personal", initial=0.0),
        Table(name="item", rows=ITEMS, width=2, initial=0.0),
        Table(name="category", rows=CATEGORIES, width=2, kind="derived", source="item", initial=0.0),
    ),
    dense=1,
)
MAPS = RowMaps(MODEL, {"category": CATEGORY_OF})
PACKAGE = encode(
    "model-package",
    kind="logistic",
    width=2,
    slopes="",
    initial=0.0,
    users=10,
    items=ITEMS,
    categories=CATEGORIES,
    category_of=CATEGORY_OF.astype(np.uint8).tobytes(),
    model={
        "tables": [
            {
                "name": one.name,
                "rows": one.rows,
                "width": one.width,
                "kind": one.kind,
                "source": one.source,
                "initial": one.initial,
            }
            for one in MODEL.tables
        ],
        "dense": MODEL.dense,
    },
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    create_authority(folder, "test", 2, now=datetime.now(UTC))
    issue_server(folder, ["localhost", "127.0.0.1"], 1, now=datetime.now(UTC))
    return folder


class Person:
    """Someone's rows, and what training makes of them: steps of 1/1024, so that no rounding is in the way."""

    def __init__(self, number: int, rows: Sequence[int]) -> None:
        self.number, self.rows, self.weight = number, sorted(rows), number + 2
        self.seen: list[Download] = []
        rng = np.random.default_rng(number)
        self.dense = rng.integers(-100, 100, 1) / LEVELS
        self.items = rng.integers(-100, 100, (len(rows), 2)) / LEVELS
        self.of_category = sorted(set(CATEGORY_OF[self.rows].tolist()))
        self.categories = rng.integers(-100, 100, (len(self.of_category), 2)) / LEVELS

    @property
    def moves(self) -> dict[str, dict[int, np.ndarray]]:
        return {
            "item": dict(zip(self.rows, self.items, strict=True)),
            "category": dict(zip(self.of_category, self.categories, strict=True)),
        }

    # -- as the second client has it

    def train(self, download: Download) -> Update:
        self.seen.append(download)
        rows = {
            table: {row: (move, self.weight) for row, move in moves.items()}
            for table, moves in self.moves.items()
        }
        return Update(self.dense, self.weight, rows)

    def train_hot(self, download: HotDownload) -> Update:
        """Of its rows those that are hot."""
        held = download.rows
        rows = {
            table: {row: (move, 1) for row, move in moves.items() if row in held[table]}
            for table, moves in self.moves.items()
        }
        return Update(self.dense, self.weight, rows)


class Ours:
    """The same person as a trainer of our own client."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.personal = {"user": np.array([3], np.int64)}

    def require(self, training: Any) -> None:
        pass

    def train(self, download: Any, personal: Any, number: int) -> Lesson:
        person = self.person
        trained = {
            table: TrainedRows(RowSet.of(rows), moves, np.full(len(rows), person.weight))
            for table, rows, moves in (
                ("item", person.rows, person.items),
                ("category", person.of_category, person.categories),
            )
        }
        none = np.zeros(8, int)
        return Lesson(Trained(person.dense, person.weight, trained, (none, none)), {})


PEOPLE = [Person(0, [1, 2, 3, 30]), Person(1, [2, 3, 4, 31]), Person(2, [3, 8, 59]), Person(3, [0, 3, 9, 4])]


class World:
    """A server on a port of its own. Clients of the second kind run in threads, ours on the event loop."""

    def __init__(self, folder: Path, tls: Path, **changes: Any) -> None:
        self.folder, self._tls = folder, tls
        self.registry = Registry(folder / "registry.sqlite")
        self.store = MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), dense=np.array([0.5], np.float32))
        self.lines: list[RoundRecord] = []
        service = Service(
            settings(**changes),
            MODEL,
            MAPS,
            self.store,
            self.registry,
            model_digest=digest("model package", PACKAGE),
            record=self.lines.append,
            cpu=time.thread_time,
            clock=time.monotonic,
            today=now_ms,
            binds_model=True,
        )
        self.log = RosterLog(folder, self.registry.deployment, LogRules(), SystemRandomness(), now_ms())
        self.coordinator = Coordinator(service)
        self.threads = ThreadPoolExecutor(8)
        self._second: list[SecondClient] = []

    async def __aenter__(self) -> "World":
        limits = AppLimits()
        verifier = Verifier(self.registry.deployment, self.registry.public_key, hosts=HOSTS)
        server = Server(self.coordinator, verifier, Enrolment.open(100), PACKAGE, limits, log=self.log)
        listen = Listen(port=0, certificate=self._tls / "server.pem", key=self._tls / "server.key")
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        app = create_app(server, limits)
        self._serving = asyncio.create_task(serve_forever(app, self.coordinator, listen, ready.set_result))
        self.url = await asyncio.wait_for(ready, PATIENCE)
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self._second:
            one.close()  # a server that stops waits for connections that are open
        await self.coordinator.stop()
        await asyncio.wait_for(self._serving, PATIENCE)
        self.threads.shutdown()
        self.log.close()
        self.registry.close()

    async def thread(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, act, *arguments)

    def second(self, person: Person, **options: Any) -> SecondClient:
        authority = str(self._tls / "authority.pem")
        self._second.append(SecondClient(self.url, authority, seed(person), **options))
        return self._second[-1]

    async def ours(self, person: Person, pinned: Any = None) -> str:
        """Our own client in all its parts, for one round; how that ended."""
        randomness, identity = SystemRandomness(), Identity(Secret(seed(person)))
        model = ClientModel(digest("model package", PACKAGE), MODEL, MAPS, bound=True)
        state = ClientState.create(
            self.folder / f"{person.number}.state",
            client=f"c{person.number}",
            calendar=Calendar(start=date(2026, 1, 1), days=30),
            budget=Budget(math.inf, math.inf, 5),
        )
        personal = PersonalRows.open(self.folder / f"{person.number}.rows", MODEL, randomness)
        link = Link(
            self.url,
            identity,
            tls=ssl.create_default_context(cafile=str(self._tls / "authority.pem")),
            backoff=Backoff(randomness),
            randomness=randomness,
        )
        participant = Participant(
            link=link,
            model=model,
            memory=DurableMemory(
                state,
                PRESETS["cpp1"],
                model.tables,
                {"item": person.rows},
                today=lambda: date(2026, 11, 15),
                randomness=randomness,
            ),
            trainer=Ours(person),
            personal=personal,
            policy=RoundPolicy(
                session=secagg.Policy(min_clients=3, min_threshold=2, min_contributors=1, max_words=10**5),
                max_clip=2.0,
                max_rows=1000,
                limits=ANYTHING,
            ),
            randomness=randomness,
            settings=Settings(pause_s=0.01),
            identity=identity if pinned else None,
            pinned=pinned,
        )
        try:
            (attempt,) = await participant.run(1, wait=False)
        finally:
            await link.close()
            state.close()
            personal.close()
        return str(attempt.outcome)

    def rows(self, table: str) -> np.ndarray:
        count = {"item": ITEMS, "category": CATEGORIES}[table]
        return self.store.read_rows(table, RowSet(np.arange(count))).values.copy()


def seed(person: Person) -> bytes:
    return bytes([person.number + 1]) * 32


def moved(rows: np.ndarray, table: str, people: Sequence[Person], least: int = 1) -> np.ndarray:
    """The rows after a round (submodel.md 3.4, 4.2, 5), without any of our code."""
    after = rows.copy()
    for row in range(len(rows)):
        owners = [one for one in people if row in one.moves[table]]
        if len(owners) >= max(least, 1):
            total = sum(one.weight * one.moves[table][row] for one in owners)
            move = total / sum(one.weight for one in owners)
            after[row] = (rows[row].astype(np.float64) + move).astype(np.float32)
    return after


def dense_moved(dense: np.ndarray, people: Sequence[Person]) -> np.ndarray:
    move = sum(one.weight * one.dense for one in people) / sum(one.weight for one in people)
    return (dense.astype(np.float64) + move).astype(np.float32)


def check(world: World, people: Sequence[Person], before: dict[str, np.ndarray], least: int = 1) -> None:
    for table in ("item", "category"):
        expected = moved(before[table], table, people, least)
        assert (expected != before[table]).any()
        np.testing.assert_array_equal(world.rows(table), expected)
    np.testing.assert_array_equal(world.store.read_dense().values, dense_moved(before["dense"], people))


def snapshot(world: World) -> dict[str, np.ndarray]:
    return {
        "item": world.rows("item"),
        "category": world.rows("category"),
        "dense": world.store.read_dense().values.copy(),
    }


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


@pytest.mark.parametrize("encoding", ["sketch", "identity", "bloom", "whole"])
def test_two_rounds_of_second_clients(tmp_path: Path, tls: Path, encoding: str) -> None:
    people = PEOPLE[:3]

    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=3, encoding=encoding) as world:
            clients = [world.second(person) for person in people]
            await asyncio.gather(*(world.thread(one.join) for one in clients))
            for number in (1, 2):
                before = snapshot(world)
                ends = await asyncio.gather(
                    *(
                        world.thread(one.take_part, {"item": person.rows}, person.train)
                        for one, person in zip(clients, people, strict=True)
                    )
                )
                assert [(end.outcome, end.number) for end in ends] == [("committed", number)] * 3
                assert [one.acknowledged for one in clients] == [number - 1] * 3
                check(world, people, before)
                for person in people:
                    download = person.seen[-1]
                    assert sorted(download.rows["item"]) == person.rows
                    for table, rows in download.rows.items():
                        for row, values in rows.items():
                            np.testing.assert_array_equal(values, before[table][row])

    run(scenario)


def test_second_clients_have_the_log_prove_each_other(tmp_path: Path, tls: Path) -> None:
    people = PEOPLE[:3]

    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=3, active=True) as world:
            trust = {"deployment": world.registry.deployment.hex(), "log": world.log.public.hex()}
            logs = [Log(trust) for _ in people]
            clients = [world.second(one, log=log) for one, log in zip(people, logs, strict=True)]
            await asyncio.gather(*(world.thread(one.join) for one in clients))
            for _ in range(2):
                ends = await asyncio.gather(
                    *(
                        world.thread(one.take_part, {"item": person.rows}, person.train)
                        for one, person in zip(clients, people, strict=True)
                    )
                )
                assert [end.outcome for end in ends] == ["committed"] * 3
            assert [log.since for log in logs] == [3] * 3

    run(scenario)


def test_beside_our_own_client_rows_of_few_are_left_out(tmp_path: Path, tls: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=4, min_contributors=2) as world:
            clients = [world.second(person) for person in PEOPLE[:2]]
            await asyncio.gather(*(world.thread(one.join) for one in clients))
            before = snapshot(world)
            *ends, own, other = await asyncio.gather(
                *(
                    world.thread(one.take_part, {"item": person.rows}, person.train)
                    for one, person in zip(clients, PEOPLE, strict=False)
                ),
                world.ours(PEOPLE[2]),
                world.ours(PEOPLE[3]),
            )
            assert [own, other, *(end.outcome for end in ends)] == ["committed"] * 4
            check(world, PEOPLE, before, least=2)

    run(scenario)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("leave", ["inbound-shares", "submodel"])
def test_one_leaves_and_the_others_open_what_it_shared(
    tmp_path: Path, tls: Path, leave: str, active: bool
) -> None:
    """Before its first upload, or before its second: its mask key is rebuilt from the others' shares."""
    order = ["invitation", "inbound-shares", "survivors", "unmask-request", "union", "submodel"]
    answers = [name for name in order if active or name != "survivors"].index(leave)
    leaver, rest = PEOPLE[0], PEOPLE[1:]

    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=4, active=active) as world:
            known = {one.id: one.public for one in map(world.second, PEOPLE)} if active else None
            clients = [world.second(person, known=known) for person in PEOPLE[:3]]
            await asyncio.gather(*(world.thread(one.join) for one in clients))
            before = snapshot(world)

            def half() -> None:
                """Checking in again is the quickest way out of a round (network.md 5.3)."""
                one = clients[0]
                one.check_in({"item": leaver.rows}, leaver.train)
                for _ in range(answers):
                    one.step()
                one.check_in({"item": leaver.rows}, leaver.train)

            _, *ends, own = await asyncio.gather(
                world.thread(half),
                *(
                    world.thread(one.take_part, {"item": person.rows}, person.train)
                    for one, person in zip(clients[1:], rest, strict=False)
                ),
                world.ours(rest[-1], known),
            )
            assert [own, *(end.outcome for end in ends)] == ["committed"] * 3
            check(world, rest, before)
            (line,) = world.lines
            assert (line.cohort, line.survivors) == (4, 3)

    run(scenario)


def test_a_client_whose_policy_forbids_the_round_declines_it(tmp_path: Path, tls: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=4) as world:
            clients = [world.second(person) for person in PEOPLE[:3]]
            clients.append(world.second(PEOPLE[3], policy=Policy(min_clients=5)))
            await asyncio.gather(*(world.thread(one.join) for one in clients))
            before = snapshot(world)
            ends = await asyncio.gather(
                *(
                    world.thread(one.take_part, {"item": person.rows}, person.train)
                    for one, person in zip(clients, PEOPLE, strict=True)
                )
            )
            assert [end.outcome for end in ends] == ["committed"] * 3 + ["left-out"]
            check(world, PEOPLE[:3], before)

    run(scenario)


def test_a_server_of_another_authority_or_deployment_is_not_dealt_with(tmp_path: Path, tls: Path) -> None:
    create_authority(tmp_path / "other", "other", 2, now=datetime.now(UTC))

    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=3) as world:
            stranger = SecondClient(world.url, str(tmp_path / "other/authority.pem"), seed(PEOPLE[0]))
            with pytest.raises(ssl.SSLCertVerificationError):
                await world.thread(stranger.join)
            stranger.close()
            one = world.second(PEOPLE[0], deployment=bytes(16))
            with pytest.raises(Refused, match="another deployment"):
                await world.thread(one.join)

    run(scenario)


def test_it_stands_alone() -> None:
    texts = [path.read_text() for path in Path(client.__file__).parent.glob("*.py")]
    assert len(texts) >= 6
    for text in texts:
        assert not re.search(r"^\s*(from|import) sfsl", text, re.MULTILINE)


def test_the_package_is_one_that_our_code_builds_the_same_model_from() -> None:
    pytest.importorskip("torch")
    from sfsl.models.package import build, describe

    task = build(PACKAGE)
    assert task.spec == MODEL
    assert describe(task) == PACKAGE


@pytest.mark.parametrize("rho", [math.inf, 0.5])
def test_a_survey_and_two_rounds_over_hot_rows(tmp_path: Path, tls: Path, rho: float) -> None:
    """The model and the hot rows are fetched by digest; without noise the sums are what the spec says."""
    hot = HotRules(rho=rho, survey_rho=rho, marks=20, corruption=0.0, clip=1.0)
    limits = Limits(rho=rho, corrupt=0.0)
    people = PEOPLE

    async def scenario() -> None:
        async with World(tmp_path, tls, cohort=4, hot=hot) as world:
            clients = [world.second(person) for person in people]
            await asyncio.gather(*(world.thread(one.join) for one in clients))
            assert (await world.thread(clients[0].about))["scheme"] == "hot"
            for number, kind in enumerate(("survey", "train", "train"), 1):
                before = snapshot(world)
                ends = await asyncio.gather(
                    *(
                        world.thread(one.take_part, {"item": person.rows}, person.train_hot, limits)
                        for one, person in zip(clients, people, strict=True)
                    )
                )
                assert [(end.outcome, end.number) for end in ends] == [("committed", number)] * 4
                # Paid by each, for itself.
                assert [one.spent for one in clients] == [pytest.approx(rho, rel=1e-6)] * 4
                kept = Kept.decode(world.store.selection).hot.hot_set()
                assert kept is not None
                if kind == "train" and rho == math.inf:
                    # Up to rounding by less than a word of 1/40 √d of the clip for each client.
                    shares = dict(
                        zip(kept.sets(MODEL)["item"].rows.tolist(), kept.shares("item"), strict=True)
                    )
                    assert shares == pytest.approx(
                        {row: owners(row) / 4 for row in range(ITEMS) if owners(row)}
                    )
                    due = before["dense"] + sum(one.dense for one in people) / 4
                    np.testing.assert_allclose(world.store.read_dense().values, due, atol=0.02)
                    mean = sum(one.moves["item"][3] for one in people) / 4
                    np.testing.assert_allclose(world.rows("item")[3], before["item"][3] + mean, atol=0.02)
                if kind == "survey":
                    assert not (world.rows("item") != before["item"]).any()

    run(scenario)


def owners(row: int) -> int:
    return sum(row in one.rows for one in PEOPLE)
