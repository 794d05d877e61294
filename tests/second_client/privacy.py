"""Which rows of a union a client asks for: randomized response (privacy.md 1 and 3).

What this leaves out, and a client for people MUST have: the ledger and the state on disk, debited before
a masked set or an answer leaves (privacy.md 2, 5, 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from second_client.secagg import Draw
from second_client.wire import derive


@dataclass(frozen=True)
class RandomizedResponse:
    """``p`` are p1 to p4; (1, 0, 1, 0) asks for exactly the real rows and hides nothing."""

    period_key: bytes
    p: tuple[float, float, float, float] = (1.0, 0.0, 1.0, 0.0)

    def words(self, table: str, rows: Sequence[int]) -> list[int]:
        """The permanent word of each row."""
        key = derive(self.period_key, "permanent-answers", table.encode())
        cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305
        return [int.from_bytes(cipher.update(row.to_bytes(16, "big"))[:8], "big") for row in rows]

    def asks(self, table: str, union: Sequence[int], real: Sequence[int], draw: Draw) -> np.ndarray:
        """For each row of the union whether it is asked for in this round: to be called once."""
        p1, p2, p3, p4 = (int(Fraction(one) * 2**64) for one in self.p)
        held, fresh = set(real), np.frombuffer(draw(8 * len(union)), "<u8").tolist()
        permanent = [
            word < (p1 if row in held else p2)
            for row, word in zip(union, self.words(table, union), strict=True)
        ]
        return np.array(
            [word < (p3 if yes else p4) for word, yes in zip(fresh, permanent, strict=True)], bool
        )
