"""deploy/compose.yaml without containers: the same commands, in the same order, by the same files, as
processes of this machine; the proxy too, where nginx with its stream module is installed."""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from commands import port, started

yaml = pytest.importorskip("yaml")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
CLIENTS = [name for name in SERVICES if name.startswith("client-")]
MODULE = "usr/lib/nginx/modules/ngx_stream_module.so"
SECONDS = 400


def test_the_commands_of_the_compose_file(tmp_path: Path) -> None:
    served, proxied = port(), port_again()
    nginx, module = find_nginx()
    reached = proxied if nginx else served

    def here(text: str) -> str:
        """On this machine: folders of this test instead of volumes, loopback instead of the proxy's name."""
        for old, new in {
            "/etc/sfsl-serve.toml": f"{tmp_path}/serve.toml",
            "/etc/sfsl": f"{tmp_path}/etc",
            "/var/lib/sfsl": f"{tmp_path}/state",
            "https://sfsl.example.org:8443": f"https://localhost:{reached}",
            '"0.0.0.0"': '"127.0.0.1"',
            "port = 8443": f"port = {served}",
            "listen 8443": f"listen 127.0.0.1:{proxied}",
            "server:8443": f"127.0.0.1:{served}",
        }.items():
            text = text.replace(old, new)
        return text

    for name in ("etc", "state", "clients"):
        (tmp_path / name).mkdir()
    (tmp_path / "serve.toml").write_text(here((DEPLOY / "serve.toml").read_text()))
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "SFSL_ETC": f"{tmp_path}/etc", "SFSL_CLIENTS": f"{tmp_path}/clients"}
    environment |= {"SFSL_STATE": f"{tmp_path}/state", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    os.environ["PATH"] = f"{path}:{os.environ['PATH']}"
    setup = ["/bin/sh", str(DEPLOY / "setup.sh")]
    for _ in range(2):  # again changes nothing
        subprocess.run(setup, env=environment, check=True, timeout=SECONDS)  # noqa: S603
    assert len((tmp_path / "etc/clients.txt").read_text().splitlines()) == len(CLIENTS)
    with ExitStack() as running:
        log = tmp_path / "server.log"
        serve = running.enter_context(started(f"sfsl {here(SERVICES['server']['command'])}", tmp_path, log))
        end = time.monotonic() + SECONDS
        check = here(SERVICES["server"]["healthcheck"]["test"][-1]).replace(":8443", f":{served}")
        while subprocess.run([sys.executable, "-c", check], capture_output=True).returncode:  # noqa: S603
            assert serve.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.5)
        if nginx:
            conf = tmp_path / "nginx.conf"
            load = f"load_module {module};\n" if module else ""
            conf.write_text(load + here((DEPLOY / "proxy.conf").read_text()))
            own = f"-g 'daemon off; pid {tmp_path}/nginx.pid;'"
            command = f"{nginx} -p {tmp_path} -c {conf} -e {tmp_path}/nginx.log {own}"
            running.enter_context(started(command, tmp_path, tmp_path / "proxy.log"))
        for name in CLIENTS:
            line = here(SERVICES[name]["command"][0]).replace("exec sfsl", "exec nice -n 5 sfsl")
            home = tmp_path / "clients" / name
            running.enter_context(started(f"/bin/sh -c '{line}'", home, home / "log"))
        while not (found := re.search(r"round 1 (committed|aborted): .*", log.read_text())):
            assert serve.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text() + (tmp_path / "clients/client-1/log").read_text()
            time.sleep(0.5)
        assert found[0].startswith("round 1 committed: 10 of 10 clients")
        metrics = fetched(f"https://localhost:{reached}/metrics", tmp_path / "etc/tls/authority.pem")
        for panel in json.loads((DEPLOY / "grafana/sfsl.json").read_text())["panels"]:
            for target in panel["targets"]:
                assert set(re.findall(r"\bsfsl_\w+", target["expr"])) <= set(
                    re.findall(r"^\w+", metrics, re.M)
                )
        assert 'sfsl_rounds_total{outcome="committed"}' in metrics
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(SECONDS) == 0, log.read_text()
    assert "sfsl join --server https://sfsl.example.org" in log.read_text()


def port_again() -> str:
    return str(int(port()) + 1)


def find_nginx() -> tuple[str | None, str | None]:
    """Return nginx and its stream module, where there is one to load; SFSL_NGINX_ROOT is for one that is only
    unpacked."""
    root = Path(os.environ.get("SFSL_NGINX_ROOT", "/"))
    nginx = shutil.which("nginx", path=f"{root}/usr/sbin:/usr/sbin:/usr/bin")
    return nginx, str(root / MODULE) if (root / MODULE).exists() else None


def fetched(url: str, authority: Path) -> str:
    context = ssl.create_default_context(cafile=authority)
    with urllib.request.urlopen(url, context=context, timeout=SECONDS) as answer:  # noqa: S310
        return str(answer.read().decode())


def test_what_goes_to_the_builder_of_the_image_is_enough_for_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    root, context = DEPLOY.parent, tmp_path / "context"
    kept = re.findall(r"(?m)^!(\S+)$", (root / ".dockerignore").read_text())
    for name in kept:
        if (root / name).is_dir():
            shutil.copytree(root / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            context.mkdir(exist_ok=True)
            shutil.copy(root / name, context / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*build, "-w", tmp_path / "wheels", context], check=True)  # noqa: S603
    assert [path.name.split("-")[0] for path in (tmp_path / "wheels").iterdir()] == ["sfsl"]
