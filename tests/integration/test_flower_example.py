"""The app that users copy, as they run it: ``flwr run`` with simulated nodes, and what its files say."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")
pytest.importorskip("ray")

from sfsl.flower.settings import read_config
from sfsl.run.metrics import read_lines

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flower"
ROUNDS, NODES = 2, 5


def test_its_settings_are_settings() -> None:
    import tomllib

    from flwr.common.config import flatten_dict

    said = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = read_config(flatten_dict(said))
    assert config.rounds().cohort == said["round"]["clients"]


def test_flwr_run_with_simulated_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from flower_parts import Federation, wait_until

    metrics = tmp_path / "server" / "metrics.jsonl"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    overrides = (
        f'flower.state="{tmp_path / "server"}" flower.rounds={ROUNDS} flower.poll_seconds=0.1 '
        f'simulation.folder="{tmp_path / "nodes"}"'
    )
    simulated = f"num-supernodes={NODES} client-resources-num-cpus=1 init-args-num-cpus=2"
    with Federation(tmp_path, environment, simulation=True) as federation:
        federation.start_superlink()
        federation.run(EXAMPLE, "--run-config", overrides, "--federation-config", simulated)
        wait_until(lambda: len(read_lines(metrics)) >= ROUNDS, 400, "two rounds")
    for line in read_lines(metrics):
        assert (line.aborted, line.survivors) == (None, NODES)
        assert line.moved["film"] > 0
    folders = sorted((tmp_path / "nodes").iterdir())
    assert [one.name for one in folders] == [f"partition-{place}" for place in range(NODES)]
    for one in folders:
        assert {"state", "rows", "deployment"} <= {file.name for file in one.iterdir()}
        assert (one / "state").stat().st_mode & 0o777 == 0o600
