"""Masks over vectors that are longer than the buffer they are drawn through, and secrets that are rebuilt."""

import numpy as np
import pytest

from sfsl.crypto.ring import CHUNK_BYTES, RINGS, MaskStream, Ring, Words, uniform
from sfsl.crypto.secret import Secret, split
from sfsl.errors import KeyMismatch
from sfsl.secagg.masking import Masker, Rebuilding, Selection
from sfsl.secagg.messages import Layout, TableShape, point
from sfsl.testing import SeededRandomness

KEY = Secret(bytes(range(32)))
ROWS = np.flatnonzero(np.arange(5000) % 7)  # most, so that the rows of a table do not fit into one buffer


def one_stream(ring: Ring, words: int) -> Words:
    """The stream, drawn in one go."""
    stream = ring.zeros(words)
    MaskStream(KEY, ring).fill(stream)
    return stream


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
@pytest.mark.parametrize("beyond", [-1, 0, 1, 65_537])
@pytest.mark.parametrize(
    "selection", [(ROWS, None), (None, ROWS[ROWS < 900]), (ROWS, ROWS[:0])], ids=range(3)
)
def test_masks_are_one_stream_over_dense_part_and_rows_in_order(
    ring: Ring, beyond: int, selection: Selection
) -> None:
    dense = CHUNK_BYTES // ring.word_bytes + beyond
    layout = Layout(dense=dense, tables=(TableShape(rows=5000, width=33), TableShape(rows=900, width=4)))
    plain = uniform(ring, layout.words, SeededRandomness("plain"))
    vector = plain.copy()
    masker = Masker(ring, vector, layout)
    masker.add(KEY, selection)

    places = np.arange(layout.words)
    tables = (
        places[dense : dense + 5000 * 33].reshape(5000, 33),
        places[dense + 5000 * 33 :].reshape(900, 4),
    )
    parts = [table if rows is None else table[rows] for table, rows in zip(tables, selection, strict=True)]
    masked = np.concatenate([places[:dense], *(part.ravel() for part in parts)])
    wanted = plain.copy()
    some = wanted[masked]
    ring.add(some, one_stream(ring, len(masked)))
    wanted[masked] = some
    assert np.array_equal(vector, wanted)

    masker.subtract(KEY, selection)
    assert np.array_equal(vector, plain)


def test_a_row_that_is_wider_than_the_buffer() -> None:
    ring = RINGS["z32"]
    width = CHUNK_BYTES // ring.word_bytes + 3
    vector = ring.zeros(3 * width)
    Masker(ring, vector, Layout(dense=0, tables=(TableShape(rows=3, width=width),))).add(
        KEY, [np.array([0, 2])]
    )
    stream = one_stream(ring, 2 * width)
    assert np.array_equal(vector, np.concatenate([stream[:width], ring.zeros(width), stream[width:]]))


def test_shares_beyond_the_threshold_are_not_looked_at_where_the_first_ones_fit() -> None:
    holders = [2, 3, 5, 7]
    dealt = split(KEY, 3, [point(one) for one in holders], SeededRandomness("shares"))
    shares = {holder: int.from_bytes(share, "big") for holder, share in zip(holders, dealt, strict=True)}

    def checked(secret: Secret) -> bytes:
        if secret.reveal() != KEY.reveal():
            raise KeyMismatch("not the one that was dealt")
        return secret.reveal()

    shares[7] += 1  # a lie that four shares could find and not correct
    assert Rebuilding(3).secret("dealer", shares, checked) == KEY.reveal()
    shares[2] += 1
    with pytest.raises(KeyMismatch, match="no shares to spare"):
        Rebuilding(3).secret("dealer", shares, checked)


def test_lies_beyond_what_can_be_corrected_are_the_dealers_as_are_those_of_a_dealer() -> None:
    """Five shares of a secret that three rebuild: one of them may be wrong."""
    holders = [2, 3, 5, 7, 8]
    dealt = split(KEY, 3, [point(one) for one in holders], SeededRandomness("shares"))
    sound = {holder: int.from_bytes(share, "big") for holder, share in zip(holders, dealt, strict=True)}

    def checked(secret: Secret) -> bytes:
        if secret.reveal() != KEY.reveal():
            raise KeyMismatch("not the one that was published")
        return secret.reveal()

    def never(secret: Secret) -> bytes:
        raise KeyMismatch("not the one that was published")

    rebuilding = Rebuilding(3)
    assert rebuilding.secret("ann", sound | {3: sound[3] + 1}, checked) == KEY.reveal()
    assert rebuilding.doubted == {3}
    for shares, check, says in (
        (sound | {3: sound[3] + 1, 5: sound[5] + 7}, checked, "the shares do not belong to one secret"),
        (sound, never, "not the one that was published"),
    ):
        with pytest.raises(KeyMismatch, match=f"^{says}$") as caught:
            rebuilding.secret("ann", shares, check)
        assert caught.value.clients == ("ann",)
        assert rebuilding.doubted == {3}
