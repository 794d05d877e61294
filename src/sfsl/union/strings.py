"""Sets of strings (words, URLs) by hashing them to indices (spec 9.7).

The server sees 63-bit hashes. Whoever guesses a string can hash it and see whether it is in the union:
that is what a union reveals anyway. Strings that nobody guesses stay unknown to the server; a client maps
back those it holds itself. A keyed hash would keep guessing from outsiders, not from any member.
"""

import hashlib
from collections.abc import Iterable

from sfsl.crypto.kdf import frame
from sfsl.errors import InputError

STRING_DOMAIN = 2**63


def hash_strings(strings: Iterable[str], domain: int = STRING_DOMAIN) -> dict[int, str]:
    """A local dictionary from index to string; two strings of one client on one index are an error."""
    found: dict[int, str] = {}
    for string in strings:
        index = string_index(string, domain)
        if found.setdefault(index, string) != string:
            raise InputError(
                f"two strings fall on one index of a domain of {domain}; use a larger domain (up to 2^63)"
            )
    return found


def string_index(string: str, domain: int = STRING_DOMAIN) -> int:
    value = int.from_bytes(hashlib.sha256(frame("string", string.encode())).digest()[:16], "big")
    return value % domain
