"""What ``listen`` overrides of uvicorn is not its public interface: versions nobody tried are kept out."""

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

ROOT = Path(__file__).parents[4]


def test_versions_that_nobody_tried_are_kept_out() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = (one for one in extras["network"] if one.startswith("uvicorn"))
    least, most = wanted.removeprefix("uvicorn>=").split(",<")
    numbers = [tuple(map(int, one.split(".")[:2])) for one in (least, version("uvicorn"), most)]
    assert numbers[0] <= numbers[1] < numbers[2]


def test_what_is_overridden_is_there() -> None:
    assert list(inspect.signature(uvicorn.Server.startup).parameters) == ["self", "sockets"]
    assert list(inspect.signature(uvicorn.Server.handle_exit).parameters) == ["self", "sig", "frame"]
    given = inspect.signature(H11Protocol.__init__).parameters
    assert {"config", "server_state", "app_state", "_loop"} <= given.keys()
