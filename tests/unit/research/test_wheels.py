"""What is in the two wheels, and what a deployment says that has only the first."""

import configparser
import os
import re
import shlex
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from sfsl import __version__

pytestmark = pytest.mark.skipif(find_spec("hatchling") is None, reason="wheels are built with hatchling")

ROOT = Path(__file__).parents[3]
# By the name of the entry point, which is that of the module too: what one types after sfsl.
COMMANDS = {"audit": "privacy audit"} | {name: name for name in ("bench", "reproduce", "swarm", "tune")}
# By the name of the entry point: its module, what one types to run on it, and the extra that it needs.
ENGINES = {
    "centralized": ("sfsl_research.experiments.centralized", "--scheme centralized", ""),
    "device": ("sfsl_research.resident.plugin", "--sums plain --device cpu", ""),
    "ray": ("sfsl_research.ray.plugin", "--engine ray", "[ray]"),
}
# As where only the first wheel is installed: no entry points, and nothing to import behind them.
ALONE = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **_: []
sys.modules["sfsl_research"] = None
from sfsl.cli import main
sys.argv[0] = "sfsl"
main()
"""
# As where both wheels are installed, with their extras and nothing of ours for development.
ABSENT = ("flwr", "hypothesis", "pyarrow", "pytest", "ray", "scipy")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """By the name of the distribution. Built here, from this tree, without a network."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index"]
    build += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(ROOT), str(ROOT / "research")]
    subprocess.run(build, check=True, cwd=out)  # noqa: S603
    return {path.name.split("-")[0]: zipfile.ZipFile(path) for path in out.glob("*.whl")}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first wheel alone, unpacked."""
    place = tmp_path_factory.mktemp("site")
    wheels["sfsl"].extractall(place)
    return place


def alone(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", ALONE, *words], capture_output=True, text=True, env=environment, cwd=installed
    )


def test_the_wheel_of_a_deployment_has_nothing_of_research_and_no_test_helper(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    parts = [Path(name).with_suffix("").parts for name in wheels["sfsl"].namelist()]
    of_research = {"sfsl_research", "audit", "attacks", "bench", "reproduce", "experiments", "swarm", "tune"}
    of_research |= {"ray", "resident"}
    of_tests = {"testing", "tests", "conftest"}
    assert not [one for one in parts if (of_research | of_tests) & set(one)]
    assert ("sfsl", "cli", "run") in parts


def test_the_wheel_of_research_has_its_commands_and_engines(wheels: dict[str, zipfile.ZipFile]) -> None:
    wheel = wheels["sfsl_research"]
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {one.split("-")[0] for one in tops} == {"sfsl_research"}
    (points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    said = configparser.ConfigParser()
    said.read_string(wheel.read(points).decode())
    assert said.sections() == ["sfsl.commands", "sfsl.engines"]
    assert [*said["sfsl.commands"]] == [*COMMANDS]
    assert dict(said["sfsl.engines"]) == {name: module for name, (module, *_) in ENGINES.items()}
    modules = [f"sfsl_research.cli.{name}" for name in COMMANDS] + [*said["sfsl.engines"].values()]
    for module in modules:
        assert module.replace(".", "/") + ".py" in wheel.namelist()


def test_both_have_one_version(wheels: dict[str, zipfile.ZipFile]) -> None:
    versions = set()
    for wheel in wheels.values():
        (about,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        lines = wheel.read(about).decode().splitlines()
        versions.add(next(line for line in lines if line.startswith("Version: ")))
    assert len(wheels) == 2
    assert len(versions) == 1


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_without_research_a_command_says_what_to_install(installed: Path, words: str) -> None:
    done = alone(installed, *words.split(), "round", "--clients", "3", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"install it with: .*pip install '?sfsl_research-\S+\.whl'?, a file from", done.stderr)
    assert f"sfsl {words} is in a package" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ENGINES)
def test_without_research_a_run_on_its_engine_says_what_to_install(
    installed: Path, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("torch")
    _, flags, extra = ENGINES[name]
    done = alone(installed, "run", "--out", str(tmp_path / "run"), *flags.split(), "--json")
    assert (done.returncode, done.stdout) == (1, "")
    wheel = shlex.quote(f"sfsl_research-{__version__}-py3-none-any.whl{extra}")
    assert done.stderr.endswith(f"pip install {wheel}, a file from where that of sfsl came\n")
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


def test_without_research_help_marks_its_commands(installed: Path) -> None:
    for *group, name in map(str.split, COMMANDS.values()):
        done = alone(installed, *group, "--help")
        assert done.returncode == 0
        (line,) = (one for one in done.stdout.splitlines() if one.strip(" │").startswith(f"{name} "))
        assert "Not installed" in line
    (run,) = (one for one in done.stdout.splitlines() if one.strip(" │").startswith("run "))
    assert "Not installed" not in run


def test_research_imports_only_what_its_extras_install(wheels: dict[str, zipfile.ZipFile]) -> None:
    pytest.importorskip("torch")
    ours = [name for name in wheels["sfsl_research"].namelist() if name.endswith(".py")]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in ours]
    # These are for whoever has Flower, or Ray, which the engine's plug-in does without until it is asked.
    wanted = {*modules} - {"sfsl_research.flower_members", "sfsl_research.trace.federation"}
    # Mutants are tried on the tests of a clone, by pytest.
    wanted -= {name for name in modules if name.startswith("sfsl_research.mutation.")}
    wanted -= {f"sfsl_research.ray.{name}" for name in ("cluster", "crew", "engine", "pool", "worker")}
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
        f"for name in {sorted(wanted)!r}: importlib.import_module(name)\n"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "research")])
    subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": path}
    )
