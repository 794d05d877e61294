"""A federation of real processes in active mode, whose ServerApp sends one node other rows than it has
committed to: the node says so in its log and leaves the round; the others go on."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from sfsl.crypto.secret import Secret
from sfsl.durable import make_folder
from sfsl.service.folder import read_lines
from sfsl.service.identities import write_identity

ROOT = Path(__file__).parents[2]
NODES = 4
LIE = """

from sfsl.carriers.flower.apps import GridPost
from sfsl.rounds.exchanges import Submodel
from sfsl.service.messages import CODEC
import msgspec, numpy as np

honest = GridPost.exchange


def lie(frame):
    told = CODEC.decode(frame, limit=1 << 28)
    if not isinstance(told, Submodel):
        return frame
    rows = tuple((np.frombuffer(data, "<f4") + np.float32(1)).tobytes() for data in told.rows)
    return CODEC.encode(msgspec.structs.replace(told, rows=rows))


def lying(post, frames, seconds, take, published=None):
    victim = min(frames)
    honest(post, frames | {victim: lie(frames[victim])}, seconds, take, published)


GridPost.exchange = lying
"""


@pytest.mark.slow
def test_a_node_that_is_sent_other_rows_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "examples/flower"))
    from films.data import simulated

    from flower_parts import Federation, wait_until

    app, roster, metrics = tmp_path / "app", tmp_path / "roster", tmp_path / "server/metrics.jsonl"
    shutil.copytree(ROOT / "examples/flower", app)
    with (app / "films/server.py").open("a") as file:
        file.write(LIE)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    nodes: dict[int, tuple[str, bytes]] = {}
    with Federation(tmp_path, environment) as federation:
        federation.start_superlink()
        for place in range(NODES):
            name = f"node-{place}"
            make_folder(tmp_path / name / "state", 0o700)
            own = write_identity(tmp_path / name / "state/identity.key", Secret(bytes([place + 1]) * 32))
            rows = "\n".join(f"{film},{like}" for film, like in zip(*simulated(place), strict=True))
            (tmp_path / f"{place}.csv").write_text(f"film,liked\n{rows}\n")
            terms = {"exact-sums": True, "least-cohort": 3, "least-contributors": 3, "roster": str(roster)}
            number = federation.start_node(name, data=str(tmp_path / f"{place}.csv"), **terms)
            nodes[number] = name, own.public
        roster.write_text("".join(f"{number} {public.hex()}\n" for number, (_, public) in nodes.items()))
        settings = {
            "flower.state": str(tmp_path / "server"),
            "flower.rounds": 1,
            "flower.roster": str(roster),
            "flower.training_seconds": 60.0,
            "round.clients": NODES,
            "round.min_contributors": 3,
        }
        said = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        federation.run(app, "--run-config", said)
        wait_until(lambda: bool(read_lines(metrics)), 600, "a round")
        victim = nodes[min(nodes)][0]
        logs = {name: federation.log(name) for name, _ in nodes.values()}
    (line,) = read_lines(metrics)
    assert (line.aborted, line.survivors, line.dropped) == (None, NODES - 1, {"submodel": 1})
    named = "Deceived: the server sent rows that are not those of the model it committed to"
    assert [name for name, text in logs.items() if named in " ".join(text.split())] == [victim]
