"""The scoring function as ONNX: the same scores in another runtime, for every kind of model."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import sfsl
from bundles import HISTORY, KINDS, NAMES, write
from sfsl.bundle import pack
from sfsl.bundle.file import read_bundle
from sfsl.bundle.onnx_file import onnx_bytes
from sfsl.correction import Correction
from sfsl.errors import InputError


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("din", "logistic") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_every_kind_scores_alike(kind: str, tmp_path: Path) -> None:
    parts = {"tower": 0.2, "user": 1.0, "item": 1.8, "match": 1.0} if kind == "din" else {}
    folder = write(kind, tmp_path / "b", correction=None if kind == "lstm" else Correction(0.7, 0.1, parts))
    session = runtime.InferenceSession(onnx_bytes(*read_bundle(folder), str(folder)))
    bundle, past = sfsl.load(folder), [1, 4]
    for count in (1, 7, len(NAMES)):  # any number of pairs
        rows, history = np.arange(count), np.full((count, HISTORY), -1)
        history[:, : len(past)] = past
        given = {"context": history, "target": rows}
        if kind != "lstm":
            person = np.zeros((count, bundle.scorer.width), np.float32)
            given = {"person": person, "item": rows, "history": history}
        (found,) = session.run(["score"], given)
        expected = bundle.score(NAMES[:count], [NAMES[row] for row in past])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_tables_that_are_not_stored_whole_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "MOST_WHOLE", 0)
    folder = write("logistic", tmp_path / "b")
    with pytest.raises(InputError, match="too large for an ONNX file"):
        onnx_bytes(*read_bundle(folder), str(folder))
