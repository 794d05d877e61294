"""Run files: every key has a default that ``sfsl init`` writes, and a wrong one is named."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sfsl.errors import InputError, ParameterError
from sfsl.privacy import PRESETS
from sfsl.rounds.exchanges import ORDER
from sfsl.secagg import default_threshold
from sfsl.settings.paper import as_in_paper
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.sections import description
from sfsl.settings.toml import default_toml, overridden, read_config, to_toml


def test_the_defaults_are_those_the_design_asks_for() -> None:
    config = RunConfig()
    assert (config.round.clients, config.privacy.index_privacy) == (100, PRESETS["cpp2"])
    assert (config.weights, config.server.kappa, config.server.kappa_rounds) == ("owners", 10, 110)
    assert config.round.threshold_clients == default_threshold(100)
    assert config.faults.rates == {}
    assert tuple(msgspec.to_builtins(config.faults)) == (*ORDER, "late")


def test_the_written_defaults_read_back_as_the_defaults() -> None:
    text = default_toml()
    read, unwrapped = tomllib.loads(text), text.replace("\n# ", " ")
    assert from_sections(read) == RunConfig() == from_sections({})
    for section in msgspec.structs.fields(RunConfig):
        settings = getattr(RunConfig(), section.name)
        every = msgspec.json.decode(msgspec.json.encode(settings))
        assert read[section.name] == every, "every key is there, none other"
        for field in msgspec.structs.fields(settings):
            explained = f"{description(field)}\n{field.encode_name} = "
            assert explained in unwrapped, "every key is explained"


def test_any_settings_read_back(tmp_path: Path) -> None:
    sections = {
        "data": {"source": "csv", "path": 'odd "name"\\\n\x7fé.csv', "text_ids": True},
        "privacy": {"probabilities": [0.9, 0.1, 1, 0]},
        "round": {"min_contributors": 3, "threshold": 70, "clip": 1},
        "faults": {"unmask-union": 0.25},
    }
    config = from_sections(sections)
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert read_config(file) == config
    assert config.faults.rates == {"unmask-union": 0.25}
    assert config.privacy.name == "custom"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rounds": {}}, ["[rounds]", "data, model, privacy, round"]),
        ({"round": {"client": 5}}, ["round.client;", "clients, cohorts, min_contributors"]),
        ({"faults": {"unmask_union": 0.1}}, ["faults.unmask_union", "unmask-union"]),
        ({"round": {"clients": "many"}}, ["round.clients = 'many'", "expected `int`", "2 to 512"]),
        ({"round": {"clients": 1}}, ["round.clients = 1", ">= 2"]),
        ({"round": {"clients": 20.5}}, ["round.clients = 20.5", "`int`"]),
        ({"round": {"clients": True}}, ["round.clients = True", "`int`"]),
        ({"round": {"min_contributors": "some"}}, ["round.min_contributors", "'auto'"]),
        ({"privacy": {"preset": "cpp9"}}, ["privacy.preset = 'cpp9'", "'cpp1', 'cpp2'"]),
        ({"privacy": {"probabilities": [1, 0]}}, ["privacy.probabilities", "p1, p2, p3, p4"]),
        ({"privacy": {"probabilities": [0.1, 0.9, 1, 0]}}, ["p1 = 0.1 is below p2"]),
        ({"training": {"learning_rate": float("nan")}}, ["training.learning_rate = nan"]),
        ({"faults": {"submodel": 1.5}}, ["faults.submodel = 1.5", "<= 1"]),
        ({"data": {"text_ids": 1}}, ["data.text_ids = 1", "`bool`"]),
        ({"data": {"source": "csv"}}, ["data.source = 'csv'", "data.path"]),
        ({"data": {"path": "file"}}, ["synthetic", "data.path = 'file'"]),
        ({"model": {"kind": "lstm"}}, ['model.kind = "lstm"', '"synthetic"', "words"]),
        (
            {"data": {"source": "shakespeare", "path": "file"}},
            ['model.kind = "din"', 'data.source = "shakespeare"', "clicks"],
        ),
        ({"model": {"kind": "gru"}}, ["model.kind = 'gru'", "'dien', 'bst'"]),
        ({"round": {"clients": 10, "threshold": 11}}, ["round.threshold = 11", "10 clients"]),
        ({"round": {"clients": 10, "threshold": 5}}, ["round.threshold = 5", "more than half"]),
        ({"round": 5}, ["[round] is a section"]),
        ({"round": {"scheme": "centralized", "cohorts": 2}}, ["round.cohorts = 2", "no clients"]),
        ({"round": {"sums": "plain", "cohorts": 2}, "run": {"device": "cpu"}}, ["round.cohorts asks"]),
        ({"round": {"sums": "plain"}, "run": {"engine": "ray"}}, ['engine = "ray"', '"plain"', "no masks"]),
        ({"round": {"scheme": "fl"}, "run": {"engine": "ray"}}, ['engine = "ray"', '"fl"', "no masks"]),
        ({"run": {"engine": "ray", "device": "cpu"}, "round": {"sums": "plain"}}, ["gpus_per_worker"]),
        ({"run": {"engine": "ray"}, "ray": {"workers": 3}}, ["ray.workers = 3", "2 passes", "to 33"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(sections: dict[str, object], said: list[str]) -> None:
    with pytest.raises(ParameterError) as error:
        from_sections(sections)
    for words in said:
        assert words in str(error.value)


def test_overrides_are_toml_values_or_bare_words() -> None:
    base = {"round": {"clients": 5, "bins": 8}}
    wanted = [
        "round.clients=50",
        "data.path=a file.csv",
        "privacy.probabilities=[1, 0, 1, 0]",
        "faults.union = 1",
    ]
    assert overridden(base, wanted) == {
        "round": {"clients": 50, "bins": 8},
        "data": {"path": "a file.csv"},
        "privacy": {"probabilities": [1, 0, 1, 0]},
        "faults": {"union": 1},
    }
    assert base["round"]["clients"] == 5
    # A line break must not smuggle in a second key.
    assert overridden({}, ["data.path=1\nb=2"]) == {"data": {"path": "1\nb=2"}}


@pytest.mark.parametrize("setting", ["clients=5", "round.clients", "=5", "round.=5", ".clients=5"])
def test_an_override_without_section_key_and_value_is_refused(setting: str) -> None:
    with pytest.raises(InputError, match=r"section\.key=value"):
        overridden({}, [setting])


def test_files_that_are_not_run_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.toml"):
        read_config(tmp_path / "none.toml")
    for content in (b"[round", b"\xff\xfe", b"a = 1\na = 2"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.toml is not TOML"):
            read_config(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text("[round]\nclients = 1\n")
    with pytest.raises(ParameterError, match=r"bad\.toml: round\.clients = 1"):
        read_config(tmp_path / "bad.toml")


def test_the_floor_of_averages_rises_to_kappa() -> None:
    config = from_sections({"server": {"kappa": 9, "kappa_rounds": 4}})
    settings = round_rules(config)
    floors = [settings.update_in(number).averaging.kappa for number in (1, 2, 3, 4, 5, 100)]
    assert floors == [1, 3, 5, 7, 9, 9]
    constant = round_rules(from_sections({"server": {"kappa": 9, "kappa_rounds": 0}}))
    assert constant.update_in(1) == constant.update
    assert settings.update_in(2).rows == settings.update.rows, "nothing else changes"


def test_rows_move_half_as_far_after_so_many_rounds() -> None:
    rules = round_rules(from_sections({"server": {"row_rate": 0.6, "row_halving": 10}}))
    steps = [rules.update_in(number) for number in (1, 11, 21, 31)]
    assert [one.row_step.rate for one in steps] == pytest.approx([0.6, 0.3, 0.2, 0.15])
    limits = [one.averaging.max_move for one in steps]
    assert limits[0] is not None
    assert [limit / limits[0] for limit in limits if limit] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert steps[3].dense_step == rules.update.dense_step, "nothing else changes"
    always = round_rules(from_sections({"server": {"row_halving": 0}}))
    assert always.update_in(1000) == always.update


@pytest.mark.parametrize(
    ("sections", "rate"),
    [
        ({}, 0.0003),
        ({"round": {"scheme": "fl"}}, 0.0003),
        ({"round": {"scheme": "hot"}, "privacy": {"participations": 1}, "hot": {"surveys": 1}}, 0.001),
        ({"data": {"source": "python", "path": "own.py"}}, 0.001),
        ({"data": {"source": "shakespeare", "path": "roles"}, "model": {"kind": "lstm"}}, 0.01),
        ({"server": {"dense_step": "adagrad"}}, 0.03),
        ({"server": {"dense_step": "add"}}, 2),
        ({"server": {"dense_step": "add"}, "round": {"scheme": "fsl"}}, 2),
        ({"server": {"dense_step": "add"}, "round": {"scheme": "fl"}}, 1),
        ({"server": {"dense_step": "add"}, "round": {"scheme": "sfl"}}, 1),
        ({"server": {"dense_rate": 0.5}}, 0.5),
    ],
)
def test_the_rate_of_the_dense_part_suits_its_step_and_what_clients_have(
    sections: dict[str, Any], rate: float
) -> None:
    assert round_rules(from_sections(sections)).update.dense_step.rate == rate


@pytest.mark.parametrize(
    ("sections", "rate", "prior"),
    [
        ({}, 0.2, 3),
        ({"model": {"kind": "logistic"}, "round": {"scheme": "fsl"}}, 0.2, 3),
        ({"server": {"row_rate": 0.7}}, 0.7, 3),
        ({"server": {"row_prior": 7}}, 0.2, 7),
        ({"server": {"row_step": "adagrad"}}, 0.45, 3),
        ({"round": {"scheme": "hot"}}, 0.45, 20),
        ({"data": {"source": "python", "path": "own.py"}}, 0.45, 20),
        ({"data": {"source": "shakespeare", "path": "roles"}, "model": {"kind": "lstm"}}, 0.45, 20),
    ],
)
def test_the_steps_of_rows_suit_what_is_summed(sections: dict[str, Any], rate: float, prior: float) -> None:
    config = from_sections(sections)
    assert (config.row_rate, config.row_prior) == (rate, prior)


def test_one_client_moves_a_new_row_no_further_by_either_kind_of_steps() -> None:
    """The limit of a row's move follows the steps, and a liar has gained nothing by the smaller ones."""
    sections = {"server": {"row_rate": 0.45, "row_prior": 20.0}}
    limits = [round_rules(from_sections(one)).update.averaging.max_move for one in ({}, sections)]
    assert limits == pytest.approx([0.4795, 0.4708], abs=1e-3)


def test_a_file_that_says_how_its_model_is_served_is_a_run_file_too(tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    file.write_text("[round]\nclients = 7\n[serve]\nport = 1\n")
    assert read_config(file).round.clients == 7
    file.write_text("[round]\nclients = 7\n[server]\nport = 1\n")
    with pytest.raises(ParameterError, match=r"server\.port"):
        read_config(file)


def test_the_papers_settings_fill_in_what_is_not_said() -> None:
    """Algorithm 1 for submodels; full models are averaged by the size of data sets."""
    paper = from_sections(as_in_paper({"training": {"batch_size": 4}, "run": {"rounds": 7}}))
    assert (paper.training.batch_size, paper.training.learning_rate, paper.training.clip) == (4, 1.0, 0.1)
    assert (paper.training.rebuild, paper.training.max_samples, paper.run.rounds) == (0, 0, 7)
    assert (paper.model.layout, paper.server.row_step, paper.server.dense_step) == ("paper", "add", "add")
    assert (paper.weights, paper.server.kappa, paper.dense_rate) == ("samples", 1, 1)
    assert paper.round.min_contributors == 1
    full = from_sections(as_in_paper({"round": {"scheme": "fl"}}))
    assert (full.weights, full.training.batch_size) == ("dataset", 2)


def test_a_step_by_heat_has_the_root_of_its_prior_as_tau() -> None:
    step = round_rules(from_sections({"server": {"row_prior": 49}})).update.row_step
    assert (step.kind, step.rate, step.tau) == ("heat", 0.2, 7)
    with pytest.raises(ParameterError, match="dense_step"):
        from_sections({"server": {"dense_step": "heat"}})


@pytest.mark.parametrize(("clients", "preset"), [(2, "cpp5"), (29, "cpp5"), (30, "cpp2"), (100, "cpp2")])
def test_small_cohorts_ask_for_the_whole_union_unless_told_otherwise(clients: int, preset: str) -> None:
    auto = from_sections({"round": {"clients": clients}}).privacy
    assert auto.preset == "auto"
    assert auto.of_cohort(clients).preset == preset
    told = from_sections({"privacy": {"preset": "cpp3"}}).privacy
    assert told.of_cohort(clients).preset == "cpp3"
    numbers = from_sections({"privacy": {"probabilities": [0.5, 0.5, 0.5, 0.5]}}).privacy
    assert numbers.of_cohort(clients).index_privacy == numbers.index_privacy
    assert as_in_paper({})["privacy"]["preset"] == "cpp2"
