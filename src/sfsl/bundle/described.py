"""What the model in a folder is, written down beside it: ``model.json``, and what its rows are called,
``model-catalogue.json``. With these, and the store, a bundle can be made without the training data.
"""

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from sfsl.checksums import without_json_sum
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue
from sfsl.errors import InputError, ParameterError
from sfsl.settings.run import RunConfig, from_sections
from sfsl.submodel import ModelSpec

DESCRIBED, CATALOGUE = "model.json", "model-catalogue.json"
FORMAT = "sfsl described model 1"
Trained = Literal["run", "https", "flower"]


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See ``Architecture`` and ``Provenance`` of a bundle, which have the same fields."""

    format: str = FORMAT
    trained: Trained
    kind: str
    network: str
    arguments: dict[str, int | str | None]
    history: int
    model: ModelSpec
    dense: tuple[tuple[str, tuple[int, ...]], ...]
    settings: str
    versions: dict[str, str]

    @property
    def config(self) -> RunConfig:
        return config_of(self.settings, DESCRIBED)


def config_of(settings: str, where: str) -> RunConfig:
    """Read the settings that a bundle or a folder has as text."""
    try:
        return from_sections(tomllib.loads(settings))
    except (tomllib.TOMLDecodeError, ParameterError) as error:
        raise InputError(f"{where} has settings that cannot be read: {error}") from None


def read_described(folder: Path) -> tuple[Described, Catalogue | None] | None:
    """Read what the model in a folder is; None where an older version made the folder."""
    path = folder / DESCRIBED
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    try:
        about = msgspec.json.decode(without_json_sum(data, str(path)), type=Described)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} does not describe a model: {error}") from None
    if about.format != FORMAT:
        raise InputError(f"{path} has the format {about.format[:40]!r}; this version reads {FORMAT!r}")
    named = folder / CATALOGUE
    return about, read_catalogue(named) if named.exists() else None
