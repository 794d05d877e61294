"""How a run begins, and how one goes on."""

from pathlib import Path

import msgspec

from sfsl.errors import InputError
from sfsl.run.fleet import GIVEN, Fleet, build_fleet, require_clients
from sfsl.run.folder import RunFolder, require_free
from sfsl.run.runner import Runner
from sfsl.run.setup import require_engine, resolved
from sfsl.run.trackers import require_trackers
from sfsl.settings.run import RunConfig

# What may change from one part of a run to the next; all else is what the rounds so far were made with.
# Engines make the same model bit for bit, so a run may go on with another.
_FREE = ("rounds", "evaluate_every", "keep", "patience", "threads", "engine", "track")
_FREE_SECTION = "ray"


def begin(path: Path, config: RunConfig, fleet: Fleet | None = None) -> Runner:
    """Begin a run, with ``fleet`` where it is given. The folder is made once the data and the settings have
    proved good, and not left behind where its engine could not start."""
    require_free(path)
    require_engine(config)
    require_trackers(config.run.track)
    config, fleet = _peopled(config, fleet)
    config = resolved(config, fleet)
    folder = RunFolder.create(path, config)
    try:
        return Runner(folder, config, fleet)
    except BaseException:
        folder.remove()
        raise


def resume(path: Path, wanted: RunConfig, fleet: Fleet | None = None) -> Runner:
    """Go on with the run at ``path`` after its store's last round, given the fleet that it began with."""
    folder = RunFolder(path)
    wanted = with_whole_path(wanted) if fleet is None else given(wanted)
    config = continued(folder.config(), wanted)
    require_engine(config)
    require_trackers(config.run.track)
    return Runner(folder, *_peopled(config, fleet))


def given(config: RunConfig) -> RunConfig:
    """Settings that say that the data are no file's: a fleet was handed over in Python."""
    data = msgspec.structs.replace(config.data, source="python", path=GIVEN)
    return msgspec.structs.replace(config, data=data)


def _peopled(config: RunConfig, fleet: Fleet | None) -> tuple[RunConfig, Fleet]:
    if fleet is None:
        config = with_whole_path(config)
        return config, build_fleet(config)
    config = given(config)
    require_clients(config, fleet)
    return config, fleet


def continued(stored: RunConfig, wanted: RunConfig) -> RunConfig:
    """Return the stored settings with those changes that a run allows; refuse any other."""
    old, new, free = _flat(stored), _flat(wanted), [f"run.{name}" for name in _FREE]
    for key, value in new.items():
        if value not in (old[key], "auto") and key not in free and not key.startswith(f"{_FREE_SECTION}."):
            raise InputError(
                f"{key} is {old[key]!r} in this run and {value!r} here. A run keeps its settings, except "
                f"{', '.join(free)} and [{_FREE_SECTION}]; leave the change out, or begin another run with "
                "--out"
            )
    loop = msgspec.structs.replace(stored.run, **{name: getattr(wanted.run, name) for name in _FREE})
    return msgspec.structs.replace(stored, run=loop, ray=wanted.ray)


def with_whole_path(config: RunConfig) -> RunConfig:
    """Make the path of the data whole: a run may be resumed from another folder."""
    if config.data.path in ("", GIVEN):
        return config
    path = str(Path(config.data.path).resolve())
    return msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, path=path))


def _flat(config: RunConfig) -> dict[str, object]:
    sections = msgspec.to_builtins(config)
    return {f"{name}.{key}": value for name, content in sections.items() for key, value in content.items()}
