"""A sorted index set in few bytes (spec 9.4): Elias-Fano coding.

Of each index the low k bits are stored as they are and the high bits in unary, as one bitmap with a one
for each index. That takes about k + 2 bits per index, k = log2(domain / count): within two thirds of a
bit of what any code needs for a random set, and both directions are a few array operations. A set of more
than half its domain is a plain bitmap, which is then shorter.
"""

import numpy as np
from numpy.typing import NDArray

from sfsl.errors import InvalidMessage
from sfsl.union.encoding import Indices


def pack(indices: Indices, domain: int) -> bytes:
    """Ascending distinct indices below ``domain`` as bytes; ``unpack`` needs their number and the domain."""
    count = len(indices)
    if count == 0:
        return b""
    low_bits = _low_bits(count, domain)
    if _as_bitmap(count, domain, low_bits):
        held = np.zeros(domain, np.bool_)
        held[indices] = True
        return np.packbits(held).tobytes()
    values = indices.astype(np.uint64)
    shifts = np.arange(low_bits, dtype=np.uint64)
    low = ((values[:, None] >> shifts) & np.uint64(1)).astype(np.bool_)
    high = np.zeros(_high_size(count, domain, low_bits), np.bool_)
    high[(values >> np.uint64(low_bits)).astype(np.int64) + np.arange(count)] = True
    return np.packbits(low).tobytes() + np.packbits(high).tobytes()


def unpack(data: bytes, count: int, domain: int) -> Indices:
    """The indices, or ``InvalidMessage`` where the bytes are not what ``pack`` makes of such a set."""
    if count == 0:
        if data:
            raise InvalidMessage("an empty set with bytes in it")
        return np.zeros(0, np.int64)
    if not 0 < count <= domain:
        raise InvalidMessage(f"a set of {count} indices from a domain of {domain}")
    low_bits = _low_bits(count, domain)
    if _as_bitmap(count, domain, low_bits):
        if len(data) != (domain + 7) // 8:
            raise InvalidMessage(f"a bitmap of {len(data)} bytes for a domain of {domain}")
        return _exactly(count, np.flatnonzero(_bits(np.frombuffer(data, np.uint8), domain)))
    low_bytes = (count * low_bits + 7) // 8
    high_size = _high_size(count, domain, low_bits)
    if len(data) != low_bytes + (high_size + 7) // 8:
        raise InvalidMessage(f"a packed set of {len(data)} bytes is not one of {count} indices")
    raw = np.frombuffer(data, np.uint8)
    low = _bits(raw[:low_bytes], count * low_bits).reshape(count, low_bits).astype(np.uint64)
    ones = _exactly(count, np.flatnonzero(_bits(raw[low_bytes:], high_size)))
    values: NDArray[np.uint64] = (low << np.arange(low_bits, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    values += (ones - np.arange(count)).astype(np.uint64) << np.uint64(low_bits)
    if int(values[-1]) >= domain or np.any(values[1:] <= values[:-1]):
        raise InvalidMessage("a packed set that is not ascending or leaves its domain")
    return values.astype(np.int64)


def _low_bits(count: int, domain: int) -> int:
    return max(0, (domain // count).bit_length() - 1)


def _as_bitmap(count: int, domain: int, low_bits: int) -> bool:
    return domain <= count * low_bits + _high_size(count, domain, low_bits)


def _exactly(count: int, ones: NDArray[np.intp]) -> Indices:
    if len(ones) != count:
        raise InvalidMessage(f"a packed set of {len(ones)} indices says it has {count}")
    return ones.astype(np.int64)


def _high_size(count: int, domain: int, low_bits: int) -> int:
    return count + ((domain - 1) >> low_bits)


def _bits(raw: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(raw).astype(np.bool_)
    if bits[count:].any():
        raise InvalidMessage("a packed set with bits beyond its end")
    return bits[:count]
