"""The front door against the real thing: runs, models at rest, and clients inside a program."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sfsl
from sfsl.data import SyntheticSettings, SyntheticTaobao, hold_out_last
from sfsl.errors import InputError, ParameterError, WrongModel
from sfsl.run import start
from sfsl.settings.toml import read_config

SMALL: dict[str, Any] = {
    "data.users": 12,
    "data.scale": 0.03,
    "model.kind": "logistic",
    "round.min_contributors": 1,
    "run.evaluate_every": 0,
}


class Rating(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.film = torch.nn.Embedding(10, 1, device="meta")
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> Any:
        return self.film(batch["film"]).sum(dim=-1) + self.bias


TASK = sfsl.Task(Rating(), (sfsl.Table(name="film", rows=10, width=1),))
FILMS = np.arange(10)
LIKED = sfsl.Samples({"film": FILMS, "label": np.float32(FILMS > 4)}, {"film": "film"})
EVERYONE = {f"user-{number}": LIKED for number in range(6)}


# -- train -------------------------------------------------------------------------------------


def test_a_run_from_python_is_the_run_of_its_settings(tmp_path: Path) -> None:
    seen: list[int] = []
    run = sfsl.train(
        rounds=2,
        clients=4,
        seed=7,
        out=tmp_path / "run",
        settings=SMALL,
        on_round=lambda line: seen.append(line.round),
    )
    assert seen == [1, 2] == [line.round for line in run.records]
    config = read_config(tmp_path / "run/config.toml")
    assert (config.run.rounds, config.round.clients, config.run.seed) == (2, 4, 7)
    with start.begin(tmp_path / "again", config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
    again = sfsl.load(tmp_path / "again").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in run.state_dict().items())


def test_settings_nested_flat_and_from_a_file_are_the_same(tmp_path: Path) -> None:
    nested = {
        "data": {"users": 12, "scale": 0.03},
        "model": {"kind": "logistic"},
        "round.min_contributors": 1,
    }
    (tmp_path / "run.toml").write_text(
        '[data]\nusers = 12\nscale = 0.03\n[model]\nkind = "logistic"\n[round]\nmin_contributors = 1\n'
    )
    models = [
        sfsl.train(rounds=1, clients=4, settings=settings).model.dense.tolist()
        for settings in (nested, tmp_path / "run.toml", str(tmp_path / "run.toml"))
    ]
    assert models[0] == models[1] == models[2]


def test_your_own_fleet_stops_and_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "rounds": 4,
        "settings": {"training.clip": 10, "round.min_contributors": 2},
        "out": tmp_path / "run",
    }
    first = sfsl.train(
        TASK, EVERYONE, EVERYONE, on_round=[lambda line: None, lambda line: line.round == 2], **options
    )
    assert (len(first.records), first.summary.complete, first.records[0].cohort) == (2, False, 6)
    with pytest.raises(InputError, match="holds a run already"):
        sfsl.train(TASK, EVERYONE, EVERYONE, **options)
    fleet = sfsl.Fleet.of(TASK, EVERYONE, EVERYONE)
    whole = sfsl.train(fleet, resume=True, **options)
    assert [line.round for line in whole.records] == [1, 2, 3, 4]
    assert whole.auc == 1.0
    with pytest.raises(InputError, match="given its fleet in Python"):
        sfsl.train(resume=True, **options | {"settings": str(tmp_path / "run/config.toml")})


def test_an_error_of_a_callback_is_raised_and_the_round_stands(tmp_path: Path) -> None:
    def broken(line: sfsl.RoundRecord) -> None:
        raise ZeroDivisionError(line.round)

    with pytest.raises(ZeroDivisionError, match="1"):
        sfsl.train(rounds=3, clients=4, settings=SMALL, out=tmp_path / "run", on_round=broken)
    assert sfsl.load(tmp_path / "run").round == 1


def test_a_temporary_folder_lasts_as_long_as_the_run() -> None:
    run = sfsl.train(rounds=1, clients=4, settings=SMALL)
    path = run.path
    assert run.auc is not None
    assert path.exists()
    model = run.model
    del run
    gc.collect()
    assert model.dense.shape == (1,)
    del model
    gc.collect()
    assert not path.exists()


@pytest.mark.parametrize(
    ("given", "options", "error", "says"),
    [
        ((TASK,), {}, InputError, "trained on samples"),
        ((None, EVERYONE), {}, InputError, "go with a task"),
        ((3,), {}, InputError, "int cannot be trained"),
        ((TASK, {}), {}, InputError, "at least one client"),
        ((TASK, EVERYONE), {"clients": 7}, InputError, "only 6 users"),
        ((), {"settings": {"clients": 3}}, InputError, "expected section.key"),
        ((), {"settings": {"round.cliants": 3}}, ParameterError, "no key round.cliants"),
        ((), {"rounds": 0}, ParameterError, "run.rounds"),
        ((), {"resume": True}, InputError, "give it with out="),
    ],
)
def test_what_cannot_be_trained(given: Any, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        sfsl.train(*given, **options)


# -- load --------------------------------------------------------------------------------------


def test_a_model_at_rest(tmp_path: Path) -> None:
    run = sfsl.train(
        TASK, EVERYONE, {}, rounds=1, out=tmp_path / "run", settings={"round.min_contributors": 1}
    )
    model = sfsl.load(tmp_path / "run")
    rows = model.rows("film", [9, 0, 9])
    assert rows.shape == (3, 1)
    assert np.array_equal(rows[0], rows[2])
    assert run.state_dict()["film.weight"][9].tolist() == rows[0].tolist()
    assert model.dense.tolist() == run.state_dict()["bias"].tolist()
    for wrong in ([10], [-1], [0.5]):
        with pytest.raises(InputError):
            model.rows("film", wrong)
    with pytest.raises(InputError, match="no table 'flim'"):
        model.rows("flim", [0])
    with pytest.raises(InputError, match="given its fleet in Python"):
        _ = model.task
    known = sfsl.load(tmp_path / "run", task=TASK)
    assert torch.equal(known.state_dict()["film.weight"], run.state_dict()["film.weight"])
    narrow = torch.nn.Module()
    narrow.film = torch.nn.Embedding(9, 1)
    with pytest.raises(WrongModel, match="another model"):
        sfsl.load(tmp_path / "run", task=sfsl.Task(narrow, (sfsl.Table(name="film", rows=9, width=1),)))


# -- serve and join ----------------------------------------------------------------------------

EXACT = sfsl.Terms(exact_sums=True, least_cohort=3, least_contributors=2)
SERVED: dict[str, Any] = {
    "data": {"users": 12, "scale": 0.03, "world": "tastes"},
    "model": {"kind": "logistic"},
    "round": {"scheme": "sfsl", "clients": 3, "threshold": 3, "min_contributors": 2},
    "serve": {"enrolment": "open", "plain": True, "port": 0, "rounds": 1, "period_days": 0},
}


def own_samples(number: int) -> sfsl.Samples:
    """As the model has them: a client's user is row 0."""
    world = SyntheticTaobao(SyntheticSettings().scaled(0.03, users=12), seed=0).interactions()
    found = hold_out_last(world)[0].client(number)
    return sfsl.Samples(
        {**found.columns, "user": np.zeros(len(found), np.int64)}, found.tables, found.follows
    )


def test_samples_in_memory_take_part_and_a_period_freezes_them(tmp_path: Path) -> None:
    said: list[sfsl.Event] = []

    async def deployment() -> Any:
        ready: asyncio.Future[sfsl.Serving] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            sfsl.serve_async(SERVED, out=tmp_path / "server", ready=ready.set_result)
        )
        url = (await ready).url
        one = {"terms": EXACT, "plain": True, "wait": False, "rounds": 1}
        ended = await asyncio.gather(
            sfsl.join_async(url, own_samples(0), tmp_path / "a", on_event=said.append, **one),
            sfsl.join_async(url, lambda: own_samples(1), tmp_path / "b", **one),
            sfsl.join_async(url, own_samples(2), tmp_path / "c", **one),
        )
        return [attempt.outcome for some in ended for attempt in some], await server

    async def later(data: Any) -> Any:
        ready: asyncio.Future[sfsl.Serving] = asyncio.get_running_loop().create_future()
        more = SERVED | {"serve": SERVED["serve"] | {"rounds": 2}}
        server = asyncio.create_task(sfsl.serve_async(more, out=tmp_path / "server", ready=ready.set_result))
        serving = await ready
        try:
            return await sfsl.join_async(
                serving.url,
                data,
                tmp_path / "a",
                terms=EXACT,
                plain=True,
                wait=False,
                on_event=said.append,
            )
        finally:
            await serving.stop()
            await server

    outcomes, last = asyncio.run(asyncio.wait_for(deployment(), 60))
    assert (outcomes, last) == (["committed"] * 3, 1)
    assert [one.kind for one in said[:2]] == ["terms", "data"]
    said.clear()
    (again,) = asyncio.run(asyncio.wait_for(later(own_samples(5)), 60))
    assert again.outcome == "declined"
    assert "exposures" in again.why  # and not that its data changed: this period goes on with what it froze
    assert said[1].text == "what it was given has changed; this period goes on with what it froze"
    model = sfsl.load(tmp_path / "server")
    assert (model.round, model.task) == (1, None)
    assert model.rows("item", [0, 1]).shape == (2, 2)
    with pytest.raises(InputError, match="personal"):
        model.rows("user", [0])
    with pytest.raises(InputError, match="give the task"):
        model.state_dict()
    for data, says in (
        (3, "should be the path of a CSV file or"),
        (sfsl.Samples({"x": np.zeros(3)}, {}), "no column of these samples holds rows of table 'user'"),
        (own_samples(0).at(np.zeros(0, np.int64)), "no samples to take part with"),
        (without(own_samples(0), "label"), "the model cannot read these samples"),
        (sfsl.Samples({"item": np.array(["x"])}, {"item": "item"}), "samples are numbers"),
    ):
        (tmp_path / "a/data").unlink()  # as if a new period had begun
        with pytest.raises(InputError, match=says):
            asyncio.run(asyncio.wait_for(later(data), 60))
        (tmp_path / "a/data").touch()


def without(samples: sfsl.Samples, column: str) -> sfsl.Samples:
    return sfsl.Samples(
        {name: values for name, values in samples.columns.items() if name != column},
        samples.tables,
        samples.follows,
    )


def test_a_client_can_be_cancelled_and_leaves_its_folder_usable(tmp_path: Path) -> None:
    async def main() -> None:
        ready: asyncio.Future[sfsl.Serving] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            sfsl.serve_async(SERVED, out=tmp_path / "server", ready=ready.set_result)
        )
        serving, checked_in = await ready, asyncio.Event()

        def told(event: sfsl.Event) -> None:
            if event.kind == "checked-in":
                checked_in.set()

        for _ in range(2):  # the second finds neither a lock nor half a file
            checked_in.clear()
            client = asyncio.create_task(
                sfsl.join_async(
                    serving.url, own_samples(0), tmp_path / "me", terms=EXACT, plain=True, on_event=told
                )
            )
            await checked_in.wait()
            client.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client
        await serving.stop()
        assert await server == 0

    asyncio.run(asyncio.wait_for(main(), 60))
