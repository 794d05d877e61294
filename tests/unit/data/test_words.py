"""Words: how they are cut and windowed, and that they are not shown."""

import numpy as np
import pytest

from sfsl.data import Role, Speech, speech_of
from sfsl.data.words import words_of
from sfsl.errors import InputError


@pytest.fixture
def speech() -> Speech:
    return speech_of(
        [
            Role("p", "a", ("To be, or not to be:", "that is the question.")),
            Role("p", "b", ("Words, words, words.",)),
            Role("p", "c", ("O!",)),
        ]
    )


def test_words() -> None:
    said = ["Walk'd he, 12 o'clock?", "a well-beseeming  _rank_ -- Él'"]
    assert words_of(said) == ["walk'd", "he", "o'clock", "a", "well-beseeming", "rank", "él"]


def test_windows_are_the_words_before_and_the_next(speech: Speech) -> None:
    train, test = speech.windows(0.3, context=3)
    name = speech.vocabulary
    assert list(name) == sorted(set(name))
    one = train.client(0).samples.columns
    said = [
        ([name[row] for row in before if row >= 0], name[following])
        for before, following in zip(one["context"], one["target"], strict=True)
    ]
    assert said[:2] == [(["to"], "be"), (["to", "be"], "or")]
    assert said[-1] == (["to", "be", "that"], "is")
    assert (len(said), len(test.client(0))) == (7, 4)  # of nine windows two are for testing, each twice
    assert one["label"].all()
    assert train.clients.tolist() == [0, 1]  # who says one word has no next


def test_what_did_not_come_next_is_as_common_as_what_did(speech: Speech) -> None:
    test = speech.windows(0.5, context=3)[1]
    columns = test.client(0).samples.columns
    right = columns["label"] == 1
    assert right.sum() == (~right).sum() == 4
    assert sorted(columns["target"][right]) == sorted(columns["target"][~right])
    assert np.array_equal(columns["context"][right], columns["context"][~right])
    assert len(test.client(1)) == 1  # a single word has nothing to be told from


def test_words_are_not_shown(speech: Speech) -> None:
    train = speech.windows(0.2)[0]
    for one in (speech, train, train.client(0)):
        assert "quest" not in repr(one)


@pytest.mark.parametrize(("share", "context"), [(0.0, 5), (1.0, 5), (0.2, 0)])
def test_windows_that_cannot_be_are_refused(speech: Speech, share: float, context: int) -> None:
    with pytest.raises(InputError):
        speech.windows(share, context)


def test_roles_without_words_are_refused() -> None:
    with pytest.raises(InputError, match="says a word"):
        speech_of([Role("p", "r", ("12 ... 7",))])
