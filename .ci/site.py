"""Makes of docs/ what a site needs: the first page of the README, the changelog, the reference of commands,
settings and names, which come from the code, and the way through it all.

mkdocs calls the functions below by their names. Whatever a page links to outside of docs/ is named and not
linked: a site has no files of the repository.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import sfsl
from sfsl.cli import app
from sfsl.settings.sections import description
from sfsl.settings.serve import section_toml
from sfsl.settings.terms import Terms
from sfsl.settings.toml import default_toml

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Pages in the order in which they are read; those that are not named here come behind them, by name.
SECTIONS = {
    "Tutorials": ("tutorials", ["your-csv", "your-torch-model", "ten-clients", "sign-off", "to-flower"]),
    "How to": (
        "guide",
        ["installing", "data", "metrics", "model", "simulation", "deployment", "containers", "hot"],
    ),
    "Specification": ("spec", ["README", "guarantees", "secure-aggregation", "private-set-union", "round"]),
    "Decisions": ("decisions", []),
}
GENERATED = {"reference/commands.md", "reference/settings.md", "reference/python.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    docs = Path(config.docs_dir)

    def pages(section: str) -> list[str]:
        folder, first = SECTIONS[section]
        names = sorted(path.stem for path in (docs / folder).glob("*.md"))
        return [f"{folder}/{name}.md" for name in sorted(names, key=lambda one: _place(first, one))]

    notebooks = [f"notebooks/{path.stem}.md" for path in sorted((docs / "notebooks").glob("*.ipynb"))]
    config.nav = [
        {"Home": "index.md"},
        {"Tutorials": [*pages("Tutorials"), {"Notebooks": notebooks}]},
        {"How to": [*pages("How to"), "cookbook.md"]},
        {"Reference": [*sorted(GENERATED), "glossary.md", "architecture.md"]},
        {"Specification": pages("Specification")},
        {"Privacy": "privacy.md"},
        {"Results": "results.md"},
        {"Decisions": pages("Decisions")},
        {"Research": "research.md"},
        {"Changelog": "changelog.md"},
    ]
    return config


def _place(first: list[str], name: str) -> tuple[int, str]:
    return (first.index(name) if name in first else len(first), name)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {
        "index.md": (ROOT / "README.md").read_text(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "research.md": (ROOT / "research/README.md").read_text(),
        "reference/commands.md": "\n".join(commands()),
        "reference/settings.md": settings(),
        "reference/python.md": "\n".join(names()),
    }
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook(path)
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


# Where a page lies in the repository, if that is not docs/.
ELSEWHERE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "research.md": "research/README.md"}


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    source = (ROOT / ELSEWHERE.get(place, f"docs/{place}")).parent
    back = {path: name for name, path in ELSEWHERE.items()}

    def changed(found: re.Match[str]) -> str:
        image, text, link = found.groups()
        file, hash_, anchor = link.partition("#")
        if not file or re.match(r"\w+:", link):
            return found[0]
        target = (source / file).resolve()
        known = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
        inside = back.get(known) or (known.removeprefix("docs/") if known.startswith("docs/") else "")
        if inside and (ROOT / "docs" / inside).is_dir():
            inside = f"{inside}/README.md"
        if not inside or files.get_file_from_path(inside) is None:
            return text if text.startswith("`") else f"{text} (`{known or file}`)"
        up = "../" * place.count("/")
        return f"{image}[{text}]({up}{inside}{hash_}{anchor})"

    return LINK.sub(changed, markdown)


def notebook(path: Path) -> str:
    """Return a notebook's cells as a page; a test runs them."""
    parts = [f"<!-- made of docs/notebooks/{path.name} -->"]
    for cell in msgspec.json.decode(path.read_bytes())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def commands() -> Iterator[str]:
    yield "# Commands\n\nAs `--help` of each says; made from the code.\n"
    yield from _of(typer.main.get_command(app), "sfsl")


def _of(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        for one in sorted(inner):
            yield from _of(inner[one], f"{name} {one}")
        return
    about = "\n\n".join(map(_plain, (command.help or "").split("\n\n")))
    yield f"\n## {name}\n\n{about}\n"
    rows = []
    for one in command.params:
        if one.name == "help":
            continue
        given = ", ".join(f"`{word}`" for word in (*one.opts, *one.secondary_opts))
        shown = given if one.param_type_name == "option" else f"`{(one.metavar or one.name).upper()}`"
        said = (
            isinstance(one.default, str | int | float)
            and not isinstance(one.default, bool)
            and one.default != ""
        )
        usual = f"`{one.default}`" if said else ""
        rows.append(f"| {shown} | {_plain(getattr(one, 'help', ''))} | {usual} |")
    if rows:
        yield "\n".join(["| | | default |", "|---|---|---|", *rows]) + "\n"
    if command.epilog:
        examples = re.split(r"\s*\|\s{2,}", re.sub(r"^Examples?:\s*", "", command.epilog.strip()))
        yield "\n".join(["", "```text", *examples, "```", ""])


def _plain(text: str | None) -> str:
    return re.sub(r"\s*\n\s*", " ", (text or "").strip()).replace("|", "\\|")


def settings() -> str:
    terms = "\n".join(
        f"| `--{one.encode_name}` | {description(one)} | `{one.default}` |"
        for one in msgspec.structs.fields(Terms)
    )
    return (
        "# Settings\n\nEvery key of a run file, with its default and what it means (`sfsl init my.toml` "
        "writes this), of a server's section (`sfsl serve --settings`), and every term of a client; made "
        "from the code.\n\n"
        f"## A run file\n\n```toml\n{default_toml()}```\n\n## A server\n\n```toml\n{section_toml()}```\n\n"
        "## A client's terms\n\nFlags of `sfsl join`, keys of a Flower node, fields of `sfsl.Terms`.\n\n"
        f"| | | default |\n|---|---|---|\n{terms}\n"
    )


def names() -> Iterator[str]:
    yield "# Python\n\n`import sfsl`; a name loads what it needs when it is first used. From docstrings.\n"
    for room, (extras, public) in sfsl._ROOMS.items():
        needs = f" (needs the extras {extras})" if extras else ""
        yield f"\n## {room}{needs}\n"
        for name in public:
            bare = "\n    options: {show_signature: false}" if name in ("serve", "join") else ""
            yield f"\n::: {room}.{name}{bare}\n"
    yield "\n## The tree of errors\n\n```text\n" + _tree() + "\n```\n"


def _tree() -> str:
    import sfsl.errors

    return (sfsl.errors.__doc__ or "").split("::\n", 1)[1].strip("\n")
