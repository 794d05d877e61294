"""A bundle of the model in a folder: of a run, of a server, or of a server on Flower."""

from pathlib import Path
from typing import Any

import msgspec

from sfsl.bundle.contents import ONNX, Manifest
from sfsl.bundle.described import Described
from sfsl.bundle.file import require_free, write_bundle
from sfsl.bundle.pack import Files, pack
from sfsl.checksums import without_json_sum
from sfsl.errors import InputError
from sfsl.rounds.record import RoundRecord
from sfsl.run.load import Model, load
from sfsl.run.summary import Summary
from sfsl.service.folder import METRICS, REGISTRY, scan_lines
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
_PLAIN = "sums were added in the open, in a simulation: nothing was hidden from who ran it"
_WORTH = (
    "auc", "log_loss", "ndcg", "recall", "auc_valid", "log_loss_valid", "auc_secure", "auc_secure_error",
    "log_loss_secure", "log_loss_secure_error",
)  # fmt: skip


def export(folder: str | Path, out: str | Path, *, last: bool = False, onnx: bool = False) -> Manifest:
    """Write the model in a folder as a bundle: a zip if the name ends so, else a folder of its own. It is the
    best model, where validation devices chose one; ``last``: that of the last round. ``onnx``: with the scoring
    function as ONNX in it."""
    return export_model(load_folder(folder, last=last), Path(out), onnx=onnx)


def load_folder(folder: str | Path, *, last: bool = False) -> Model:
    model = load(folder, last=last)
    if not isinstance(model, Model):
        raise InputError(f"{folder} is a bundle already")
    return model


def export_model(model: Model, out: Path, *, onnx: bool = False) -> Manifest:
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
        return pack(
            store,
            about,
            catalogue,
            which=model.which,
            metrics=_metrics(model),
            privacy=_privacy(model, about),
        )


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
        "covers": _COVERS.get(scheme, "this scheme hides nothing") if masked or scheme not in _COVERS else _PLAIN,
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
        data = (folder / METRICS).read_bytes()
    except OSError:
        return []
    return [line for line in scan_lines(data) if isinstance(line, RoundRecord) and not line.lost]


def _summary(folder: Path) -> Summary | None:
    """Read a run's summary; None where it has none yet, or goes on."""
    try:
        data = (folder / "summary.json").read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(without_json_sum(data, str(folder / "summary.json")), type=Summary)
    except msgspec.MsgspecError:
        return None  # of another version
