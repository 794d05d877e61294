"""What is closed at the end of a ``with``."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Whoever has a ``close`` can be used in a ``with``, which calls it however the block ends."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
