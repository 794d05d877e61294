"""The documentation site builds, strictly, with every page on it and nothing fetched from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sfsl

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return place


def test_every_page_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("")
        folder = path.parent if path.name == "README" else path
        assert (site / folder / "index.html").exists(), page
    for made in ("reference/commands", "reference/settings", "reference/python", "changelog", "research"):
        assert (site / made / "index.html").exists()


def test_the_reference_has_every_name_command_and_setting(site: Path) -> None:
    python, commands, settings = (
        (site / f"reference/{name}/index.html").read_text() for name in ("python", "commands", "settings")
    )
    for name in set(sfsl.__all__) - {"__version__"}:
        assert re.search(rf'id="sfsl\.[\w.]*\b{name}"', python), name
    assert "&gt;&gt;&gt;" in python
    for command in ("sfsl run", "sfsl backup", "sfsl keys log witness", "sfsl privacy audit"):
        assert f'id="{command.replace(" ", "-")}"' in commands
    for key in ("min_contributors", "period_days", "--hot-epsilon"):
        assert key in settings


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert not fetched, page
