"""Lines by speaking role, for next-word models (JSON lines of ``play``, ``role``, ``lines``)."""

from pathlib import Path

import msgspec

from sfsl.data.assemble import require_usable
from sfsl.data.lines import numbered_lines, shown
from sfsl.data.report import LoadReport


class Role(msgspec.Struct, frozen=True):
    """A client: the words it speaks are its private indices."""

    play: str
    role: str
    lines: tuple[str, ...]


def load_shakespeare(path: str | Path) -> tuple[tuple[Role, ...], LoadReport]:
    report = LoadReport(str(path))
    decoder = msgspec.json.Decoder(Role)
    roles = []
    for number, line in numbered_lines(Path(path), report):
        try:
            role = decoder.decode(line)
        except msgspec.DecodeError as error:
            report.note("not a role", f"line {number}: {error}: {shown(line)}")
            continue
        if any(spoken.strip() for spoken in role.lines):
            roles.append(role)
        else:
            report.note("role without a line", f"line {number}: {shown(role.role)}")
    require_usable(report, roles)
    return tuple(roles), report
