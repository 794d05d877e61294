"""Engines of experiments are another distribution's: how a run finds one, or says what to install."""

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as changed

pytest.importorskip("torch")

from sfsl.errors import InputError
from sfsl.run import setup, start
from sfsl.run.fleet import build_fleet
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig, from_sections

SECTIONS: dict[str, dict[str, dict[str, object]]] = {
    "device": {"run": {"device": "cpu"}, "round": {"sums": "plain"}},
    "ray": {"run": {"engine": "ray"}},
    "centralized": {"round": {"scheme": "centralized"}},
}


def install(monkeypatch: pytest.MonkeyPatch, plugin: ModuleType | None) -> list[tuple[str, str]]:
    """Every engine is ``plugin``; None: none is installed. Returned is who was looked for."""
    looked_for: list[tuple[str, str]] = []

    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        looked_for.append((group, name))
        return [] if plugin is None else [EntryPoint(name, plugin.__name__, group)]

    monkeypatch.setattr(setup, "entry_points", entry_points)
    if plugin is not None:
        monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    return looked_for


@pytest.mark.parametrize(
    ("name", "asked", "package"),
    [
        ("device", 'run.device = "cpu"', "/research"),
        ("ray", 'run.engine = "ray"', "/research[ray]'"),
        ("centralized", 'round.scheme = "centralized"', "/research"),
    ],
)
def test_where_an_engine_is_not_installed_a_run_says_what_to_install_and_writes_nothing(
    name: str, asked: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for = install(monkeypatch, None)
    with pytest.raises(InputError) as refused:
        start.begin(tmp_path / "run", from_sections(SECTIONS[name]))
    assert str(refused.value).startswith(asked)
    assert "pip install -e " in str(refused.value)
    assert str(refused.value).endswith(package)
    assert looked_for == [("sfsl.engines", name)]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", SECTIONS)
def test_an_engine_may_refuse_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(config: RunConfig) -> None:
        raise InputError(f"no room for {config.round.clients}")

    plugin = ModuleType("plugged")
    plugin.require = require  # type: ignore[attr-defined]
    install(monkeypatch, plugin)
    with pytest.raises(InputError, match="no room for 100"):
        start.begin(tmp_path / "run", from_sections(SECTIONS[name]))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", SECTIONS)
def test_an_engine_is_built_from_settings_fleet_and_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ModuleType("plugged")
    plugin.build = lambda *given: SimpleNamespace(given=given)  # type: ignore[attr-defined]
    install(monkeypatch, plugin)
    monkeypatch.setattr(setup, "baselines_of", lambda task, train: (task, train))
    fleet = SimpleNamespace(task=object(), train=object(), test=object())
    given: tuple[Any, ...] = from_sections(SECTIONS[name] | {"data": {"validation": 0}}), fleet, object()
    engine: Any = setup.build_engine(*given)
    assert engine.given == given
    assert (engine.pools, engine.baselines) == ({"test": fleet.test}, (fleet.task, fleet.train))


def test_the_engine_of_this_process_is_looked_for_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for = install(monkeypatch, None)
    setup.require_engine(from_sections({}))
    assert not looked_for


@pytest.mark.parametrize(
    ("server", "rounds"),
    [({}, 21), ({"row_halving": 7}, 7), ({"row_halving": 0}, 0), ({"row_step": "add"}, 0)],
)
def test_where_the_rate_of_rows_falls_two_passes_over_all_clients_halve_it(
    server: dict[str, object], rounds: int
) -> None:
    config = from_sections({"server": server, "round": {"clients": 100, "scheme": "hot"}})
    assert setup.with_passes(config, 1025).row_halving == rounds


@pytest.mark.parametrize(
    ("sections", "clients", "rounds", "pull"),
    [
        ({}, 1025, 11, 100.0),
        ({"server": {"row_pull_rounds": 7}}, 1025, 7, 100.0),
        ({"server": {"row_pull": 0.25}}, 1025, 11, 0.25),
        ({"server": {"weights": "samples"}}, 1025, 11, 0.0),
        ({"server": {"weights": "samples", "row_pull": 0.25}}, 1025, 11, 0.25),
        ({"round": {"scheme": "fl"}}, 1025, 11, 100.0),
        ({"server": {"row_step": "adagrad"}}, 1025, 0, 0.0),
        ({"model": {"kind": "lstm"}, "data": {"source": "shakespeare", "path": "x"}}, 1025, 0, 0.0),
        ({"round": {"scheme": "hot"}, "hot": {"surveys": 1}, "privacy": {"participations": 1}}, 1025, 0, 0.0),
        ({}, None, "auto", 0.0),
        ({"server": {"row_pull": 0.25}}, None, "auto", 0.25),
    ],
)
def test_rows_are_drawn_back_from_the_second_pass_on(
    sections: dict[str, Mapping[str, object]], clients: int | None, rounds: int | str, pull: float
) -> None:
    """Of clicks, in exact sums, by heat, and where it is known how many clients there are."""
    config = from_sections(sections)
    if clients is not None:
        config = changed(config, server=setup.with_passes(config, clients))
    assert config.server.row_pull_rounds == rounds
    rules = round_rules(config)
    assert rules.update.row_step.pull == pull
    assert rules.pull_rounds == (0 if rounds == "auto" else rounds)


def test_the_rate_of_rows_stays_for_exact_sums_of_clicks() -> None:
    assert setup.with_passes(from_sections({}), 1025).row_halving == 0
    asked = from_sections({"server": {"row_halving": 7}})
    assert setup.with_passes(asked, 1025).row_halving == 7


CLICKS = "user,item,time\n" + "".join(
    f"{user},{(3 * user + time) % 40},{time}\n" for user in range(12) for time in range(5)
)


def weights_of(path: Path, sections: dict[str, dict[str, object]]) -> tuple[str, int]:
    """Return by what rows weigh in a run on these data, and the largest weight of a client on one."""
    own = sections.get("round", {})
    config = from_sections(
        sections
        | {
            "data": {"source": "file", "path": str(path)},
            "round": {"clients": 4, "min_contributors": 2} | own,
        }
    )
    chosen = setup.resolved(config, build_fleet(config))
    return chosen.weights, round_rules(chosen).update.rows.max_weight


def test_rows_weigh_by_two_samples_where_items_were_drawn_beside_clicks(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(CLICKS)
    assert weights_of(path, {}) == ("samples", 2)
    assert weights_of(path, {"server": {"row_samples": 5}}) == ("samples", 5)
    assert weights_of(path, {"round": {"max_samples": 1}}) == ("samples", 1)
    assert weights_of(path, {"server": {"weights": "owners"}}) == ("owners", 1)
    assert weights_of(path, {"round": {"scheme": "fl"}}) == ("dataset", 1000)
    assert weights_of(path, {"server": {"row_step": "adagrad"}}) == ("owners", 1)
    assert weights_of(path, {"server": {"row_step": "add", "weights": "samples"}}) == ("samples", 1000)
    hot = {"round": {"scheme": "hot"}, "privacy": {"participations": 2}}
    assert weights_of(path, hot)[0] == "owners"
    rated = tmp_path / "rated.csv"
    lines = CLICKS.replace("time\n", "time,label\n").splitlines()
    rated.write_text(
        "\n".join(lines[:1] + [f"{one},{int(place % 3 > 0)}" for place, one in enumerate(lines[1:])])
    )
    assert weights_of(rated, {}) == ("owners", 1)


def test_a_cohort_that_is_too_small_is_told_how_many_it_takes(tmp_path: Path) -> None:
    """It is not blamed on a number that nobody has set."""
    sections = {"data": {"users": 40, "scale": 0.02}, "round": {"clients": 3}}
    with pytest.raises(
        InputError, match=r"round\.clients = 3 is too few.*take round\.clients = \d+ or more"
    ) as said:
        start.begin(tmp_path / "run", from_sections(sections))
    enough = int(str(said.value).split("take round.clients = ")[1].split()[0])
    for clients, fits in ((enough, True), (enough - 1, False)):
        config = from_sections(sections | {"round": {"clients": clients}})
        try:
            chosen = setup.resolved(config, build_fleet(config)).round.min_contributors
        except InputError:
            chosen = clients + 1
        assert (chosen <= clients) is fits
