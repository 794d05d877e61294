"""Sections of settings: what each key means, and what is said about one that is wrong."""

import inspect
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import ParameterError

Settings = TypeVar("Settings", bound=Checked)


def about(text: str) -> Meta:
    """What a key means. It is the comment in ``sfsl init`` and part of the error for a wrong value."""
    return Meta(description=text)


def explained(kind: type[Settings]) -> type[Settings]:
    """Give each key its meaning (``about``) from a line ``key: meaning`` of the class's docstring; a key that
    is itself a section means what the first line of its own docstring says."""
    said = dict(re.findall(r"^(\w+): (.*(?:\n    .*)*)", inspect.getdoc(kind) or "", re.MULTILINE))
    for name, own in kind.__annotations__.items():
        if isinstance(own, type) and issubclass(own, Checked):
            said[name] = (own.__doc__ or "").partition("\n")[0]
        meaning = said[name] if kind.__doc__ else ""  # Python can be told to drop docstrings
        kind.__annotations__[name] = Annotated[own, about(" ".join(meaning.split()))]
    return kind


def section_from(section: str, kind: type[Settings], content: object) -> Settings:
    """Return one section's settings, or say which key is wrong and what it means."""
    if not isinstance(content, Mapping):
        raise ParameterError(
            f"[{section}] is a section: write {section}.key = value, not {section} = {content!r}"
        )
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values = {}
    for key, value in content.items():
        if key not in fields:
            raise ParameterError(f"there is no key {section}.{key}; [{section}] has {', '.join(fields)}")
        try:
            values[fields[key].name] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            raise ParameterError(
                f"{section}.{key} = {value!r}: {_said(error, fields[key].type)}. {description(fields[key])}"
            ) from None
    return kind(**values)


def _said(error: msgspec.ValidationError, kind: Any) -> str:
    words = _words(kind)
    if words and "enum" in str(error):
        return f"not one of {', '.join(words)}"
    return f"{str(error)[0].lower()}{str(error)[1:]}" + (f", or {', '.join(words)}" if words else "")


def _words(kind: Any) -> list[str]:
    """The texts that a key may have, where they are few."""
    if get_origin(kind) is Literal:
        return [repr(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in _words(part)]


def description(field: msgspec.structs.FieldInfo) -> str:
    for meta in getattr(field.type, "__metadata__", ()):
        if isinstance(meta, Meta) and meta.description:
            return meta.description
    return ""
