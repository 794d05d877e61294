"""A federation of real processes on loopback: a SuperLink, SuperNodes, TLS, SuperNode authentication.

Nothing leaves the machine: no telemetry, no check for updates, no installing of dependencies. Every process
is stopped by its own id.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sfsl.deploy import loopback_tls

APP = Path(__file__).parent / "flower_app"
_BIN = Path(sys.executable).parent
_STOP_SECONDS = 20.0
_NAME = "bench"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.1)


class Federation:
    """``environment`` is added to that of every process. Logs are in ``folder``/NAME.log. ``simulation``: the
    SuperLink simulates its nodes, and has no TLS, as nobody is to connect to it."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, *, simulation: bool = False
    ) -> None:
        self.folder = folder
        self.simulation = simulation
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "flwr"
        home.mkdir(exist_ok=True)
        self._environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            **(environment or {}),
        }
        self._tls = folder / "tls"
        loopback_tls(self._tls, now=datetime.now(UTC))
        trust = f'root-certificates = "{self._tls / "authority.pem"}"'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_NAME}"\n[superlink.{_NAME}]\naddress = "127.0.0.1:{self.port}"\n'
            f"{'insecure = true' if simulation else trust}\n"
        )

    def start_superlink(self) -> None:
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        if self.simulation:
            command += ["--insecure", "--simulation"]
        else:
            for option, file in (("ca-certfile", "authority.pem"), ("certfile", "server.pem")):
                command += [f"--ssl-{option}", str(self._tls / file)]
            command += ["--ssl-keyfile", str(self._tls / "server.key"), "--enable-supernode-auth"]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--database", str(self.folder / "superlink.db")]
        self._start("superlink", command)
        wait_until(self._listens, 60, "the SuperLink listening")

    def register(self, name: str) -> int:
        """Its node id. Its key is made and registered on first use."""
        registered = self.folder / f"{name}.id"
        if not registered.exists():
            private = ec.generate_private_key(ec.SECP384R1())
            encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
            key = self.folder / f"{name}.key"
            key.touch(0o600)
            key.write_bytes(private.private_bytes(encoding, form, serialization.NoEncryption()))
            public = private.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
            (self.folder / f"{name}.pub").write_bytes(public)
            said = self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), _NAME)
            registered.write_text(str(said["node-id"]))
        return int(registered.read_text())

    def start_node(self, name: str, **config: Any) -> int:
        """Its node id. It is registered if it was not."""
        node = self.register(name)
        given = {"state": str(self.folder / name / "state"), **config}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self._tls / "authority.pem")]
        command += ["--auth-supernode-private-key", str(self.folder / f"{name}.key"), "--host", "127.0.0.1"]
        command += ["--port", str(free_port()), "--node-config", words]
        self._start(name, command)
        return node

    def run(self, app: Path, *options: str) -> int:
        return int(self.flwr("run", str(app), _NAME, *options)["run-id"])

    def flwr(self, *command: str) -> dict[str, Any]:
        ran = subprocess.run(
            [str(_BIN / "flwr"), *command, "--format", "json"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found: dict[str, Any] = json.loads(ran.stdout[ran.stdout.find("{") :]) if "{" in ran.stdout else {}
        if ran.returncode or not found.get("success"):  # a refused run leaves 0 in flwr 1.41
            raise RuntimeError(f"flwr {' '.join(command)}: {ran.stdout}{ran.stderr}")
        return found

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def kill(self, name: str) -> None:
        """Its process, at once; what it started notices and ends by itself."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(_BIN / command[0]), *command[1:]], env=self._environment, stdout=log, stderr=log
            )

    def _listens(self) -> bool:
        if self.processes["superlink"].poll() is not None:
            raise RuntimeError(self.log("superlink"))
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def write_app(folder: Path, config: Mapping[str, Any]) -> Path:
    """The seeded app with this run configuration, ready for ``flwr run``."""
    folder.mkdir(parents=True)
    shutil.copy(APP / "seeded_app.py", folder)
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in config.items()]
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        '[project]\nname = "seeded"\nversion = "1.0.0"\nlicense = "Apache-2.0"\ndependencies = []\n\n'
        '[tool.flwr.app]\npublisher = "sfsl"\n\n[tool.flwr.app.components]\n'
        'serverapp = "seeded_app:server"\nclientapp = "seeded_app:client"\n\n[tool.flwr.app.config]\n'
        + "\n".join(lines)
        + "\n"
    )
    return folder
