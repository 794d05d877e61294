"""A real federation: a SuperLink and SuperNodes as processes, TLS, SuperNode authentication, a kill -9."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")

from same_model import local_rounds, require_same_model
from sfsl.run.fleet import build_fleet
from sfsl.service.folder import read_lines
from sfsl.settings.run import from_sections

ROOT = Path(__file__).parents[2]
NODES, ROUNDS, VICTIM = 5, 2, 2
SECTIONS: dict[str, Any] = {
    "data": {"users": NODES, "scale": 0.03},
    "round": {"scheme": "sfsl", "clients": NODES, "min_contributors": 2},
    "server": {"row_step": "adagrad", "kappa_rounds": 10},
}
SECONDS = 90.0


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    torch.set_num_threads(1)


def toml(sections: dict[str, Any]) -> str:
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in content.items())
        for name, content in sections.items()
    )


@pytest.mark.slow
def test_two_rounds_with_a_node_that_is_killed_in_the_first(tmp_path: Path) -> None:
    """It has answered the inbound shares: its set is in the union, its update is not in the sum, and the
    model is the one that the local engine makes of those who are left."""
    from flower_parts import Federation, wait_until, write_app

    (tmp_path / "run.toml").write_text(toml(SECTIONS))
    flat = {
        f"{section}.{key}": value
        for section in ("round", "server")
        for key, value in SECTIONS[section].items()
    }
    own = {
        "rounds": ROUNDS,
        "state": str(tmp_path / "server"),
        "min_cohort": NODES - 1,
        "period_days": 0,
        "largest_set": 300,
        "poll_seconds": 0.2,
        "check_in_seconds": SECONDS,
        "phase_seconds": SECONDS,
        "training_seconds": SECONDS,
        "wait_seconds": 240.0,
    }
    app = write_app(tmp_path / "app", flat | {f"flower.{key}": value for key, value in own.items()})
    environment = {"SFSL_FLOWER_RUN": str(tmp_path / "run.toml"), "PYTHONPATH": os.pathsep.join(sys.path)}
    metrics = tmp_path / "server" / "metrics.jsonl"
    with Federation(tmp_path, environment) as federation:
        federation.start_superlink()
        for place in range(NODES):
            federation.start_node(f"node-{place}", **{"partition-id": place})
        federation.run(app)
        victim = f"node-{VICTIM}"
        # Its check-in, its shares, its masked set.
        wait_until(lambda: federation.log(victim).count("Sent successfully") >= 3, 240, "a masked set")
        federation.kill(victim)
        start = time.monotonic()
        wait_until(lambda: len(read_lines(metrics)) >= ROUNDS, 900, "two rounds")
        took = time.monotonic() - start
        logs = {name: federation.log(name) for name in ("superlink", *federation.processes)}
    first, second = read_lines(metrics)
    assert (first.cohort, first.survivors, first.dropped) == (NODES, NODES - 1, {"unmask-union": 1})
    assert (second.cohort, second.survivors, second.dropped) == (NODES - 1, NODES - 1, {})
    assert took < 900
    run = from_sections(SECTIONS)
    fleet = build_fleet(run)
    names = sorted(fleet.devices)
    lost = names[VICTIM]
    local = local_rounds(
        run, fleet, [names, [name for name in names if name != lost]], {(1, "unmask-union"): {lost}}
    )
    require_same_model(tmp_path / "server" / "store", local)
    for said in logs.values():
        assert "Traceback" not in said
        assert "sits out" not in said
