"""One page that tells what was reproduced: pictures inline, nothing loaded, for a phone, light or dark."""

import base64
from collections.abc import Sequence
from html import escape

import msgspec

from sfsl_research.reproduce.paper import TITLE
from sfsl_research.reproduce.target import Story, Target

_STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #5c5c66; --line: #dcdce2; --ground: #ffffff;
  --card: #f5f5f8; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ed; --soft: #a2a2ad; --line: #3a3a42;
  --ground: #17171a; --card: #222227; --link: #7db8f0; } }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 50rem; padding: 1rem 1rem 4rem;
  color: var(--ink); background: var(--ground); }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.8rem; }
a { color: var(--link); }
nav ul { padding-left: 1.1rem; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px; margin: 1rem 0; }
dl { margin: 0; } dt { font-weight: 600; margin-top: 0.7rem; } dd { margin: 0.1rem 0 0; }
dd p { margin: 0.1rem 0 0.5rem; }
.wide { overflow-x: auto; background: var(--card); border-radius: 6px; padding: 0.3rem 0.2rem; }
table { border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { font-weight: 600; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
.note, figcaption { color: var(--soft); font-size: 0.87rem; }
code { font-size: 0.87rem; overflow-wrap: anywhere; }
"""
_ABOUT = (
    "The paper's evaluation, made again with this implementation. Yellow diamonds are numbers that the paper "
    "prints, hollow ones follow from percentages that it prints; where the paper has only a picture, nothing "
    "is marked. Costs are measured on the real masked protocol; its sums are checked in every run."
)


class Made(msgspec.Struct, frozen=True):
    command: str
    date: str
    machine: str
    runs: int = 1

    def __str__(self) -> str:
        runs = f"median of {self.runs} runs, SFL one" if self.runs > 1 else "one run of each setting"
        return f"{self.date}, {self.machine}; {runs}"


def page(sections: Sequence[tuple[Target, Story, bytes, Made | None]]) -> str:
    """``sections``: what is told of each target that has rows, its picture as PNG, and how it was made."""
    links = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>\n' for one, _, _, _ in sections)
    body = "".join(_section(*one) for one in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>Reproduced: {escape(TITLE)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Reproduced: {escape(TITLE)}</h1>\n<p>{escape(_ABOUT)}</p>\n<nav><ul>\n{links}</ul></nav>\n"
        f"{body}</body>\n</html>\n"
    )


def _section(target: Target, story: Story, picture: bytes, made: Made | None) -> str:
    data = base64.b64encode(picture).decode()
    differs = "".join(f"<p>{escape(text)}</p>" for text in story.differs)
    how = f"<code>{escape(made.command)}</code>, {escape(str(made))}. " if made else ""
    return (
        f'<section id="{target.name}">\n<h2>{escape(target.title)}</h2>\n'
        f"<dl><dt>What the paper did</dt><dd>{escape(story.paper)}</dd>\n"
        f"<dt>What we measured</dt><dd>{escape(story.ours)}</dd></dl>\n"
        f'<img alt="{escape(target.about)}" src="data:image/png;base64,{data}">\n'
        f"{_table(story)}<dl><dt>Where they differ, and why</dt><dd>{differs}</dd></dl>\n"
        f'<p class="note">{how}Rows: {target.name}.csv</p>\n</section>\n'
    )


def _table(story: Story) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in story.heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in story.table
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'
