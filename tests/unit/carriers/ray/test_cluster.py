"""What the Ray engine asks of a cluster, and says when it is not there; without any cluster."""

import socket
import subprocess
import sys
from typing import Any

import pytest

from clocks import PATIENCE
from sfsl.errors import InputError
from sfsl.run.setup import cluster_settings, require_engine
from sfsl.settings.run import from_sections

ON_RAY = {"run": {"engine": "ray"}}


def nobody_listens() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.2", 0))
        return f"127.0.0.2:{one.getsockname()[1]}"


def test_without_ray_everything_else_works_and_the_engine_says_what_to_install() -> None:
    """In a process of its own: another test may have imported ray here."""
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import sfsl.cli, sfsl.carriers.local.engine, sfsl.run.setup, sfsl.run.start\n"
        "from sfsl.settings.run import from_sections\n"
        "from sfsl.run.setup import require_engine\n"
        "require_engine(from_sections({}))\n"
        "try: require_engine(from_sections({'run': {'engine': 'ray'}}))\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "needs ray" in done.stdout
    assert "pip install 'sfsl[ray]'" in done.stdout


def test_a_cluster_that_cannot_be_reached_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray itself tries for minutes"))
    address = nobody_listens()
    with pytest.raises(InputError, match=address):
        require_engine(from_sections(ON_RAY | {"ray": {"address": address}}))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match="ray start --head"):
        require_engine(from_sections(ON_RAY))
    with pytest.raises(InputError, match="nowhere:port"):
        require_engine(from_sections(ON_RAY | {"ray": {"address": "nowhere:port"}}))
    with pytest.raises(InputError, match="on a node of the cluster"):
        require_engine(from_sections(ON_RAY | {"ray": {"address": "ray://head:10001"}}))


def test_a_machine_without_a_cluster_is_told_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from sfsl.carriers.ray.cluster import Connection

    def nobody(**options: Any) -> None:
        raise ConnectionError("no instance; set the --address flag")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(InputError, match="no Ray cluster runs on this machine; start one with: ray start"):
        Connection(cluster_settings(from_sections(ON_RAY | {"ray": {"address": "auto"}})))


def test_a_worker_has_the_cores_that_a_step_has_unless_told_otherwise() -> None:
    assert cluster_settings(from_sections({"run": {"threads": 3}})).cpus == 3
    assert cluster_settings(from_sections({"run": {"threads": 0}})).cpus == 1
    assert cluster_settings(from_sections({"ray": {"cpus_per_worker": 2}})).cpus == 2
    assert cluster_settings(from_sections({"run": {"threads": 3}})).threads == 3


@pytest.mark.parametrize(
    ("given", "there", "workers", "expected"),
    [
        ("auto", {}, 4, 0.0),
        ("auto", {"GPU": 8.0}, 4, 1.0),
        ("auto", {"GPU": 1.0}, 4, 0.25),
        ("auto", {"GPU": 2.0}, 3, 0.6666),
        (0.5, {"GPU": 1.0}, 4, 0.5),
        (0.0, {"GPU": 8.0}, 4, 0.0),
    ],
)
def test_gpus_are_divided_among_the_workers(
    given: Any, there: dict[str, float], workers: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from sfsl.carriers.ray import cluster

    monkeypatch.setattr(cluster, "nodes", lambda: [there | {"CPU": 15.0}, {"CPU": 1.0}])
    settings = cluster_settings(from_sections({"ray": {"gpus_per_worker": given}}))
    assert cluster.gpus_for_each(settings, workers) == pytest.approx(expected)


def test_room_is_what_cores_and_gpus_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from sfsl.carriers.ray import cluster

    monkeypatch.setattr(cluster, "nodes", lambda: [{"CPU": 7.0, "GPU": 1.0}, {"CPU": 1.0}, {}])
    assert cluster.room(1, 0.0) == 8
    assert cluster.room(2, 0.0) == 3, "a worker has its cores on one node"
    assert cluster.room(2, 0.5) == 2
    assert cluster.room(2, 1 / 3) == 3
    assert cluster.room(2, 2.0) == 0


@pytest.mark.parametrize(
    ("gpus", "cuda", "expected"), [([0], True, "cuda"), ([0], False, "cpu"), ([], True, "cpu")]
)
def test_a_worker_trains_on_a_gpu_if_it_was_given_one_and_can_use_it(
    gpus: list[int], cuda: bool, expected: str
) -> None:
    pytest.importorskip("ray")
    from sfsl.carriers.ray.worker import training_device

    assert training_device(gpus, cuda=cuda) == expected


def tiny_population() -> Any:
    from sfsl.run.fleet import build_fleet, client_privacy
    from sfsl.run.setup import simulation_settings
    from sfsl.simulate.population import Population

    config = from_sections({"data": {"users": 12, "scale": 0.02}, "round": {"clients": 10}})
    fleet = build_fleet(config)
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    return Population(fleet.task, fleet.devices, settings, seed=1)


def lessons_of(population: Any) -> dict[str, Any]:
    """What everyone learns from a model that it gets whole."""
    import numpy as np

    from sfsl.rounds import Download
    from sfsl.submodel import RowSet

    task, rng = population.task, np.random.default_rng(0)
    rows = {table.name: RowSet(np.arange(table.rows)) for table in task.tables}
    values = {
        table.name: rng.normal(0, 0.1, (table.rows, table.width)).astype(np.float32) for table in task.tables
    }
    download = Download(rows, values, task.initial_dense(), {})
    names = sorted(population.devices)
    personal = {
        name: {table: values[table][own] for table, own in population.devices[name].personal.items()}
        for name in names
    }
    trained, _ = population.train(1, [names], dict.fromkeys(names, download), personal)
    return {name: np.asarray(one.dense) for name, one in trained.items()}


def test_a_population_trains_on_the_device_it_was_put_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from sfsl.simulate import population

    seen: list[str] = []
    whole = population.train_cohort

    def watched(*given: Any, device: str, **options: Any) -> Any:
        seen.append(device)
        return whole(*given, **options)

    monkeypatch.setattr(population, "train_cohort", watched)
    everyone = tiny_population()
    lessons_of(everyone)
    lessons_of(everyone.on("cuda"))
    assert seen == ["cpu", "cuda"]


def test_a_gpu_learns_what_a_cpu_learns_but_for_last_bits() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    everyone = tiny_population()
    here, there = lessons_of(everyone), lessons_of(everyone.on("cuda"))
    assert any(one.any() for one in here.values())
    for name, one in here.items():
        assert there[name] == pytest.approx(one, abs=1e-5)
