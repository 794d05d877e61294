"""Write down, beside a store, what the model in it is (``Described``)."""

from pathlib import Path

import msgspec

from sfsl.bundle.contents import OWN
from sfsl.bundle.described import CATALOGUE, DESCRIBED, Described, Trained
from sfsl.bundle.versions import versions
from sfsl.checksums import with_json_sum
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import write_catalogue
from sfsl.durable import write_whole
from sfsl.errors import InputError
from sfsl.models import package
from sfsl.models.kinds import kind_of
from sfsl.settings.run import DataSettings, RunConfig
from sfsl.settings.toml import to_toml
from sfsl.training.task import Task

_SHAPE = ("width", "slopes", "layout")


def describe(task: Task, config: RunConfig, trained: Trained, history: int) -> Described:
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
    if kind is not None:
        if kind != model.kind:
            data = DataSettings(source="catalogue", path=CATALOGUE, held_out=data.held_out)
        shape = {name: one for name in _SHAPE if (one := getattr(task.module, name, None)) is not None}
        shape |= {"kind": kind, "initial": max(table.initial for table in task.tables)}
        if kind == "lstm":
            shape["width"] = task.tables[0].width - 1
        model = msgspec.structs.replace(model, **shape)
    text = to_toml(msgspec.structs.replace(config, data=data, model=model))
    return "\n".join(line for line in text.splitlines() if line and line[0] != "#") + "\n"


def _arguments(task: Task, kind: str) -> dict[str, int | str | None]:
    """Return what its class is made with, where a bundle has its tables apart: one row of each will do."""
    rows, module = {table.name: table for table in task.tables}, task.module
    if kind == "lstm":
        word = rows["word"]
        return {"words": word.rows, "width": word.width - 1, "units": int(module.units)}  # type: ignore[arg-type]
    categories = 1 if "category" in rows else None
    sizes: dict[str, int | str | None] = {"users": 1, "items": 1, "categories": categories}
    if kind == "logistic":
        return sizes
    return sizes | {name: getattr(module, name) for name in _SHAPE}


def write_described(folder: Path, task: Task, about: Described, catalogue: Catalogue | None) -> None:
    """Write down what the model in a folder is, before anything is trained. Without a catalogue, rows of
    a model of ours are called by their numbers; what those of an app's own are, only the app knows."""
    if catalogue is None and about.kind != OWN:
        catalogue = package.read_package(package.describe(task)).catalogue
    try:
        text = msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n"
        write_whole(folder / DESCRIBED, with_json_sum(text))
    except OSError as error:
        raise InputError(f"cannot write {folder / DESCRIBED}: {error.strerror}") from None
    if catalogue is not None:
        write_catalogue(catalogue, folder / CATALOGUE)
