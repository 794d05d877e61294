"""What the Ray engine asks of a cluster, and says when it is not there; without any cluster."""

import socket
import subprocess
import sys
from typing import Any

import pytest

from clocks import PATIENCE
from sfsl.errors import InputError
from sfsl.settings.run import from_sections
from sfsl_research.ray.plugin import cluster_settings, require

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
        "from sfsl_research.ray.plugin import require\n"
        "try: require(from_sections({'run': {'engine': 'ray'}}))\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "needs ray" in done.stdout
    assert "/research[ray]'" in done.stdout


def test_a_cluster_that_cannot_be_reached_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray itself tries for minutes"))
    address = nobody_listens()
    with pytest.raises(InputError, match=address):
        require(from_sections(ON_RAY | {"ray": {"address": address}}))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match="ray start --head"):
        require(from_sections(ON_RAY))
    with pytest.raises(InputError, match="nowhere:port"):
        require(from_sections(ON_RAY | {"ray": {"address": "nowhere:port"}}))
    with pytest.raises(InputError, match="on a node of the cluster"):
        require(from_sections(ON_RAY | {"ray": {"address": "ray://head:10001"}}))


def test_a_machine_without_a_cluster_is_told_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from sfsl_research.ray.cluster import Connection

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
    from sfsl_research.ray import cluster

    monkeypatch.setattr(cluster, "nodes", lambda: [there | {"CPU": 15.0}, {"CPU": 1.0}])
    settings = cluster_settings(from_sections({"ray": {"gpus_per_worker": given}}))
    assert cluster.gpus_for_each(settings, workers) == pytest.approx(expected)


def test_room_is_what_cores_and_gpus_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from sfsl_research.ray import cluster

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
    from sfsl_research.ray.worker import training_device

    assert training_device(gpus, cuda=cuda) == expected
