"""The benchmark trains every arm in every world once, and says what came of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import InputError, ParameterError
from sfsl.settings.run import RunConfig
from sfsl_research.worlds import WORLDS, WorldSettings, benchmark
from sfsl_research.worlds import arms as arms_module
from sfsl_research.worlds.arms import arms_of, digest_of, family_of
from sfsl_research.worlds.benchmark import ARMS, Plan, read_outcomes, run_plan, worlds_named

TINY = {
    "one": WorldSettings(30, 40, 12, quality=1.0, taste=0.5, clients=6),
    "two": WorldSettings(30, 40, 8, categories=4, negatives=1, steer=1.0, mood=0.5, session=4, clients=10),
}
ARM_COUNT = 10


@pytest.fixture(autouse=True)
def tiny_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, settings in TINY.items():
        monkeypatch.setitem(WORLDS, name, settings)  # type: ignore[arg-type]
    benchmark.world_of.cache_clear()


def test_the_default_is_that_of_a_run() -> None:
    arms = arms_of("din", clients=7, seed=3)
    assert len(arms) == ARM_COUNT
    default, usual = arms["default"], RunConfig()
    assert (default.training, default.server, default.model) == (usual.training, usual.server, usual.model)
    assert (default.privacy, default.round.min_contributors) == (usual.privacy, usual.round.min_contributors)
    assert (default.round.clients, default.run.seed) == (7, 3)
    rates = arms["fl 3"].server
    assert (rates.row_rate, rates.dense_rate) == pytest.approx((3 * usual.row_rate, 3 * usual.dense_rate))
    assert arms["fl 3"].server.row_step == usual.server.row_step
    assert (arms["paper"].training.batch_size, arms["paper"].server.kappa) == (2, 1)
    assert {family_of(arm) for arm in arms} == {"default", "paper", "fl", "centralized"}
    assert len({digest_of(config) for config in arms.values()}) == ARM_COUNT
    other = arms_of("din", clients=7, seed=3, candidates={"slow": {"training": {"learning_rate": 0.1}}})
    assert other["slow"].training.learning_rate == 0.1
    assert arms_of("lstm", clients=7, seed=3)["fl 1"].model.kind == "lstm"


def test_two_worlds_from_end_to_end(tmp_path: Path) -> None:
    candidate = tmp_path / "slow.toml"
    candidate.write_text("[training]\nlearning_rate = 0.1\n")
    out = tmp_path / "out"
    command = [
        "bench", "worlds", "--worlds", "one,two", "--seeds", "1", "--rounds", "2", "--device", "cpu",
        "--candidates", str(candidate), "--out", str(out), "--json",
    ]  # fmt: skip
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    arms = {(one["world"], one["arm"]) for one in result["standings"]}
    assert arms == {
        (world, arm) for world in TINY for arm in ("default", "slow", "paper", "fl", "centralized")
    }
    for one in result["standings"]:
        assert one["regret"] == pytest.approx(
            max(
                other["auc"]
                for other in result["standings"]
                if other["world"] == one["world"] and other["arm"] == "centralized"
            )
            - one["auc"]
        )
        assert one["log_loss"] > 0 < one["base_log_loss"]
        assert one["failed"] == 0
    assert {one["world"] for one in result["left_out"]} == set(TINY)
    assert {one["chosen"] for one in result["left_out"]} <= {"default", "slow"}
    assert result["lacks"].keys() == TINY.keys()
    outcomes = read_outcomes(out)
    assert len(outcomes) == 2 * (ARM_COUNT + 1)
    assert {one.clients for one in outcomes} == {6, 10}
    assert all(len(one.points) == 2 for one in outcomes)
    assert "| one | default |" in (out / "table.md").read_text()
    assert json.loads((out / "table.json").read_text())["lacks"] == result["lacks"]
    assert (out / "regret.png").stat().st_size > 1000


def test_what_was_trained_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    original = benchmark.train_arms

    def counted(world, seed, some, **more):  # type: ignore[no-untyped-def]
        if len(trained) + len(some) > most:
            raise KeyboardInterrupt
        trained.extend(some)
        return original(world, seed, some, **more)

    monkeypatch.setattr(benchmark, "train_arms", counted)
    plan, most = Plan(("one",), seeds=1, rounds=2), 6
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, tmp_path)
    assert trained == [
        "default",
        "fl 0.3",
        "fl 1",
        "fl 3",
        "fl 10",
        "paper",
    ]
    with open(tmp_path / ARMS, "ab") as file:
        file.write(b'{"world": "one", "se')  # a crash in the middle of a line
    trained.clear()
    told: list[tuple[float, int]] = []
    found = run_plan(plan, tmp_path, lambda text, done, total: told.append((done, total)))
    assert len(trained) == ARM_COUNT - 6
    assert len({one.arm for one in found}) == ARM_COUNT
    assert told[0] == (6, ARM_COUNT)
    assert told[-1] == (ARM_COUNT, ARM_COUNT)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    trained.clear()
    again = run_plan(plan, tmp_path)
    assert sorted(one.arm for one in again) == sorted(one.arm for one in found)
    assert trained == []
    most = 2 * ARM_COUNT
    run_plan(Plan(("one",), seeds=1, rounds=3), tmp_path)  # other rounds are another matter
    assert len(trained) == ARM_COUNT


def test_an_arm_is_the_same_whoever_trains_beside_it(tmp_path: Path) -> None:
    both = run_plan(Plan(("one",), seeds=1, rounds=3), tmp_path / "both")
    alone = run_plan(Plan(("one",), seeds=1, rounds=3, arms=("default",)), tmp_path / "alone")
    one, other = ({outcome.arm: outcome for outcome in some} for some in (both, alone))
    for arm in ("default", "centralized 0.001"):
        assert [point.auc for point in one[arm].points] == pytest.approx(
            [point.auc for point in other[arm].points], abs=1e-6
        )
    assert one["default"].points != one["fl 1"].points


def test_an_arm_that_goes_astray_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms_module, "CENTRAL_RATES", (0.001, 1e6))
    plan = Plan(("one",), seeds=1, rounds=3, arms=("default",))
    astray = {one.arm: one for one in run_plan(plan, tmp_path)}
    assert astray["centralized 1e+06"].failed is not None
    assert astray["centralized 0.001"].failed is None
    assert len(astray["centralized 0.001"].points) == 3


def test_several_at_once_come_to_the_same(tmp_path: Path) -> None:
    alone = run_plan(Plan(("small-csv",), seeds=1, rounds=1), tmp_path / "alone")
    together = run_plan(Plan(("small-csv",), seeds=1, rounds=1, jobs=2), tmp_path / "together")
    assert {one.arm: one.points for one in alone} == {one.arm: one.points for one in together}


def test_some_arms_stand_beside_centralized_training(tmp_path: Path) -> None:
    found = run_plan(Plan(("one",), seeds=1, rounds=1, arms=("default",)), tmp_path)
    assert {family_of(one.arm) for one in found} == {"default", "centralized"}
    with pytest.raises(ParameterError, match="no arm 'sfl'"):
        Plan(("one",), arms=("sfl",))


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no world 'nowhere'"):
        worlds_named("films,nowhere", None)
    with pytest.raises(ParameterError, match="--data"):
        worlds_named("amazon-electronics", None)
    assert "shakespeare-roles" in worlds_named(None, tmp_path)
    assert "shakespeare-roles" not in worlds_named(None, None)
    (tmp_path / ARMS).write_text('{"world": 3}\n')
    with pytest.raises(InputError, match="damaged"):
        read_outcomes(tmp_path)
    twice = tmp_path / "fl.toml"
    twice.write_text("")
    found = CliRunner().invoke(app, ["bench", "worlds", "--worlds", "one", "--candidates", str(twice)])
    assert found.exit_code != 0
    assert "rename" in str(found.exception)


def test_words_are_a_world_too(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "shakespeare-roles"
    folder.mkdir(parents=True)
    said = ["the", "rain", "in", "spain", "stays", "mainly", "in", "the", "plain", "and", "the", "sun"]
    roles = [
        {"play": "p", "role": f"r{number}", "lines": [" ".join(said[number:] + said[:number])] * 4}
        for number in range(6)
    ]
    (folder / "roles.jsonl.gz").write_text("".join(json.dumps(role) + "\n" for role in roles))

    def plan(device: str) -> Plan:
        return Plan(
            ("shakespeare-roles",), seeds=1, rounds=1, clients=5, device=device, data=tmp_path / "data"
        )

    found = run_plan(plan("cpu"), tmp_path / "out")
    assert len(found) == ARM_COUNT
    assert all(one.points[0].auc is not None for one in found)
    # On a device nothing but centralized training takes its steps, and on this one nobody can.
    with pytest.raises(RuntimeError, match="meta"):
        run_plan(plan("meta"), tmp_path / "there")
    there = read_outcomes(tmp_path / "there")
    assert [one.arm for one in there] == [one.arm for one in found if "centralized" not in one.arm]
    assert [one.points for one in there] == [one.points for one in found if "centralized" not in one.arm]
