"""Run folders, read for comparison: strict about what is broken, lenient about what was not measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from sfsl.bundle.contents import LINES, MANIFEST, SUMMARY
from sfsl.bundle.described import config_of, read_described
from sfsl.bundle.file import read_bundle
from sfsl.checksums import without_json_sum
from sfsl.errors import InputError
from sfsl.rounds.exchanges import ORDER, Exchange
from sfsl.rounds.record import RoundRecord
from sfsl.scores import CalibrationBin, Evaluation, verdict
from sfsl.service.folder import scan_lines
from sfsl.settings.toml import read_sections

# In the order in which they happen.
EXCHANGES = (Exchange.CHECK_IN, *ORDER)
LOST = (*ORDER, "late", "declined")
# Schemes that hide something; with plain sums they do not either.
_SECURE = ("sfsl", "hot", "sfl")


@dataclass(frozen=True)
class Run:
    """What a run folder says. ``summary`` is empty where the run has not ended, or has gone on since;
    aborted rounds cost too, but means are over rounds that were not aborted. ``last``: it is judged by its
    last model, not by the best."""

    name: str
    lines: tuple[RoundRecord, ...]
    config: dict[str, Any]
    summary: dict[str, Any]
    versions: dict[str, Any]
    last: bool = False

    @property
    def scheme(self) -> str:
        return str(_within(self.config, "round").get("scheme", "sfsl"))

    @property
    def sums(self) -> str:
        """``masked``; ``plain`` where plain ones stand in for them; ``none``: the scheme hides nothing."""
        if self.scheme not in _SECURE:
            return "none"
        return "plain" if _within(self.config, "round").get("sums") == "plain" else "masked"

    def setting(self, section: str, key: str) -> Any:
        """Return a setting; None where an older run has none of that name."""
        return _within(self.config, section).get(key)

    @property
    def predicted(self) -> bool:
        """Whether its bytes are what the plan says of masked sums, since plain ones stood in for them."""
        return self.sums == "plain" and not any(line.bytes_up for line in self.done)

    def traffic(self, cost: str) -> dict[str, float]:
        """Return the mean ``bytes_up`` or ``bytes_down`` by exchange; where none could be measured, what was
        predicted."""
        if not self.predicted:
            return self.mean(cost)
        found = _within(_within(self.summary, "predicted"), cost)
        return {name: float(found[name]) for name in EXCHANGES if isinstance(found.get(name), int | float)}

    @property
    def asked(self) -> int:
        """Clients, counted anew in each round; none where all is trained in one place."""
        return sum(line.cohort for line in self.lines)

    @property
    def done(self) -> list[RoundRecord]:
        return [line for line in self.lines if line.aborted is None and not (line.lost or line.restored)]

    @property
    def aborted(self) -> int:
        return sum(line.aborted is not None for line in self.lines)

    @property
    def dropped(self) -> int:
        return sum(sum(line.dropped.values()) for line in self.lines)

    @property
    def late(self) -> int:
        return sum(line.late for line in self.lines)

    @property
    def declined(self) -> int:
        return sum(sum(line.declined.values()) for line in self.lines)

    @property
    def best(self) -> RoundRecord | None:
        """The line whose model was the best on validation devices; None where they chose none."""
        keep = str(_within(self.config, "run").get("keep", "log_loss"))
        known = [(worth, line) for line in self.lines if (worth := line.validation(keep)) is not None]
        return min(known, key=lambda one: one[0])[1] if known else None

    @property
    def judged(self) -> RoundRecord:
        """The line of the model by which the run is judged: the best, or else the last that was tested."""
        if self.best is not None and not self.last:
            return self.best
        return next((line for line in reversed(self.lines) if line.auc is not None), self.lines[-1])

    def curve(self, figure: str) -> list[tuple[int, float]]:
        """Return (round, value) of a figure such as ``auc`` or ``log_loss`` where it was measured."""
        found = [(line.round, getattr(line, figure)) for line in self.lines]
        return [(number, value) for number, value in found if value is not None]

    def baseline(self, kind: str, figure: str) -> float | None:
        """Return the ``auc`` or ``log_loss`` of ``base_rate`` or ``popularity``, where a summary has it."""
        value = _within(_within(self.summary, "baselines"), kind).get(figure)
        return float(value) if isinstance(value, int | float) else None

    @property
    def calibration(self) -> tuple[CalibrationBin, ...]:
        """What the scores of the model by which the run is judged said and what came of it; empty where that
        is not known, as of the last model where there is a better one."""
        if self.last and self.best not in (None, self.judged):
            return ()
        try:
            return msgspec.convert(self.summary.get("calibration", ()), tuple[CalibrationBin, ...])
        except msgspec.ValidationError:
            return ()

    @property
    def verdict(self) -> str:
        """One sentence on what the model is worth; empty where no summary has it."""
        if not (self.last and self.summary):
            return str(self.summary.get("verdict") or "")
        line = self.judged
        return verdict(
            Evaluation(
                samples=0,
                auc=line.auc,
                log_loss=line.log_loss,
                base_log_loss=self.baseline("base_rate", "log_loss"),
                popularity_auc=self.baseline("popularity", "auc"),
                popularity_log_loss=self.baseline("popularity", "log_loss"),
            ),
            line.round,
        )

    def mean(self, cost: str) -> dict[str, float]:
        """Return the mean ``bytes_up``, ``bytes_down``, ``client_seconds`` or ``server_seconds`` by exchange,
        without exchanges in which it was never measured."""
        bills: list[dict[str, float]] = [getattr(line, cost) for line in self.done]
        return {
            exchange: fmean(bill.get(exchange, 0.0) for bill in bills)
            for exchange in EXCHANGES
            if any(exchange in bill for bill in bills)
        }

    def lost(self) -> dict[str, float]:
        """Return the shares of the cohorts that vanished, by exchange, were late, declined; empty if none."""
        if not self.asked:
            return {}
        vanished = {name: sum(line.dropped.get(name, 0) for line in self.lines) for name in ORDER}
        counts = vanished | {"late": self.late, "declined": self.declined}
        return {name: count / self.asked for name, count in counts.items()}


def read_runs(folders: Sequence[Path], *, last: bool = False) -> list[Run]:
    """Read runs, in the order given. What stands before a folder's name tells those of one name apart.
    ``last``: judge them by their last models."""
    if not folders:
        raise InputError("name at least one run folder")
    resolved = [folder.resolve() for folder in folders]
    if len(set(resolved)) != len(resolved):
        raise InputError("the same run folder is named twice")
    names = [folder.name for folder in resolved]
    return [
        replace(_read(folder, name if names.count(name) == 1 else f"{folder.parent.name}/{name}"), last=last)
        for folder, name in zip(resolved, names, strict=True)
    ]


def _read(folder: Path, name: str) -> Run:
    files = _files(folder)
    lines, summary = _lines(files), _json(files, SUMMARY)
    if summary.get("rounds") != len(lines):
        summary = {}  # of a run that has gone on: there were more exposures than it says
    run = Run(name, lines, files.config, summary, files.versions)
    return replace(run, name=f"{name} (PLAIN SUMS)") if run.sums == "plain" else run


@dataclass(frozen=True)
class _Files:
    """What a report reads: settings and versions, and other files as bytes, by name."""

    where: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    content: dict[str, bytes]


def _files(path: Path) -> _Files:
    """Read the folder of a run, a server or a server on Flower, or a bundle of one."""
    if not path.exists():
        raise InputError(f"{path} is not a folder; name one that `sfsl run` wrote, a server's, or a bundle")
    if path.is_file() or (path / MANIFEST).is_file():
        manifest, content = read_bundle(path)
        about = manifest.provenance
        return _Files(path, _toml(about.settings, path), about.versions, content)
    names = (LINES, SUMMARY, "versions.json")
    content = {name: _content(path / name) for name in names if (path / name).exists()}
    if (path / "config.toml").is_file() or (found := read_described(path)) is None:
        config = read_sections(path / "config.toml")
        return _Files(path, config, _json(_Files(path, {}, {}, content), "versions.json"), content)
    return _Files(path, _toml(found[0].settings, path), found[0].versions, content)


def _toml(settings: str, where: Path) -> dict[str, Any]:
    config: dict[str, Any] = msgspec.to_builtins(config_of(settings, str(where)))
    return config


def _within(config: dict[str, Any], section: str) -> dict[str, Any]:
    found = config.get(section)
    return found if isinstance(found, dict) else {}


def _lines(files: _Files) -> tuple[RoundRecord, ...]:
    path, lines = files.where / LINES, list[RoundRecord]()
    if LINES not in files.content:
        raise InputError(f"cannot read {path}: it is not there; is this the folder of a run or of a server?")
    # What stands after the last line break is a line that is being written, or that a crash cut off.
    for number, line in enumerate(scan_lines(files.content[LINES]), start=1):
        if not isinstance(line, RoundRecord):
            raise InputError(f"{path}, line {number} is not a round's metrics: {line}")
        if lines and line.round <= lines[-1].round:
            raise InputError(
                f"{path}, line {number}: round {line.round} after round {lines[-1].round}; the lines of two "
                "runs may have been mixed"
            )
        lines.append(line)
    if not lines:
        raise InputError(f"{path} holds no round yet; let the run finish at least one")
    return tuple(lines)


def _json(files: _Files, name: str) -> dict[str, Any]:
    path = files.where / name
    if name not in files.content:
        return {}
    try:
        content = without_json_sum(files.content[name], str(path))
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a JSON object: {error}") from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; is this the folder of a run?") from None
