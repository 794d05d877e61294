"""Shares that do not fit: corrected where few lie, and the dealer named where that can be told."""

from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.crypto import reed_solomon
from sfsl.crypto.secret import SHARE_BYTES, Secret
from sfsl.errors import KeyMismatch
from sfsl.secagg import masking
from world import World, tampered

changed = msgspec.structs.replace


def lie(shares: tuple[bytes, ...], about: range | None = None) -> tuple[bytes, ...]:
    """Other elements of the field than were dealt."""
    places = about if about is not None else range(len(shares))
    return tuple(
        bytes([share[0], share[1] ^ 1, *share[2:]]) if place in places else share
        for place, share in enumerate(shares)
    )


def opened(world: World, liars: Any = (), about: range | None = None) -> Any:
    for name, asked in world.requests.items():
        answer = world.clients[name].handle_unmask(asked)
        if name in liars:
            answer = changed(answer, shares=lie(answer.shares, about))
        world.server.receive(name, answer)
    world.server.close_phase()
    return world.server.opened.dense


def misdealing(world: World, dealer: str, *, commit: bool = True) -> World:
    """``dealer`` publishes other commitments (or mask keys) than belong to what it shares."""
    client, create = world.clients[dealer], world.clients[dealer].create_keys

    def other_keys() -> Any:
        keys = create()
        other = world.client(dealer).create_keys()
        fields = {"commitments": other.commitments} if commit else {"masks": other.masks}
        tampered(client, keys=changed(keys, **fields))
        return client.state.keys

    client.create_keys = other_keys  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize("about", [None, range(1, 2)], ids=["all", "one"])
@pytest.mark.parametrize("liar", ["c0", "c3", "c9"])
def test_one_lying_holder_costs_nothing(liar: str, about: range | None) -> None:
    """Whoever it lies about: survivors and dropouts."""
    world = World(n=10, threshold=7).to_unmask(drop={"c1"})
    names = [name for name in world.names if name != "c1"]
    assert np.array_equal(opened(world, {liar}, about), world.plain_sum(names))


def test_whoever_lies_about_all_costs_one_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def counted(*given: Any) -> Any:
        decoded.append(given)
        return reed_solomon.decode(*given)

    monkeypatch.setattr(masking, "decode", counted)
    world = World(n=16, threshold=11).to_unmask()
    assert np.array_equal(opened(world, {"c0", "c4"}), world.plain_sum())
    assert len(decoded) == 1


@pytest.mark.parametrize("commit", [True, False], ids=["seed", "mask key"])
def test_a_dealer_of_what_it_did_not_publish_is_named_and_nobody_else(commit: bool) -> None:
    """Also while a holder lies, who is not named: its dealer could have chosen it."""
    world = misdealing(World(n=12, threshold=7), "c2", commit=commit)
    world.to_unmask(drop=() if commit else {"c2"})
    with pytest.raises(KeyMismatch) as caught:
        opened(world, {"c5"})
    assert caught.value.clients == ("c2",)


def test_all_who_misdealt_are_named() -> None:
    world = misdealing(misdealing(World(n=12, threshold=7), "c2"), "c7").to_unmask()
    with pytest.raises(KeyMismatch) as caught:
        opened(world)
    assert caught.value.clients == ("c2", "c7")


def test_with_no_shares_to_spare_nobody_is_named() -> None:
    world = World(n=5, threshold=4).to_unmask()
    with pytest.raises(KeyMismatch, match="who lied cannot be told") as caught:
        opened(world, {"c0"})
    assert caught.value.clients == ()


def test_a_dealer_cannot_frame_a_holder() -> None:
    """It deals one holder a wrong share. The secret is corrected, and nobody is accused."""
    world = World(n=10, threshold=7)
    world.share()
    victim = world.clients["c4"]
    starts = world.starts()
    box = victim.state.shares[0].reveal()
    shares = tuple(box[start : start + SHARE_BYTES] for start in range(0, len(box), SHARE_BYTES))
    tampered(victim, shares={**victim.state.shares, 0: Secret(b"".join(lie(shares)))})
    for name, start in starts.items():
        world.server.receive(name, world.clients[name].create_masked(start, world.vectors[name]))
    world.requests = world.close()
    assert np.array_equal(opened(world), world.plain_sum())
