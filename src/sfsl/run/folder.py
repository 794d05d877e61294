"""The folder of a run: made whole or not at all, and each file in it replaced whole."""

import shutil
from pathlib import Path

import msgspec

from sfsl.bundle.versions import versions
from sfsl.checksums import with_json_sum, with_last_line
from sfsl.durable import folder_made_whole, system_errors_as, write_new, write_whole
from sfsl.errors import InputError, ParameterError
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.toml import Sections, read_run_sections, to_toml

# What a run did before there was a setting for it: an older folder goes on as it began.
_BEFORE: Sections = {
    "data": {"world": "paper", "validation": 0.0},
    "model": {"layout": "paper"},
    "training": {"max_samples": 0, "rebuild": 0.0},
}
BEST = "best"


class RunFolder:
    """``config.toml``, ``versions.json``, ``metrics.jsonl``, ``summary.json``, ``store/`` and ``best/``."""

    def __init__(self, path: Path) -> None:
        """Open the folder of a run that exists."""
        self.path = path
        self.config_file, self.metrics_file = path / "config.toml", path / "metrics.jsonl"
        self.summary_file, self.store = path / "summary.json", path / "store"
        self.best = path / BEST
        if not self.config_file.is_file():
            raise InputError(f"no run at {path}: it has no config.toml; start one with sfsl run --out {path}")

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Make a folder with settings and versions in it, aside and then renamed: a crash leaves none."""
        require_free(path)
        with system_errors_as(InputError, f"make the folder {path}"), folder_made_whole(path) as aside:
            write_new(aside / "config.toml", with_last_line(to_toml(config).encode()))
            write_new(aside / "versions.json", _json(versions()))
        return cls(path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def config(self) -> RunConfig:
        try:
            return from_sections(self.sections())
        except ParameterError as error:
            raise ParameterError(f"{self.config_file}: {error}") from None

    def sections(self) -> Sections:
        """Read its settings, with what it did before there was a setting for it."""
        own = read_run_sections(self.config_file)
        return {name: _BEFORE.get(name, {}) | content for name, content in own.items()}

    def write_config(self, config: RunConfig) -> None:
        _replace(self.config_file, with_last_line(to_toml(config).encode()))

    def drop_summary(self) -> None:
        self.summary_file.unlink(missing_ok=True)

    def write_summary(self, summary: msgspec.Struct) -> None:
        _replace(self.summary_file, _json(summary))


def require_free(path: Path) -> None:
    if path.is_dir() and not any(path.iterdir()):
        return
    if (path / "config.toml").is_file():
        raise InputError(
            f"{path} holds a run already; continue it with --resume, or choose another folder with --out"
        )
    if path.exists():
        raise InputError(f"{path} exists and is not empty; choose another folder with --out")


def _json(value: object) -> bytes:
    return with_json_sum(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _replace(path: Path, data: bytes) -> None:
    advice = f"; rounds in the store stand. Mend it, then: sfsl run --out {path.parent} --resume"
    with system_errors_as(InputError, f"write {path}", advice):
        write_whole(path, data)
