"""How attacks are written down: each names the refusal it meets, and the check whose absence lets it through.

An attack is a function that tries and returns whether it gained something. Every attack runs twice:
against the code as it is, where it must gain nothing, and against a copy weakened by ``weaken``, where
it must succeed. So every check is known to be the one that stops the attack.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Weaken = Callable[[pytest.MonkeyPatch], None]


@dataclass
class Attack:
    run: Callable[[], bool]
    refusal: type[Exception] | None  # None: nothing is refused, but nothing is gained either
    weaken: Weaken

    def __repr__(self) -> str:
        return self.run.__name__


def collector() -> tuple[list[Attack], Callable[..., Callable[[Callable[[], bool]], Attack]]]:
    found: list[Attack] = []

    def attack(*, refusal: type[Exception] | None, weaken: Weaken) -> Callable[[Callable[[], bool]], Attack]:
        def register(run: Callable[[], bool]) -> Attack:
            found.append(Attack(run, refusal, weaken))
            return found[-1]

        return register

    return found, attack


def remove(target: object, name: str, result: object = None) -> Weaken:
    """Weaken by replacing a check with one that always passes."""

    def weaken(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(target, name, lambda *_, **__: result)

    return weaken


def forget(target: type, name: str) -> Weaken:
    """Weaken by a step that answers and leaves its machine in the state that it was in."""
    honest = getattr(target, name)

    def forgetful(self: Any, *given: Any, **named: Any) -> Any:
        before = self.state
        answer = honest(self, *given, **named)
        self._state = before
        return answer

    return lambda patch: patch.setattr(target, name, forgetful)


def assert_stopped(attack: Attack) -> None:
    if attack.refusal is None:
        assert not attack.run()
        return
    with pytest.raises(attack.refusal) as caught:
        attack.run()
    assert type(caught.value) is attack.refusal


def assert_gains_when_weakened(attack: Attack) -> None:
    with pytest.MonkeyPatch.context() as patch:
        attack.weaken(patch)
        assert attack.run()
