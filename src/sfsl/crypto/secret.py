"""A byte string that does not show itself."""

from typing import NoReturn


class Secret:
    """Holds secret bytes; ``reveal()`` is the only way to them. Cannot be printed, compared or pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return "Secret(redacted)"

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("secrets are not compared; verify what was published instead")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not serialised")
