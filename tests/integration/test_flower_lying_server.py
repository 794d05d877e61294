"""Active mode on a real federation, started as the guide has it: an honest round is committed; then the
server sends one node other rows than the rest, and that node's output names the lie."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from sfsl.service.folder import read_lines

ROOT = Path(__file__).parents[2]
NODES, VICTIM, ROUNDS = 5, 3, 2
SECONDS, TRAINING = 400, 180  # the victim keeps silent for the second
NAMED = "Deceived: the server sent rows that are not those of the model it committed to"


def lying_app(folder: Path, victim: int) -> Path:
    shutil.copytree(ROOT / "examples" / "flower", folder)
    shutil.copy(ROOT / "tests" / "lying_server_app.py", folder / "films" / "server.py")
    with open(folder / "pyproject.toml", "a") as settings:
        settings.write(f'\n[tool.flwr.app.config.lie]\nvictim = "{victim}"\n')
    return folder


def samples(path: Path, place: int) -> str:
    rows = "".join(f"{(60 * place + 7 * at) % 300},{at % 2}\n" for at in range(40))
    path.write_text(f"film,liked\n{rows}")
    return str(path)


def identity(path: Path) -> str:
    """The public key, as ``sfsl keys client`` prints it."""
    command = [str(Path(sys.executable).parent / "sfsl"), "keys", "client", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return ran.stdout.split()[-3]


@pytest.mark.slow  # a SuperLink, five SuperNodes, and a process for each of 70 messages
def test_a_node_that_is_sent_other_rows_says_so_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from flower_parts import Federation, wait_until

    metrics, roster = tmp_path / "server" / "metrics.jsonl", tmp_path / "roster"
    names = [f"node-{place}" for place in range(NODES)]
    with Federation(tmp_path, {"PYTHONPATH": os.pathsep.join(sys.path)}) as federation:
        federation.start_superlink()
        nodes = {name: federation.register(name) for name in names}
        keys = {name: identity(tmp_path / name / "state" / "identity.key") for name in names}
        roster.write_text("".join(f"{nodes[name]} {keys[name]}  # {name}\n" for name in names))
        for place, name in enumerate(names):
            own = {"data": samples(tmp_path / f"{name}.csv", place), "roster": str(roster)}
            least = {"least-cohort": 4, "least-contributors": 3, "exposures": ROUNDS}
            federation.start_node(name, **own, **least, **{"exact-sums": True})
        federation.run(
            lying_app(tmp_path / "app", nodes[names[VICTIM]]),
            "--run-config",
            f'flower.state="{tmp_path / "server"}" flower.roster="{roster}" flower.rounds={ROUNDS} '
            f"flower.check_in_seconds={SECONDS}.0 flower.phase_seconds={SECONDS}.0 "
            f"flower.training_seconds={TRAINING}.0 round.min_contributors=3",
        )
        wait_until(lambda: len(read_lines(metrics)) >= ROUNDS, 1800, "two rounds")
        # Else the ServerApp, which Flower starts in a session of its own, would be left behind.
        wait_until(lambda: "Finished task" in federation.log("superlink"), 300, "the end of the run")
        said = {name: federation.log(name) for name in names}
    honest, lied = read_lines(metrics)
    assert (honest.aborted, honest.survivors, honest.dropped) == (None, NODES, {})
    assert (lied.aborted, lied.survivors, lied.dropped) == (None, NODES - 1, {"submodel": 1})
    assert [name for name in names if NAMED in said[name]] == [names[VICTIM]]
    assert [name for name in names if "sits out" in said[name]] == [names[VICTIM]]
