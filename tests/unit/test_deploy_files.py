"""The files in deploy/ agree with each other and with the server: metrics, hosts, ports, paths, users."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sfsl.carriers.https import status
from sfsl.settings.serve import from_all_sections
from sfsl.settings.toml import read_sections

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CLIENTS = [name for name in SERVICES if name.startswith("client-")]
# What Prometheus knows of every target by itself.
ITS_OWN = {"up"}
WORD = re.compile(r"\b(?:sfsl_\w+|up)\b(?=[\s{=)\[]|$)")


def exported() -> set[str]:
    shown = status.Status("", 0, "", 0, 0, 0, 0, 0, False, 0, 0, None, None, None, ())
    return set(re.findall(r"# TYPE (\w+) ", status.text(shown, status.Totals())))


def expressions() -> dict[str, str]:
    board = json.loads((DEPLOY / "grafana/sfsl.json").read_text())
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    drawn = {f"{one['title']} {at['refId']}": at["expr"] for one in board["panels"] for at in one["targets"]}
    return drawn | {rule["alert"]: rule["expr"] for rule in rules}


@pytest.mark.parametrize("name", expressions())
def test_what_is_drawn_and_watched_is_exported(name: str) -> None:
    named = set(WORD.findall(expressions()[name]))
    assert named
    assert named <= exported() | ITS_OWN


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "grafana/sfsl.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_server_takes_its_settings() -> None:
    config = from_all_sections(read_sections(DEPLOY / "serve.toml"))
    assert config.run.round.clients == len(CLIENTS) == 10
    assert config.serve.proxied
    assert config.serve.state == "/var/lib/sfsl"


def test_services_name_what_is_there() -> None:
    for name, service in SERVICES.items():
        assert "image" in service, name
        assert re.search(r":v?\d", service["image"]) or service["image"] == "sfsl", "a version, not latest"
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        for port in service.get("ports", ()):
            assert port == "8443:8443" or port.startswith("127.0.0.1:"), "only the proxy is for everybody"
    assert (DEPLOY / ".." / SERVICES["server"]["build"]["dockerfile"]).exists()


def test_each_client_has_a_folder_of_its_own() -> None:
    homes = [SERVICES[name]["volumes"] for name in CLIENTS]
    assert homes == [[f"{name}:/me"] for name in CLIENTS]
    assert {f"{name}:/clients/{name}" for name in CLIENTS} < set(SERVICES["setup"]["volumes"])


def test_hosts_and_ports_are_the_same_everywhere() -> None:
    """Clients sign the host, the certificate has it, the proxy answers to it."""
    (host,) = SERVICES["proxy"]["networks"]["default"]["aliases"]
    port = tomllib.loads((DEPLOY / "serve.toml").read_text())["serve"]["port"]
    assert f"HOST=${{SFSL_HOST:-{host}}}" in (DEPLOY / "setup.sh").read_text()
    assert f"https://{host}:{port}" in SERVICES["client-1"]["command"][0]
    conf = (DEPLOY / "proxy.conf").read_text()
    assert f"listen {port};" in conf
    assert f"proxy_pass server:{port};" in conf
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == [f"server:{port}"]
    assert scrape["tls_config"]["server_name"] == host
    timeout = re.search(r"proxy_timeout (\d+)s", conf)
    assert timeout is not None
    assert int(timeout[1]) > from_all_sections(read_sections(DEPLOY / "serve.toml")).serve.poll_seconds


def test_the_image_runs_as_the_user_that_the_files_are_given_to() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)$", image, re.MULTILINE)
    assert f"--uid {user} " in image
    assert f"chown -R {user}:{user} " in (DEPLOY / "setup.sh").read_text()
    assert SERVICES["prometheus"]["user"] == user
    kept = (DEPLOY / "../.dockerignore").read_text().split()
    assert {"!pyproject.toml", "!README.md", "!LICENSE", "!constraints.txt", "!src"} < set(kept)


def test_linters_have_nothing_to_say() -> None:
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if found is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([found, DEPLOY / "Dockerfile"], capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stdout
