"""The perturber: known answers, exact thresholds, tables by role, bad unions, speed."""

import sys
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hmac
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.hashes import SHA256

from sfsl.crypto.secret import Secret, SystemRandomness, derive
from sfsl.errors import InputError, ParameterError
from sfsl.privacy import PRESETS, Decoys, IndexPrivacy, Perturber, Tables
from sfsl.privacy.response import keyed_words
from sfsl.testing import SeededRandomness

KEY = Secret(bytes(range(32)))
GOODS = Tables(shared=("goods",))


def perturber(privacy: IndexPrivacy, real: Any, key: Secret = KEY) -> Perturber:
    return Perturber(key, privacy, GOODS, {"goods": real})


# docs/spec/privacy.md, section 3.3
WORDS = {
    0: 0x5A8C4C391E23A547,
    1: 0xECDDA55A22123CFA,
    2: 0x691A96AAE2DF9420,
    143_533: 0x8F8CB5D8AC178B18,
    2**63 - 1: 0xCD25E79B53B5AE9C,
}
DRAWN = [28_598, 2_467, 62_796]


def test_words_as_specified() -> None:
    words = keyed_words(derive(KEY, "permanent-answers", b"goods"), np.array(list(WORDS)))
    assert [f"{word:016x}" for word in words] == [f"{word:016x}" for word in WORDS.values()]


def test_decoys_as_specified() -> None:
    everything = IndexPrivacy(1, 1, 1, 1)  # every draw joins
    drawn = perturber(everything, []).union_input(Decoys(3, {"goods": 143_534}))["goods"]
    assert drawn.tolist() == sorted(DRAWN)


def test_words_as_another_implementer_would_compute_them() -> None:
    """From the specification alone: HKDF by hand, one block at a time."""

    def hmac_sha256(key: bytes, data: bytes) -> bytes:
        mac = hmac.HMAC(key, SHA256())
        mac.update(data)
        return mac.finalize()

    label, table = b"sfsl/1 permanent-answers", "Güter".encode()
    info = len(label).to_bytes(4, "big") + label + len(table).to_bytes(4, "big") + table
    table_key = hmac_sha256(hmac_sha256(bytes(32), KEY.reveal()), info + b"\x01")
    for index in (0, 1, 255, 256, 2**40 + 7):
        block = Cipher(AES256(table_key), ECB()).encryptor().update(index.to_bytes(16, "big"))  # noqa: S305
        expected = int.from_bytes(block[:8], "big")
        assert int(keyed_words(derive(KEY, "permanent-answers", table), np.array([index]))[0]) == expected


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_zero_and_one_are_exact(p: float) -> None:
    rows = np.arange(50_000)
    answers = perturber(IndexPrivacy(p, p, 1, 0), rows[::2]).answer({"goods": rows}, SeededRandomness(1))
    assert answers["goods"].all() if p else not answers["goods"].any()
    flips = perturber(IndexPrivacy(0.5, 0.5, p, p), rows[::2]).answer({"goods": rows}, SeededRandomness(1))
    assert flips["goods"].all() if p else not flips["goods"].any()


def test_a_threshold_is_the_floor_of_p_times_two_to_the_64() -> None:
    """The answer turns from no to yes exactly between p = word / 2^64 and the next float above."""
    rows = np.arange(64)
    words = keyed_words(derive(KEY, "permanent-answers", b"goods"), rows)
    for row, word in zip(rows, words, strict=True):
        p = float(word) / 2**64
        p = np.nextafter(p, 0) if int(p * 2**64) > int(word) else p
        assert int(p * 2**64) <= int(word)
        above = float(np.nextafter(float(np.nextafter(p, 1)), 1))
        assert not perturber(IndexPrivacy(p, 0, 1, 0), [row]).permanent("goods", np.array([row]))[0]
        assert perturber(IndexPrivacy(above, 0, 1, 0), [row]).permanent("goods", np.array([row]))[0]


def test_permanent_answers_stay_and_depend_on_key_table_and_row_only() -> None:
    rows = np.arange(3000)
    first = perturber(PRESETS["cpp4"], rows[:1000])
    again = perturber(PRESETS["cpp4"], rows[:1000])
    expected = first.permanent("goods", rows)
    assert np.array_equal(again.permanent("goods", rows), expected)
    # A row is answered the same whatever else the union holds.
    assert np.array_equal(first.permanent("goods", rows[5:2000:7]), expected[5:2000:7])
    two = Tables(shared=("goods", "shops"))
    both = Perturber(KEY, PRESETS["cpp4"], two, {"goods": rows[:1000], "shops": rows[:1000]})
    assert np.array_equal(both.permanent("goods", rows), expected)
    assert not np.array_equal(both.permanent("shops", rows), expected)


def test_instantaneous_answers_are_fresh_in_every_round() -> None:
    rows = np.arange(3000)
    client = perturber(PRESETS["cpp2"], rows[:1000])
    randomness = SeededRandomness(2)
    first, second = (client.answer({"goods": rows}, randomness)["goods"] for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("union", "says"),
    [
        ([], "empty"),
        ([3, 2], "ascending"),
        ([2, 2], "each row once"),
        ([-1, 2], "row numbers"),
        ([0.5, 2.0], "whole numbers"),
        ([[1, 2]], "flat"),
        (["a"], "whole numbers"),
        (np.array([2**63], np.uint64), "row numbers"),
    ],
)
def test_unions_that_are_refused(union: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        perturber(PRESETS["cpp2"], [1]).answer({"goods": union}, SeededRandomness(0))


def test_a_table_may_have_an_empty_union_if_not_all_have() -> None:
    both = Tables(shared=("goods", "shops"))
    client = Perturber(KEY, IndexPrivacy(1, 1, 1, 1), both, {"goods": [1], "shops": [2]})
    answers = client.answer({"goods": [], "shops": [2, 3]}, SeededRandomness(0))
    assert {name: bits.tolist() for name, bits in answers.items()} == {"goods": [], "shops": [True, True]}
    with pytest.raises(InputError, match="empty"):
        client.answer({"goods": [], "shops": []}, SeededRandomness(0))


SHOP = Tables(shared=("goods",), derived=("category",), personal=("user",))


@pytest.mark.parametrize(
    ("table", "says"),
    [("user", "personal and never leaves"), ("category", "follows from another"), ("brand", "does not have")],
)
def test_only_shared_tables_are_answered_for(table: str, says: str) -> None:
    client = Perturber(KEY, PRESETS["cpp3"], SHOP, {"goods": [0, 4]})
    with pytest.raises(InputError, match=says):
        client.answer({"goods": [1], table: [1]}, SeededRandomness(0))
    with pytest.raises(InputError, match=says):
        Perturber(KEY, PRESETS["cpp3"], SHOP, {"goods": [0, 4], table: [0]})
    with pytest.raises(InputError, match="lacks table 'goods'"):
        client.answer({}, SeededRandomness(0))


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ({"shared": ()}, "nothing to be private about"),
        ({"shared": ("a",), "personal": ("a",)}, "one role"),
        ({"shared": ("a",), "derived": ("b",), "personal": ("b",)}, "one role"),
    ],
)
def test_roles_that_contradict_each_other(roles: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        Tables(**roles)


def test_union_input_is_the_real_set_or_a_fixed_perturbed_one() -> None:
    real = np.arange(0, 40_000, 7)
    client = perturber(PRESETS["cpp2"], real)
    assert np.array_equal(client.union_input()["goods"], real)
    decoys = Decoys(draws=16_000, domain={"goods": 10**6})
    perturbed = client.union_input(decoys)["goods"]
    assert np.array_equal(perturbed, client.union_input(decoys)["goods"])
    assert np.all(np.diff(perturbed) > 0)
    # Every row of it has a permanent yes, so asking about it again shows nothing new.
    assert client.permanent("goods", perturbed).all()
    kept = np.isin(real, perturbed)
    assert np.array_equal(kept, client.permanent("goods", real))
    assert 700 < len(perturbed) - kept.sum() < 1300  # 16,000 draws of which one in 16 is a yes
    assert perturbed.max() < 10**6
    with pytest.raises(InputError, match="number of its rows"):
        client.union_input(Decoys(5, {"shops": 10}))
    with pytest.raises(ParameterError):
        Decoys(-1, {"goods": 10})
    with pytest.raises(ParameterError):
        Decoys(1, {"goods": 0})


def test_what_a_known_perturbed_set_says() -> None:
    privacy = PRESETS["cpp2"]
    decoys = Decoys(draws=10**6, domain={"goods": 1000})  # every row is drawn: nothing but p1 and p2 is left
    assert decoys.rate("goods") == pytest.approx(1)
    assert decoys.epsilon_owned(privacy, "goods") == pytest.approx(privacy.epsilon_infinity)
    assert Decoys(0, {"goods": 1000}).epsilon_owned(privacy, "goods") == np.inf
    assert Decoys(5, {"goods": 1000}).epsilon_owned(PRESETS["cpp1"], "goods") == np.inf
    assert Decoys(5, {"goods": 1}).rate("goods") == 1


def test_secrets_do_not_show() -> None:
    client = perturber(PRESETS["cpp2"], [123_456_789])
    assert "123456789" not in repr(client)
    assert bytes(range(32)).hex() not in repr(client)


def test_a_key_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ParameterError, match="32 bytes"):
        perturber(PRESETS["cpp2"], [1], Secret(b"short"))


def test_a_large_union_takes_no_more_python_than_a_small_one() -> None:
    """33 thousand rows take some milliseconds on any machine if none of them is a step of its own."""
    rng = np.random.default_rng(0)
    union = np.sort(rng.choice(143_534, 33_000, replace=False))
    client = perturber(PRESETS["cpp2"], rng.choice(union, 301, replace=False))
    client.answer({"goods": union}, SystemRandomness())  # what is done once
    steps = []
    for asked in (union[:1000], union):
        calls: list[str] = []
        sys.setprofile(lambda frame, event, _, calls=calls: calls.append(event))  # type: ignore[misc]
        try:
            client.answer({"goods": asked}, SystemRandomness())
        finally:
            sys.setprofile(None)
        steps.append(len(calls))
    assert 0 < steps[1] < 1.5 * steps[0] < 3000
