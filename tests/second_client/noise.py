"""Discrete Gaussian noise as in privacy.md 9.2: a table of 256-bit thresholds, or two draws of it."""

from bisect import bisect_right
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from second_client.secagg import Draw
from second_client.wire import insist


class Words:
    """The z64 stream under a key, word by word (secure-aggregation.md 2.5)."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def take(self, count: int) -> list[int]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").tolist()


@lru_cache(maxsize=8)
def thresholds(deviation: float, step: int) -> list[int]:
    """T_j for j = -last … last - 1, of the variance deviation² / (1 + step²)."""
    with localcontext() as context:
        context.prec = 120
        variance = Decimal(deviation) ** 2 / (1 + step * step)
        last = int(19 * variance.sqrt()) + 1
        half = [(-(Decimal(k) ** 2) / (2 * variance)).exp() for k in range(last + 1)]
        weights = [half[abs(j)] for j in range(-last, last + 1)]
        total, below, found = sum(weights), Decimal(0), []
        for weight in weights[:-1]:
            below += weight
            found.append(int(below / total * 2**256))
    return found


def table_draws(table: list[int], count: int, words: Words) -> list[int]:
    last, tops = len(table) // 2, [one >> 192 for one in table]
    tied, found = set(tops), []
    for high in words.take(count):
        found.append((high, bisect_right(tops, high)))
    places = []
    for high, place in found:
        if high in tied:  # about once in 2^54 draws
            low = words.take(3)
            number = (high << 192) | (low[0] << 128) | (low[1] << 64) | low[2]
            place = bisect_right(table, number)
        places.append(place - last)
    return places


def gaussian(deviation: float, count: int, draw: Draw) -> np.ndarray:
    """So many draws from one fresh key."""
    insist(0.25 <= deviation <= 2**24, "noise out of bounds")
    words, step = Words(draw(32)), 0
    if deviation > 128:
        while 3 * (1 + (step + 1) ** 2) <= deviation:
            step += 1
    table = thresholds(deviation, step)
    drawn = np.array(table_draws(table, count, words), np.int64)
    if step:
        drawn += step * np.array(table_draws(table, count, words), np.int64)
    return drawn
