"""Lines of CSV, each with its checksum in a last column, which earlier versions did not write."""

import hashlib

_DIGITS = 16


def with_sums(text: str) -> bytes:
    return "".join(f"{_summed(line)}\n" for line in text.splitlines()).encode()


def without_sums(text: str) -> list[str]:
    """Return the lines; a last one that a crash cut short is left out. Raises ``ValueError`` where a checksum
    does not fit. In a file with checksums every line has one."""
    *whole, torn = text.split("\n")
    if _fits(torn[:-1]):
        raise ValueError("the last line break is damaged")
    if not any(map(_fits, whole)):
        return whole
    for line in whole:
        if not _fits(line):
            raise ValueError(f"the checksum of the line {line[:40]!r} does not fit")
    return [line.rpartition(",")[0] for line in whole]


def _fits(line: str) -> bool:
    return _summed(line.rpartition(",")[0]) == line


def _summed(line: str) -> str:
    return f"{line},{hashlib.sha256(line.encode()).hexdigest()[:_DIGITS]}"
