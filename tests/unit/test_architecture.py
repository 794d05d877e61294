"""What docs/architecture.md says of files and rooms is so."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "sfsl"


def test_every_path_it_names_is_there() -> None:
    named = {one for one in re.findall(r"`([\w./-]+)`", PAGE) if one.endswith(("/", ".py", ".md", ".toml"))}
    assert len(named) > 20
    assert not sorted(one for one in named if not (ROOT / one).exists() and not (SOURCE / one).exists())


def test_the_rooms_are_those_of_the_package() -> None:
    tree = PAGE.split("```")[1]
    (files,) = (line.split() for line in tree.splitlines() if line.endswith(" errors.py"))
    listed = {*files, *re.findall(r"^  ([\w.]+)/? ", tree, re.MULTILINE)}
    folders = {one.parent.name for one in SOURCE.glob("*/__init__.py")}
    modules = {one.name for one in SOURCE.glob("*.py")} - {"__main__.py", "testing.py"}
    assert listed == folders | modules


def test_links_lead_somewhere() -> None:
    for page in ("architecture.md", "glossary.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / page).read_text()):
            assert (ROOT / "docs" / target).exists(), target
