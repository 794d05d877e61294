"""What the model in a folder is, written down beside it: ``model.json``, and what its rows are called,
``model-catalogue.json``. With these, and the store, a bundle can be made without the data that it was trained on.
"""

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from sfsl.bundle.contents import OWN
from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue, write_catalogue
from sfsl.durable import write_whole
from sfsl.errors import InputError, ParameterError
from sfsl.installed import versions
from sfsl.models import package
from sfsl.models.kinds import kind_of
from sfsl.settings.run import DataSettings, ModelSettings, RunConfig, from_sections
from sfsl.settings.toml import to_toml
from sfsl.submodel import ModelSpec
from sfsl.training.task import Task

DESCRIBED, CATALOGUE = "model.json", "model-catalogue.json"
_FORMAT = "sfsl described model 1"
Trained = Literal["run", "https", "flower"]


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See ``Architecture`` and ``Provenance`` of a bundle, which have the same fields."""

    format: str = _FORMAT
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


def described(task: Task, config: RunConfig, trained: Trained, history: int) -> Described:
    """Describe a model. ``history``: how many clicks or words before a sample it is trained with."""
    kind = kind_of(task)
    return Described(
        trained=trained,
        kind=kind or OWN,
        network=type(task.module).__qualname__,
        arguments={} if kind is None else _arguments(task, kind),
        history=history,
        model=task.spec,
        dense=tuple((name, tuple(shape)) for name, shape in task.dense_shapes.items()),
        settings=_settings(task, config, kind),
        versions=versions(),
    )


def _settings(task: Task, config: RunConfig, kind: str | None) -> str:
    """Write the settings as a run file without comments. Of data it has what columns mean, and no path; where
    an app brought the model, it says which one that is."""
    data, model = config.data, config.model
    if data.path:
        data = msgspec.structs.replace(data, path=Path(data.path).name)
    if kind is not None and kind != model.kind:
        data = DataSettings(source="catalogue", path=CATALOGUE, held_out=data.held_out)
        known = {name: getattr(task.module, name) for name in ("width", "slopes", "layout") if hasattr(task.module, name)}
        model = msgspec.convert({"kind": kind, **known}, ModelSettings)
    text = to_toml(msgspec.structs.replace(config, data=data, model=model))
    return "\n".join(line for line in text.splitlines() if line and line[0] != "#") + "\n"


def config_of(settings: str, where: str) -> RunConfig:
    """Read the settings that a bundle or a folder has as text."""
    try:
        return from_sections(tomllib.loads(settings))
    except (tomllib.TOMLDecodeError, ParameterError) as error:
        raise InputError(f"{where} has settings that cannot be read: {error}") from None


def _arguments(task: Task, kind: str) -> dict[str, int | str | None]:
    """Return what its class is made with, where a bundle has its tables apart: one row of each will do."""
    rows, module = {table.name: table for table in task.tables}, task.module
    if kind == "lstm":
        word = rows["word"]
        return {"words": word.rows, "width": word.width - 1, "units": int(module.units)}  # type: ignore[arg-type]
    sizes: dict[str, int | str | None] = {"users": 1, "items": 1, "categories": 1 if "category" in rows else None}
    if kind == "logistic":
        return sizes
    return sizes | {name: getattr(module, name) for name in ("width", "slopes", "layout")}


def write_described(folder: Path, task: Task, about: Described, catalogue: Catalogue | None) -> None:
    """Write down what the model in a folder is, before anything is trained. Without a catalogue rows of a model
    of ours are called by their numbers; what those of an app's own are, only the app knows."""
    if catalogue is None and about.kind != OWN:
        catalogue = package.read_package(package.describe(task)).catalogue
    try:
        text = msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n"
        write_whole(folder / DESCRIBED, with_json_sum(text))
    except OSError as error:
        raise InputError(f"cannot write {folder / DESCRIBED}: {error.strerror}") from None
    if catalogue is not None:
        write_catalogue(catalogue, folder / CATALOGUE)


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
    if about.format != _FORMAT:
        raise InputError(f"{path} has the format {about.format[:40]!r}; this version reads {_FORMAT!r}")
    named = folder / CATALOGUE
    return about, read_catalogue(named) if named.exists() else None
