"""A public key has one form."""

import msgspec
import pytest

from sfsl.crypto.secret import require_canonical
from sfsl.errors import AuthenticationFailed
from world import World


@pytest.mark.parametrize("value", [2**255 - 19, 2**255 - 1, 2**255, 2**256 - 1])
def test_a_key_has_one_form(value: int) -> None:
    with pytest.raises(AuthenticationFailed):
        require_canonical(value.to_bytes(32, "little"))
    require_canonical((2**255 - 20).to_bytes(32, "little"))
    world = World(n=3, threshold=2).check_in()
    keys = [
        msgspec.structs.replace(one, channel=value.to_bytes(32, "little")) if name == "c1" else one
        for name, one in world.keys.items()
    ]
    with pytest.raises(AuthenticationFailed):
        type(world.server)(world.params, keys)
