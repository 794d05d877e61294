"""The model as a client knows it: its name, its tables, its public maps."""

from dataclasses import dataclass

from sfsl.privacy import Tables
from sfsl.submodel import ModelSpec, RowMaps


@dataclass(frozen=True)
class ClientModel:
    """``digest`` is that of the package from which ``spec`` and ``maps`` were built."""

    digest: bytes
    spec: ModelSpec
    maps: RowMaps

    @property
    def tables(self) -> Tables:
        """Its tables by what a client may say about them."""
        named: dict[str, list[str]] = {"shared": [], "derived": [], "personal": []}
        for table in self.spec.tables:
            named[table.kind].append(table.name)
        return Tables(**{kind: tuple(names) for kind, names in named.items()})
