"""The numbers a row begins with: a function of seed, table and row alone (spec submodel 6).

Nothing but integer arithmetic and one float32 product, so that every machine gets the same bits.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from sfsl.arrays import Indices, Values
from sfsl.crypto.kdf import digest
from sfsl.submodel.tables import Table

_WORDS_PER_BLOCK = 4
_CHUNK_ROWS = 1 << 14  # bounds the memory beside the result, whatever is asked for


def initial_rows(seed: bytes, table: Table, rows: Indices) -> Values:
    """Uniform in ±table.initial, [rows, width]."""
    values = np.zeros((len(rows), table.width), np.float32)
    if table.initial == 0:
        return values
    key = digest("initial rows", seed, table.name.encode())
    scale = np.float32(table.initial / 2**23)
    for start in range(0, len(rows), _CHUNK_ROWS):
        some = rows[start : start + _CHUNK_ROWS]
        # 24 bits with a sign are what a float32 holds exactly.
        values[start : start + len(some)] = (_words(key, some, table.width) >> 8) * scale
    return values


def _words(key: bytes, rows: Indices, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Counter mode, with a counter of row number and block number: each row has its own stream."""
    blocks = np.empty((len(rows), -(-width // _WORDS_PER_BLOCK), 2), ">u8")
    blocks[:, :, 0] = rows[:, None]
    blocks[:, :, 1] = np.arange(blocks.shape[1])
    encryptor = Cipher(AES256(key), ECB()).encryptor()  # noqa: S305 -- a PRF, not encryption
    words = np.frombuffer(encryptor.update(blocks.tobytes()), "<i4")
    return words.reshape(len(rows), -1)[:, :width]
