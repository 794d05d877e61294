"""The scoring function of a bundle as ONNX, for runtimes that have no torch."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import torch

from sfsl.bundle.contents import CATALOGUE, OWN, WEIGHTS, Manifest
from sfsl.bundle.scorer import WordScorer, scorer_of
from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl.models.kinds import KINDS

# An ONNX file is one message, which protobuf bounds at 2 GiB.
_MOST_BYTES = 1 << 30
_PAIRS = 3  # of the example that is traced: neither 0 nor 1, which exporters take for fixed


def onnx_bytes(manifest: Manifest, files: Mapping[str, bytes], where: str) -> bytes:
    """Return the scoring function as an ONNX file. Its inputs are those of the bundle's scorer, any number of
    pairs at a time, with histories of the length that the model was trained with, filled up with -1."""
    about = manifest.architecture
    if about.kind == OWN:
        raise InputError(
            f"{where} is of a model {about.network!r} of an app's own: export that with torch.onnx, from "
            "its class"
        )
    if any(table.stored == "touched" for table in about.tables) or len(files[WEIGHTS]) > _MOST_BYTES:
        raise InputError(
            f"{where} has tables too large for an ONNX file, which holds every row; use the bundle itself, "
            "or model.py in it"
        )
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"an ONNX file needs more packages ({error}); install them with: {install_command('onnx')}"
        ) from None
    catalogue = msgspec.json.decode(files[CATALOGUE])
    net = KINDS[about.kind].module
    scorer = scorer_of(net, msgspec.to_builtins(about), catalogue, files[WEIGHTS])
    rows = torch.zeros(_PAIRS, dtype=torch.int64)
    past = torch.zeros(_PAIRS, about.history, dtype=torch.int64)
    inputs = {"context": past, "target": rows}
    if not isinstance(scorer, WordScorer):
        inputs = {"person": torch.zeros(_PAIRS, about.person), "item": rows, "history": past}
    pairs = torch.export.Dim("pairs", min=1, max=1 << 24)
    with _quiet():
        program = torch.onnx.export(
            scorer,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=["score"],
            dynamic_shapes=tuple({0: pairs} for _ in inputs),
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # noqa: S101 -- dynamo returns one
    return bytes(program.model_proto.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says about itself from the user of a command."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
