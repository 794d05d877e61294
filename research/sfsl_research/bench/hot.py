"""What a round over hot rows costs at any size: real clients and a real server, without training."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from sfsl.arrays import Indices
from sfsl.codec import Message
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import InputError
from sfsl.privacy.accounting import epsilon_of, plan_noise
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.rounds import RoundPolicy, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC, Exchange
from sfsl.rounds.hot import HotSet, HotState
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.hot_server import HotRound
from sfsl.rounds.params import HotLimits, HotRules, RoundRules
from sfsl.rounds.record import RoundTally
from sfsl.secagg import Policy
from sfsl.secagg.masking import Masker
from sfsl.service.driver import CohortRound, Driver
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import from_sections
from sfsl.submodel import MemoryStore, ModelSpec, RowMaps, RowSet, StoreSpec, Table, TrainedRows

Result = TypeVar("Result")
_LARGEST = 1 << 30
_POLICY = RoundPolicy(
    session=Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=2**32),
    max_clip=1e6,
    max_rows=2**32,
    hot=HotLimits(max_rho=math.inf),
)


class _Memory:
    """Debits nothing: disks are not what is measured here."""

    def spend(self, round_id: bytes, rho: float) -> None: ...

    def owned(self) -> Mapping[str, Indices]:
        return {}


def bench_hot(
    clients: int = 1000,
    *,
    items: int = 143_534,
    categories: int = 4815,
    width: int = 18,
    dense: int = 64_327,
    megabytes: float = 1.5,
    own_rows: int = 300,
    dropout: float = 0.1,
    epsilon: float = 8.0,
    delta: float = 1e-6,
    participations: int = 5,
    masked: int | None = None,
    seed: int = 0,
    seen: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Run one round that trains, with made-up updates, and check its sum where everybody masks.

    Only the first ``masked`` clients mask their vectors, where it is given: the server's work is the same for
    vectors without masks, and thousands of clients take long. Then the sum is not looked at.
    """
    if not 0 <= dropout < 0.2:
        raise InputError(
            f"--dropout {dropout}: a share from 0 to below 0.2, beyond which a round may not open"
        )
    rng = np.random.default_rng(seed)
    noise = plan_noise(epsilon, delta, participations)
    hot = HotRules(rho=noise.rho_train, survey_rho=noise.rho_survey, megabytes=megabytes)
    plan, driver = _plan(clients, hot, items, categories, width, dense)
    assert plan.published is not None  # noqa: S101 -- a round that trains has published
    sets = plan.published.hot.sets(driver.model)
    names = [f"client-{place:05d}" for place in range(clients)]
    gone = set(rng.choice(names, round(dropout * clients), replace=False).tolist())
    measured = set(names if masked is None else names[:masked]) - gone
    spent, server = dict.fromkeys(names, 0.0), _Meter()
    up, down = dict.fromkeys(names, 0), dict.fromkeys(names, len(plan.published.blob))

    def of(name: str, act: Callable[[], Result]) -> Result:
        start = time.thread_time()
        result = act()
        spent[name] += time.thread_time() - start
        return result

    own = Own(_Memory(), driver.model, driver.maps, _POLICY, SystemRandomness())
    people = {name: HotClient.join(name, own) for name in names}
    keys = [of(name, people[name].create_keys) for name in names]
    tally = RoundTally(clients)
    cohort: CohortRound = server.of(lambda: driver.open(plan, keys, tally))
    frames = server.of(cohort.begin)
    trained = _trained(rng, driver.model, sets, own_rows)

    def upload(name: str, message: Message) -> Message:
        assert plan.published is not None  # noqa: S101
        people[name].handle_model(message, plan.published)  # type: ignore[arg-type]
        return people[name].create_update(trained)

    acts: dict[Exchange, Callable[[str, Any], Message]] = {
        Exchange.INVITATION: lambda name, message: people[name].handle_invitation(message),
        Exchange.INBOUND: upload,
        Exchange.UNMASK_UPDATE: lambda name, message: people[name].handle_unmask(message),
    }
    while exchange := cohort.exchange:
        act = acts[Exchange(exchange)]
        for number, (name, frame) in enumerate(frames.items()):
            if exchange is Exchange.INBOUND and name in gone:
                continue
            idle = exchange is Exchange.INBOUND and name not in measured
            with patch.object(Masker, "_apply", _nothing) if idle else nullcontext():
                answer = of(name, lambda: CODEC.encode(act(name, CODEC.decode(frame, limit=_LARGEST))))  # noqa: B023
            up[name] += len(answer)
            down[name] += len(frame)
            server.of(lambda: cohort.receive(exchange, name, answer))  # noqa: B023
            if number % 100 == 0:
                seen(number)
        frames = server.of(cohort.close)
    checked = masked is None or masked >= clients
    if checked:
        _check(plan, cohort, len(names) - len(gone), trained)
    alive = sorted(measured)
    drawing = DiscreteGaussian(plan.params.deviation) if plan.params.deviation else None
    return {
        "clients": clients,
        "dropped": len(gone),
        "words": plan.params.length,
        "hot_rows": {name: len(rows) for name, rows in sets.items()},
        "client_seconds": median(spent[name] for name in alive),
        "client_seconds_max": max(spent[name] for name in alive),
        "noise_seconds": 0.0 if drawing is None else _drawing_seconds(drawing, plan.params.length),
        "server_seconds": server.seconds,
        "client_bytes_up": round(float(np.mean([up[name] for name in alive]))),
        "client_bytes_down": round(float(np.mean([down[name] for name in alive]))),
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": delta,
        "participations": participations,
        "epsilon_per_round": epsilon_of(noise.rho_train, delta) if math.isfinite(epsilon) else None,
        "checked": checked,
    }


class _Meter:
    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, act: Callable[[], Result]) -> Result:
        start = time.thread_time()
        result = act()
        self.seconds += time.thread_time() - start
        return result


def _nothing(*given: object) -> None:
    """Stand in for masking."""


def _plan(
    clients: int, hot: HotRules, items: int, categories: int, width: int, dense: int
) -> tuple[HotRound, Driver]:
    model = ModelSpec(
        tables=(
            Table(name="item", rows=items, width=width),
            Table(name="category", rows=categories, width=width, kind="derived", source="item"),
        ),
        dense=dense,
    )
    config = from_sections({"round": {"scheme": "hot", "clients": clients}, "privacy": {"participations": 1},
                            "hot": {"surveys": 1}})  # fmt: skip
    rules = round_rules(config)
    rules = RoundRules(**{**vars(rules), "hot": hot})
    slots = (rules.update.row_step.slots, rules.update.dense_step.slots)
    store = MemoryStore(StoreSpec(model, bytes(32), *slots), np.zeros(dense, np.float32))
    maps = RowMaps(model, {"category": np.arange(items) % categories})
    driver = Driver(rules, model, maps, store, cpu=time.thread_time)
    room = hot.words(model, rules.bins, rules.precision) // width
    derived = min(categories, room // 2)
    rows = {"category": np.arange(derived), "item": np.arange(min(items, room - derived))}
    owners = {name: np.full(len(some), 0.01 * clients) for name, some in rows.items()}
    state = HotState(surveys=hot.surveys, hot=HotSet.of(1, clients, rows, owners).encode())
    plan = driver.plan(clients, 0, hot=state)
    assert isinstance(plan, HotRound)  # noqa: S101 -- as the rules say
    return plan, driver


def _trained(
    rng: np.random.Generator, model: ModelSpec, sets: Mapping[str, RowSet], own_rows: int
) -> Trained:
    rows = {}
    for table in model.summed:
        some = sets[table.name].rows
        own = np.sort(rng.choice(some, min(own_rows, len(some)), replace=False))
        rows[table.name] = TrainedRows(
            RowSet(own), rng.normal(0, 1e-3, (len(own), table.width)), np.ones(len(own), np.int64)
        )
    return Trained(rng.normal(0, 1e-3, model.dense), 30, rows)


def _check(plan: HotRound, cohort: CohortRound, alive: int, trained: Trained) -> None:
    """Compare the opened sum with what went in: no number is farther off than noise and rounding allow."""
    sums = cohort.server.sums
    dense = np.asarray(trained.dense) * plan.params.levels / plan.params.clip * alive
    spread = math.sqrt(alive) * (plan.params.deviation + 1)
    off = np.abs(sums.words[: len(dense)] - dense).max()  # type: ignore[union-attr]
    if off > 8 * spread + 1e-6 * np.abs(dense).max():
        raise AssertionError(f"the sum is {off:.0f} words off, and noise explains {spread:.0f}")


def _drawing_seconds(noise: DiscreteGaussian, count: int) -> float:
    found = []
    for _ in range(5):
        start = time.thread_time()
        noise.draw(count, SystemRandomness())
        found.append(time.thread_time() - start)
    return median(found)
