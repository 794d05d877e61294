"""A model trained over HTTPS, and one over Flower, taken away: ``sfsl predict``, plain torch without sfsl and
onnxruntime give the same scores."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner

import sfsl
from bundles import without_sfsl
from sfsl.cli import app

ITEMS, CLIENTS = [f"film-{number}" for number in range(40)], 4
ASKED, PAST = ["film-3", "film-7", "film-30"], ["film-1", "film-2"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def told(*command: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, command), "--json"])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def samples(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [f"{ITEMS[rng.integers(40)]},{rng.integers(2)},{moment}" for moment in range(30)]
    path.write_text("\n".join(["item,label,time", *lines]) + "\n")
    return path


def everybody(path: Path) -> Path:
    rng = np.random.default_rng(9)
    lines = [
        f"user-{user},{ITEMS[rng.integers(40)]},{rng.integers(2)},{moment}"
        for user in range(6)
        for moment in range(30)
    ]
    path.write_text("\n".join(["user,item,label,time", *lines]) + "\n")
    return path


def require_equal_scores(folder: Path, tmp_path: Path, asked: list[str], past: list[str]) -> None:
    """Export the model in a folder, and score with it in three ways."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = tmp_path / "bundle"
    told("export", folder, out, "--onnx")
    answer = told("predict", out, "--history", ",".join(past), "--items", ",".join(asked))
    predicted = [one["score"] for one in answer["predictions"][0]["items"]]
    assert np.ptp(predicted) > 0
    plain = json.loads(without_sfsl(out, f"print(model.load().score({asked}, {past}))"))
    np.testing.assert_allclose(plain, predicted, atol=1e-6)
    bundle = sfsl.load(out)
    history = np.full((len(asked), bundle.history), -1)
    history[:, : len(past)] = bundle.find(past)
    given = {"item": bundle.find(asked), "history": history}
    given["person"] = np.zeros((len(asked), bundle.scorer.width), np.float32)
    (found,) = runtime.InferenceSession(str(out / "model.onnx")).run(["score"], given)
    np.testing.assert_allclose(found, predicted, atol=1e-6)


@pytest.fixture(scope="module", params=["sfsl", pytest.param("hot", marks=pytest.mark.slow)])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server and four clients, after two rounds."""
    folder = tmp_path_factory.mktemp(request.param)
    sfsl.data.catalogue_file.write_catalogue(sfsl.Catalogue.of_items(ITEMS), folder / "catalogue.json")
    settings: dict[str, Any] = {
        "model": {"kind": "din", "width": 4},
        "round": {"scheme": request.param, "clients": CLIENTS, "threshold": CLIENTS, "min_contributors": 2},
        "serve": {"enrolment": "open", "plain": True, "port": 0, "rounds": 2, "period_days": 0},
    }
    settings["serve"] |= {"catalogue": str(folder / "catalogue.json"), "largest_set": 40, "active": False}
    few: dict[str, Any] = {"least_cohort": 3, "least_contributors": 2, "repeat_samples": True}
    terms = sfsl.Terms(exact_sums=True, epsilon=1000, exposures=9, **few)
    if request.param == "hot":
        settings["privacy"] = {"epsilon": 1000.0, "participations": 2}
        settings["hot"] = {"surveys": 1}
        terms = sfsl.Terms(hot_epsilon=2000, participations=2, **few)

    async def run() -> None:
        ready: asyncio.Future[sfsl.Serving] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            sfsl.serve_async(settings, out=folder / "server", ready=ready.set_result)
        )
        url = (await ready).url
        clients = (
            sfsl.join_async(
                url, samples(folder / f"{number}.csv", number), folder / f"client-{number}",
                rounds=2, plain=True, terms=terms,
            )
            for number in range(CLIENTS)
        )  # fmt: skip
        await asyncio.gather(*clients)
        await server

    asyncio.run(run())
    return folder


def test_a_model_trained_over_https(deployment: Path, tmp_path: Path) -> None:
    require_equal_scores(deployment / "server", tmp_path, ASKED, PAST)
    manifest = sfsl.load(tmp_path / "bundle").manifest
    assert (manifest.provenance.trained, manifest.provenance.round) == ("https", 2)
    assert manifest.privacy["simulated"] is False
    assert manifest.privacy["exposures_at_most"] == 2
    assert "user.weight" not in sfsl.load(tmp_path / "bundle")._rows.tensors


def test_a_server_is_evaluated_and_reported_on(deployment: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    server, data = deployment / "server", everybody(tmp_path / "all.csv")
    told("export", server, tmp_path / "films.zip")
    found = told("evaluate", server, "--data", data)
    assert found["users"] == 6
    assert found["samples"] == 36
    assert told("evaluate", tmp_path / "films.zip", "--data", data) == found
    without = CliRunner().invoke(app, ["evaluate", str(server)])
    assert "name some: --data FILE" in str(without.exception)
    for place, model in enumerate((server, tmp_path / "films.zip")):
        told("report", model, "--out", tmp_path / f"report-{place}")
        assert (tmp_path / f"report-{place}" / "report.html").exists()


def test_a_client_scores_with_what_it_downloaded_and_what_it_keeps(deployment: Path, tmp_path: Path) -> None:
    """Without a bundle with its last download, which is of round 2 and so what round 1 made."""
    client, hot = deployment / "client-1", "hot" in deployment.name
    answer = told("predict", "--state", client, "--top", 40)
    own = sfsl.load(client / "current.zip")
    clicked = {line.split(",")[0] for line in (client / "data").read_text().splitlines() if ",1," in line}
    recommended = {one["id"] for one in answer["predictions"][0]["items"]}
    assert answer["round"] == 2
    assert not recommended & clicked
    # Hot rows are published, and others begin at public values; otherwise it has what it asked for.
    held = {name for name, one in zip(ITEMS, own.holds(np.arange(40)), strict=True) if one}
    assert recommended == held - clicked
    assert (held == set(ITEMS)) == hot
    if not hot:
        other = next(name for name in ITEMS if name not in held)
        done = CliRunner().invoke(app, ["predict", "--state", str(client), "--items", other])
        assert "not among what this client has downloaded" in str(done.exception)
    told("export", deployment / "server", tmp_path / "films.zip")
    with_bundle = told("predict", tmp_path / "films.zip", "--state", client, "--items", ",".join(ASKED))
    alone = sfsl.load(tmp_path / "films.zip").score(ASKED, [*clicked])
    scores = [one["score"] for one in with_bundle["predictions"][0]["items"]]
    assert len(scores) == 3
    assert not np.allclose(scores, alone)  # it has a row of its own


def test_versions_of_a_servers_model(deployment: Path, tmp_path: Path) -> None:
    server = deployment / "server"
    told("models", "tag", server, "good")
    assert [one["name"] for one in told("models", "list", server)["versions"]] == ["good", "current"]
    assert told("models", "rollback", server, "good")["round"] == 3
    told("export", server, tmp_path / "now.zip")
    told("export", server, tmp_path / "good.zip", "--version", "good")
    now, good = sfsl.load(tmp_path / "now.zip"), sfsl.load(tmp_path / "good.zip")
    assert (now.round, good.round) == (3, 2)
    np.testing.assert_array_equal(now.score(ITEMS, PAST), good.score(ITEMS, PAST))


def test_a_model_trained_over_flower(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from clocks import SteppingClock
    from federation import LoopGrid
    from sfsl.carriers.flower.apps import GridPost, run_rounds
    from sfsl.run.fleet import build_fleet
    from sfsl.settings.flower import read_config
    from sfsl.settings.run import from_sections
    from sfsl_research.flower_members import seeded_members

    own = {"clients": CLIENTS, "min_contributors": 2, "scheme": "sfsl"}
    chosen = from_sections({"round": own, "data": {"users": CLIENTS, "scale": 0.03}})
    given: dict[str, Any] = {f"round.{name}": value for name, value in own.items()}
    given |= {f"flower.{name}_seconds": 1.0 for name in ("check_in", "phase", "training", "wait")}
    given |= {"flower.rounds": 2, "flower.period_days": 0, "flower.largest_set": 300}
    given |= {"flower.state": str(tmp_path / "server"), "flower.poll_seconds": 0.05}
    fleet, clock = build_fleet(chosen), SteppingClock()
    grid = LoopGrid(seeded_members(chosen, fleet), tmp_path, CLIENTS)
    run_rounds(read_config(given), fleet.task, GridPost(grid, 0.05, clock=clock, sleep=clock.sleep))
    require_equal_scores(tmp_path / "server", tmp_path, ["3", "7", "30"], ["1", "2"])
    bundle = sfsl.load(tmp_path / "bundle")
    assert (bundle.manifest.provenance.trained, bundle.round) == ("flower", 2)
    np.testing.assert_array_equal(bundle.rows("item", [3]), sfsl.load(tmp_path / "server").rows("item", [3]))
