"""``sfsl export`` and ``evaluate``: a trained model taken away, and what it is worth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from typer import Argument, Option

from sfsl.cli.output import Json, facts, present, progress_console
from sfsl.cli.run import require_torch
from sfsl.cli.run_output import correction_facts
from sfsl.cli.tables import Columns, Label, table_flags
from sfsl.durable import written_whole
from sfsl.errors import InputError
from sfsl.scores import verdict
from sfsl.settings.run import DataSettings
from sfsl.settings.sections import section_from

if TYPE_CHECKING:
    from sfsl.bundle.model import Bundle
    from sfsl.run.load import Model

Folder = Annotated[Path, Argument(metavar="FOLDER", help="The folder of a run, a server or a Flower server.")]
Last = Annotated[bool, Option("--last", help="The model of the last round, not the best on validation.")]
Named = Annotated[str | None, Option(help="Samples to look at, as for sfsl run; see --columns and --label.")]
_STATE, _ONNX = ".pt", ".onnx"


def evaluate(
    folder: Annotated[
        Path, Argument(metavar="MODEL", help="The folder of a run, a server or a Flower server; or a bundle.")
    ],
    data: Named = None,
    columns: Columns = None,
    label: Label = "",
    last: Last = False,
    json: Json = False,
) -> None:
    """AUC, log loss and rankings of a model, beside its baselines: of a run on its central test set.

    Servers and bundles have no samples: name some, with --data. Columns mean what they meant in training,
    where --columns and --label do not say otherwise; each user's last samples are scored, and rows of their
    own rebuilt on those before.
    """
    require_torch()
    from sfsl.run.evaluate import evaluate_on
    from sfsl.run.load import Model, load

    model = load(folder, last=last)
    with progress_console().status("scoring"):
        if data is None and isinstance(model, Model) and model.config is not None:
            found = model.evaluate()
            counts = {"samples": len(model.test), "users": len(model.fleet.devices)}
        elif data is None:
            raise InputError(f"{folder} has no samples to evaluate on; name some: --data FILE")
        else:
            settings = data_settings(model, data, columns, label)
            found, fleet = evaluate_on(model, settings)
            counts = {"samples": len(fleet.test), "users": len(fleet.devices)}
    result = {"round": model.round, "which": model.which, **msgspec.to_builtins(found), **counts}
    shown = {name: one for name, one in result.items() if name not in ("calibration", "correction")}
    shown |= dict(correction_facts(found.correction, "log-odds count"))
    present(result, json, facts("Central test set", shown), verdict(found, model.round))


def data_settings(model: "Model | Bundle", data: str, columns: str | None, label: str) -> DataSettings:
    """Return the section [data] for samples that are named now, with what columns meant in training."""
    from sfsl.run.load import Model

    trained = (model.described[0].config if isinstance(model, Model) else model.config).data
    flags = table_flags(data, columns, label, None)
    given = {name.removeprefix("data."): value for name, value in flags.items()}
    kept: dict[str, object] = {"held_out": trained.held_out, "max_history": trained.max_history}
    kept |= {"negatives": trained.negatives, "context": trained.context}
    if given["source"] == "file":
        kept |= {"columns": trained.columns, "label": trained.label, "text_ids": trained.text_ids}
    return section_from("data", DataSettings, kept | given)


def export(
    folder: Folder,
    file: Annotated[
        Path, Argument(metavar="OUT", help="What to write: NAME.zip, a folder, or a state dict NAME.pt.")
    ],
    onnx: Annotated[
        bool, Option("--onnx", help="With the scoring function as model.onnx in the bundle.")
    ] = False,
    max_gib: Annotated[float, Option(help="A state dict: refuse tables larger than this in all.")] = 4.0,
    last: Last = False,
    version: Annotated[str, Option(help="Of a server: a version of sfsl models tag.")] = "",
    json: Json = False,
) -> None:
    """Write the model as a bundle: weights, architecture, what rows are called, metrics, privacy, provenance.

    It is the best model, where validation devices chose one, and otherwise that of the last round. sfsl
    predict and sfsl.load read it; model.py in it needs torch alone. No row of any person is in it.

    A name that ends in .pt has a plain torch state dict, tables and all, for models of your own; that of a
    run has the simulated users' rows in it.
    """
    require_torch()
    from sfsl.bundle.contents import OWN
    from sfsl.bundle.file import require_free
    from sfsl.run.load import Model, load

    require_free(file)
    if file.suffix == _ONNX:
        raise InputError(
            f"{file}: a bundle is a zip or a folder; name one, and --onnx puts model.onnx into it"
        )
    model = load(folder, last=last, version=version)
    if not isinstance(model, Model):
        raise InputError(f"{folder} is a bundle already")
    if file.suffix == _STATE:
        if onnx:
            raise InputError("--onnx goes into a bundle; name a zip or a folder")
        _write_state(model, file, max_gib, json)
        return
    from sfsl.run.export import export_model

    with progress_console().status("packing"):
        manifest = export_model(model, file, onnx=onnx)
    rows = sum(table.rows for table in manifest.architecture.tables if table.stored != "none")
    about = manifest.provenance
    result = {"file": str(file), "round": about.round, "which": about.which, "trained": about.trained}
    result |= {"kind": manifest.architecture.kind, "rows": rows, "files": [*manifest.files]}
    said = f"Wrote {file}: round {about.round} ({about.which}), {manifest.architecture.kind}, {rows:,} rows"
    if manifest.architecture.kind == OWN:
        said += ". Load its weights into your own class; sfsl predict has no code for it"
    else:
        said += f". Try it: sfsl predict {file} --history … --top 10"
    present(result, json, said)


def _write_state(model: "Model", file: Path, max_gib: float, json: bool) -> None:
    import torch

    state = model.state_dict(max_gib)
    try:
        with written_whole(file) as opened:
            torch.save(state, opened)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise InputError(f"cannot write {file}: {error}") from None
    size = sum(one.numel() for one in state.values())
    said = f"Wrote {file}: round {model.round} ({model.which}), {size:,} parameters in {len(state)} tensors"
    result = {"file": str(file), "round": model.round, "which": model.which, "parameters": size}
    if (one := model.correction) is not None:
        said += f"; chances of a click are sigmoid({one.scale:.4g} * logit {one.shift:+.4g})"
        if one.parts:
            each = " + ".join(f"{times:.4g} {name}" for name, times in one.parts.items())
            said += f", where logit is {each}"
        result["correction"] = msgspec.to_builtins(one)
    present(result, json, said)
