"""What the documents point at is there: files, headings, modules and their names."""

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "research").glob("*.md")]
)
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(
    r"[\w.-]+(?:/[\w.-]+)+\.(?:py|md|toml|json|svg)\b|(?:src|tests|bench|examples|docs)/[\w/.-]+"
)
ROOMS = re.compile(r"^src/sfsl/\n((?:  .*\n)+)", re.MULTILINE)
# What runs make, what an example has in its own folder, and what is another project's.
NOT_HERE = re.compile(r"^(?:out|store|films|flwr)/")

NO_NAMES = {"sfsl.example.org", "sfsl.commands", "sfsl.engines"}  # a host, and groups of entry points


@cache
def text_of(path: Path) -> str:
    return (ROOT / path).read_text()


def anchors(path: Path) -> set[str]:
    """The names under which headings can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if re.match(r"\w+:", link):
            continue
        file, _, heading = link.partition("#")
        target = (ROOT / document.parent / file).resolve() if file else ROOT / document
        if not target.exists() or (heading and heading not in anchors(target.relative_to(ROOT))):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_files_that_are_named_are_there(document: Path) -> None:
    """A path counts from the root, or from ``src/sfsl``."""
    named = {path.rstrip("./") for code in CODE.findall(text_of(document)) for path in FILE.findall(code)}
    named |= set(re.findall(r"\bpython (bench/\w+\.py)", text_of(document)))
    here = (ROOT, ROOT / "src/sfsl", (ROOT / document).parent)
    assert not {
        path for path in named if not NOT_HERE.search(path) and not any((one / path).exists() for one in here)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_rooms_that_are_drawn_are_there(document: Path) -> None:
    """The drawings of ``src/sfsl`` name folders at the beginning of a line, perhaps several."""
    for drawing in ROOMS.findall(text_of(document)):
        named = re.findall(r"^  (\w+/) ", drawing, re.MULTILINE) + re.findall(r"(?<=/ )(\w+/) ", drawing)
        assert named
        assert not [name for name in named if not (ROOT / "src/sfsl" / name).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_names_of_python_are_known(document: Path) -> None:
    named = {
        name
        for code in CODE.findall(text_of(document))
        for name in re.findall(r"(?<![\w./-])(sfsl(?:_research)?(?:\.[A-Za-z_]\w*)+)", code)
    } - NO_NAMES
    assert not {name for name in named if not resolves(name)}


def resolves(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False
