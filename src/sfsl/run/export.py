"""A bundle of the model in a folder: of a run, of a server, or of a server on Flower."""

from pathlib import Path
from typing import Any

import msgspec

from sfsl.bundle.contents import LINES, ONNX, SUMMARY, Manifest
from sfsl.bundle.described import Described
from sfsl.bundle.file import require_free, write_bundle
from sfsl.bundle.pack import Files, pack
from sfsl.checksums import without_json_sum
from sfsl.rounds.record import RoundRecord
from sfsl.run.load import Model
from sfsl.run.summary import Summary
from sfsl.service.folder import REGISTRY, scan_lines
from sfsl.service.registry import Registry

_PERSONAL = (
    "No row of any person is in this bundle: what belongs to one client stays with it. Whoever predicts "
    "rebuilds such rows from samples."
)
_COVERS = {
    "sfsl": (
        "epsilon is per row and for the answers to which rows a client has; unions and sums reveal more with "
        "every exposure (docs/privacy.md)"
    ),
    "hot": (
        "epsilon at delta is for everything that left a client, in all rounds, surveys included, against a "
        "curious server with which at most the stated share of a cohort colludes"
    ),
    "sfl": "every client asked for every row; secure sums of exact updates, without noise",
}
_NOTHING = "this scheme hides nothing"
_PLAIN = "sums were added in the open, in a simulation: nothing was hidden from who ran it"
_WORTH = (
    "auc", "log_loss", "ndcg", "recall", "auc_valid", "log_loss_valid", "auc_secure", "auc_secure_error",
    "log_loss_secure", "log_loss_secure_error",
)  # fmt: skip


def export_model(model: Model, out: Path, *, onnx: bool = False) -> Manifest:
    """Write a model as a bundle. ``onnx``: with the scoring function as ONNX in it."""
    require_free(out)
    manifest, files = packed(model)
    if onnx:
        from sfsl.bundle.onnx_file import onnx_bytes

        files[ONNX] = onnx_bytes(manifest, files, str(model.path))
    write_bundle(out, manifest, files)
    return manifest


def packed(model: Model) -> tuple[Manifest, Files]:
    """Return the manifest and the files of a bundle."""
    about, catalogue = model.described
    with model.open() as store:
        manifest, files = pack(
            store,
            about,
            catalogue,
            which=model.which,
            metrics=_metrics(model),
            privacy=_privacy(model, about),
            correction=model.correction,
        )
    # What a report is made of.
    beside = {name: model.path / name for name in (LINES, SUMMARY)}
    return manifest, files | {name: path.read_bytes() for name, path in beside.items() if path.is_file()}


def _metrics(model: Model) -> dict[str, Any]:
    """Return what is written down of this model's worth, and nothing that is computed now."""
    lines = [line for line in _lines(model.path) if line.round == model.round]
    found = {name: value for line in lines for name in _WORTH if (value := getattr(line, name)) is not None}
    summary = _summary(model.path)
    if summary is None:
        return found
    exported = summary.best.round if summary.best else summary.learning.auc_round
    if exported == model.round:
        found |= {"verdict": summary.verdict, "baselines": msgspec.to_builtins(summary.baselines)}
    return found


def _privacy(model: Model, about: Described) -> dict[str, Any]:
    config, summary = about.config, _summary(model.path)
    scheme, masked = config.round.scheme, config.round.masked
    said: dict[str, Any] = {
        "scheme": scheme,
        "sums": "masked" if masked else "plain" if config.round.stands_in else "none",
        "covers": _PLAIN if scheme in _COVERS and not masked else _COVERS.get(scheme, _NOTHING),
        "personal_rows": _PERSONAL,
    }
    if summary is not None:
        stated = summary.hot_privacy or summary.privacy
        return said | {"simulated": True} | (msgspec.to_builtins(stated) if stated else {})
    said["simulated"] = about.trained == "run"
    if scheme == "hot":
        said |= {"epsilon_allowed": str(config.privacy.epsilon), "delta": config.privacy.delta}
        said |= {"participations": config.privacy.participations, "corruption": config.privacy.corruption}
    else:
        said |= {"preset": config.privacy.name, "min_contributors": config.round.min_contributors}
    if (model.path / REGISTRY).exists():
        with Registry.beside(model.path / REGISTRY) as registry:
            said["exposures_at_most"] = max((one.acknowledged for one in registry.clients()), default=0)
    return said


def _lines(folder: Path) -> list[RoundRecord]:
    try:
        data = (folder / LINES).read_bytes()
    except OSError:
        return []
    return [line for line in scan_lines(data) if isinstance(line, RoundRecord) and not line.lost]


def _summary(folder: Path) -> Summary | None:
    """Read a run's summary; None where it has none yet, or goes on."""
    try:
        data = (folder / SUMMARY).read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(without_json_sum(data, str(folder / SUMMARY)), type=Summary)
    except msgspec.MsgspecError:
        return None  # of another version
