"""Run files in TOML: reading, overriding, writing with every key explained."""

import math
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sfsl.checksums import without_last_line
from sfsl.errors import InputError, ParameterError
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.sections import description

Sections = dict[str, dict[str, Any]]

_COMMENT_WIDTH = 96

HEAD = """\
# A training run of sfsl. Start it with: sfsl run THIS_FILE --out FOLDER
# Every key is here with its value; leave out what should have its default.
"""


def read_sections(path: Path) -> Sections:
    """Read a file of settings. One that a run wrote has a checksum, as a comment at its end."""
    try:
        content = without_last_line(path.read_bytes(), str(path), "if you edited it, delete its last line")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def read_run_sections(path: Path) -> Sections:
    """Read a run's sections. A file may also say how its model is served, which is not a run's affair."""
    return {name: content for name, content in read_sections(path).items() if name != "serve"}


def read_config(path: Path) -> RunConfig:
    try:
        return from_sections(read_run_sections(path))
    except ParameterError as error:
        raise ParameterError(f"{path}: {error}") from None


def overridden(sections: Mapping[str, Any], settings: Iterable[str]) -> Sections:
    """Apply texts like ``round.clients=50`` to ``sections``. Values are TOML; a bare word is a text."""
    changed: Sections = {
        name: dict(content) if isinstance(content, Mapping) else content for name, content in sections.items()
    }
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise InputError(f"{setting!r}: expected section.key=value, such as round.clients=50")
        if not isinstance(changed.setdefault(section, {}), dict):
            raise InputError(f"{setting!r}: {section} is not a section in the run file")
        changed[section][key] = _value(text.strip())
    return changed


def with_settings(sections: Mapping[str, Any], settings: Mapping[str, Any]) -> Sections:
    """Apply settings from Python to ``sections``: ``{"round.clients": 50}``, or nested as in a file."""
    changed = overridden(sections, ())
    for name, value in settings.items():
        section, dot, key = name.partition(".")
        if not dot and not isinstance(value, Mapping):
            raise InputError(f"{name!r}: expected section.key, such as round.clients, or a whole section")
        if not isinstance(changed.setdefault(section, {}), dict):
            raise InputError(f"{name!r}: {section} is not a section in the run file")
        changed[section] |= {key: value} if dot else value
    return changed


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def to_toml(config: RunConfig) -> str:
    """Write every key with its value and what it means. It reads back as the same settings."""
    written = [HEAD]
    for section in msgspec.structs.fields(RunConfig):
        own = getattr(config, section.name)
        values = msgspec.structs.asdict(own)
        written.append(written_section(section.name, description(section), type(own), values))
    return "\n".join(written)


def written_section(name: str, title: str, kind: type[msgspec.Struct], values: Mapping[str, Any]) -> str:
    """Write one section with every key, its value and what it means."""
    lines = [f"# {title}", f"[{name}]"]
    for field in msgspec.structs.fields(kind):
        lines += [f"# {line}" for line in textwrap.wrap(description(field), _COMMENT_WIDTH)]
        lines.append(f"{field.encode_name} = {_written(values[field.name])}")
    return "\n".join([*lines, ""])


def default_toml() -> str:
    return to_toml(RunConfig())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_written(one)}' for key, one in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if value in (math.inf, -math.inf):
        return repr(value)  # inf, which JSON does not have
    # JSON's texts, numbers, true and false are TOML's; but \x7f must be escaped there.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
