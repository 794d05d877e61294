"""Shows the examples of docstrings as code: Markdown takes lines that begin with >>> for a quotation."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
_CODE = re.compile(r"``([^`\n]+)``")


def shown(text: str) -> str:
    """Fence each example up to the blank line behind it, and write code as Markdown does."""
    parts, at = [], 0
    for found in _EXAMPLE.finditer(text):
        parts += [_CODE.sub(r"`\1`", text[at : found.start()]), f"\n```pycon\n{found[0]}\n```\n"]
        at = found.end()
    return "".join([*parts, _CODE.sub(r"`\1`", text[at:])])


class Examples(griffe.Extension):
    """Does so for everything that has a docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = shown(obj.docstring.value)
