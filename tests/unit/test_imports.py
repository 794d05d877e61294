"""What a deployment imports without what it did not install."""

import subprocess
import sys

import pytest

from clocks import PATIENCE

# A server, its settings and its commands, the library of a client, the protocol: none of them trains.
LIGHT = (
    "sfsl.carriers.https.app",
    "sfsl.carriers.https.authority",
    "sfsl.carriers.https.listen",
    "sfsl.cli",
    "sfsl.cli.serve",
    "sfsl.client",
    "sfsl.client.home",
    "sfsl.privacy",
    "sfsl.rounds",
    "sfsl.secagg",
    "sfsl.service.registry",
    "sfsl.service.signing",
    "sfsl.settings.serve",
    "sfsl.submodel",
    "sfsl.union",
    "sfsl_research.swarm.faults",
)
# Only what trains needs torch, only a store on disk lmdb, only their carriers Flower and ray.
MISSING = ("torch", "lmdb", "ray", "flwr")


def test_what_does_not_train_needs_no_torch_and_no_store_or_carrier_of_others() -> None:
    """In a process of its own: another test may have imported them here."""
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({MISSING!r}))\n"
        f"for name in {LIGHT!r}: importlib.import_module(name)\n"
        f"assert not any(sys.modules[name] for name in {MISSING!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_the_command_starts_with_nothing_but_what_the_bare_wheel_needs() -> None:
    """So that it can say what else to install."""
    extras = (*MISSING, "httpx", "starlette", "uvicorn", "h11", "matplotlib", "pyarrow")
    code = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **_: []\n"
        f"sys.modules.update(dict.fromkeys({extras!r}))\n"
        "from typer.testing import CliRunner\n"
        "from sfsl.cli import app\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "Secure federated submodel learning" in done.stdout


def test_a_simulation_needs_no_network() -> None:
    """The extras train and store are enough for sfsl run."""
    pytest.importorskip("torch")
    code = (
        "import importlib, sys\n"
        "sys.modules.update(dict.fromkeys(('httpx', 'starlette', 'uvicorn', 'h11', 'flwr', 'ray')))\n"
        "import sfsl\n"
        "sfsl.train\n"
        "import sfsl.carriers.local.engine, sfsl.plan, sfsl.run.load, sfsl.run.start, sfsl.simulate.plain\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    assert done.returncode == 0, done.stderr
