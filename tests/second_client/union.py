"""A set of indices as a vector whose sum over clients tells the union (private-set-union.md 9.1, 9.8)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isqrt
from typing import Any

import numpy as np

from second_client.secagg import F31, Draw, stream
from second_client.wire import frame, require


@dataclass(frozen=True)
class Encoding:
    """``capacity``: the most indices of a set. ``fill`` makes the words of a set, ascending, each once."""

    ring: str
    length: int
    capacity: int
    fill: Callable[[list[int], Draw], np.ndarray]


def encoding(union: dict[str, Any]) -> Encoding:
    domain, capacity = union["domain"], union["capacity"]
    match union["encoding"]:
        case "whole":
            require(domain <= 2**26, "too large a domain")
            return Encoding("z32", 0, domain, lambda indices, draw: np.zeros(0, np.uint64))
        case "identity":
            require(domain <= 2**26, "too large a domain")
            return Encoding("z32", domain, domain, lambda indices, draw: _cells(domain, indices, draw))
        case "bloom":
            return _bloom(union)
    return _sketch(domain, capacity, union["seed"])


def _cells(length: int, places: Sequence[int], draw: Draw) -> np.ndarray:
    """A uniform word in each of these places, ascending."""
    words = np.zeros(length, np.uint64)
    words[list(places)] = stream(draw(32), "z32", len(places))
    return words


def _bloom(union: dict[str, Any]) -> Encoding:
    domain, capacity, rate = union["domain"], union["capacity"], union["false_positive_rate"]
    require(1e-12 <= rate <= 0.5, "a rate out of bounds")
    best = -math.log2(rate)
    cells, hashes = min((_bloom_cells(h, capacity, rate), h) for h in {math.floor(best), math.ceil(best)})
    width, partitions = domain, 0
    if domain > 2**27:
        width = 2**27 // capacity
        require(width > 0 and -(-domain // width) <= cells, "more partitions than cells")
        partitions = -(-domain // width)
    functions = [Hash(union["seed"], "bloom", number) for number in range(hashes)]

    def fill(indices: list[int], draw: Draw) -> np.ndarray:
        places = {one.below(index, cells) for index in indices for one in functions}
        if partitions:
            places |= {cells + index // width for index in indices}
        return _cells(cells + partitions, sorted(places), draw)

    return Encoding("z32", cells + partitions, capacity, fill)


def _bloom_cells(hashes: int, capacity: int, rate: float) -> int:
    return math.ceil(-1 / math.expm1(math.log1p(-(rate ** (1 / hashes))) / (hashes * capacity)))


def _sketch(domain: int, capacity: int, seed: bytes) -> Encoding:
    n = min(capacity, domain)
    require(n <= 2**24, "too large a sketch")
    pairs = isqrt(isqrt(1_250_000 * (n * (n - 1) // 2))) + 1
    quarter = max(16, pairs, -(-13 * n // 40) + isqrt(n) + 1)
    digits = next(d for d in (1, 2) if domain <= 4 * F31**d)
    cells = [Hash(seed, "sketch cell", number) for number in range(4)]
    check = Hash(seed, "sketch check", 0)

    def fill(indices: list[int], draw: Draw) -> np.ndarray:
        planes = np.zeros((digits + 2, 4 * quarter), np.uint64)
        for index, factor in zip(indices, stream(draw(32), "f31", len(indices)).tolist(), strict=True):
            column = [1, *(index // F31**d % F31 for d in range(digits)), check.below(index, F31)]
            for number, cell in enumerate(cells):
                place = number * quarter + cell.below(index, quarter)
                for plane, value in enumerate(column):
                    planes[plane, place] = (int(planes[plane, place]) + factor * value) % F31
        return planes.reshape(-1)

    return Encoding("f31", 4 * quarter * (digits + 2), capacity, fill)


class Hash:
    """A function of the round's seed, a purpose and a number (union-sizing.md 1)."""

    def __init__(self, seed: bytes, purpose: str, number: int) -> None:
        key = sha256(frame("union hash", seed, purpose.encode(), number.to_bytes(4, "big"))).digest()
        self._a, self._b = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))

    def below(self, index: int, bound: int) -> int:
        return ((_mix(_mix(index ^ self._a) ^ self._b) >> 32) * bound) >> 32


def _mix(z: int) -> int:
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31
