"""Interactions in files: what was stored comes back, and what was damaged does not."""

from pathlib import Path

import numpy as np
import pytest

from sfsl.checksums import without_json_sum
from sfsl.data import Interactions, SyntheticSettings, SyntheticTaobao
from sfsl.data.stored import MANIFEST, load_stored, store_interactions
from sfsl.errors import InputError


@pytest.fixture(scope="module")
def data() -> Interactions:
    return SyntheticTaobao(SyntheticSettings().scaled(0.02, users=5), seed=1).interactions()


@pytest.fixture
def folder(data: Interactions, tmp_path: Path) -> Path:
    store_interactions(data, tmp_path / "data", about="five users")
    return tmp_path / "data"


def test_what_was_stored_comes_back(data: Interactions, folder: Path) -> None:
    found = load_stored(folder)
    for name in Interactions.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(data, name))
    assert isinstance(found.item, np.memmap)
    assert not found.item.flags.writeable


def test_without_categories(data: Interactions, tmp_path: Path) -> None:
    bare = Interactions(
        **{
            name: None if name in ("category_of", "categories", "probability") else getattr(data, name)
            for name in Interactions.__dataclass_fields__
        }
    )
    store_interactions(bare, tmp_path / "bare", about="")
    assert load_stored(tmp_path / "bare").category_of is None


def test_a_folder_is_never_overwritten(data: Interactions, folder: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        store_interactions(data, folder, about="")


def test_a_torn_attempt_is_no_obstacle(data: Interactions, tmp_path: Path) -> None:
    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "item.npy").write_bytes(b"half")
    store_interactions(data, tmp_path / "data", about="")
    assert len(load_stored(tmp_path / "data")) == len(data)


def test_a_full_disk_leaves_nothing(
    data: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InputError, match="No space left"):
        store_interactions(data, tmp_path / "data", about="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["item.npy", "clicks.npy", "offsets.npy"])
def test_one_flipped_bit_is_noticed(folder: Path, name: str) -> None:
    raw = bytearray((folder / name).read_bytes())
    raw[-1] ^= 1
    (folder / name).write_bytes(raw)
    with pytest.raises(InputError, match="damaged"):
        load_stored(folder)


def test_a_truncated_file_is_noticed(folder: Path) -> None:
    raw = (folder / "item.npy").read_bytes()
    (folder / "item.npy").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError, match="damaged"):
        load_stored(folder)


def test_a_lost_file_is_noticed(folder: Path) -> None:
    (folder / "clicks.npy").unlink()
    with pytest.raises(InputError, match="cannot read"):
        load_stored(folder)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b"sfsl interactions 1", b"sfsl interactions 9", "format"),
        (b'"item"', b'"evil"', "no interactions"),
        (b"{", b"", "damaged"),
        (b'"shape"', b'"forms"', "damaged"),
    ],
)
def test_a_wrong_manifest_is_refused(folder: Path, old: bytes, new: bytes, match: str) -> None:
    path = folder / MANIFEST
    without = without_json_sum(path.read_bytes(), "")
    path.write_bytes(without.replace(old, new, 1))  # as an earlier version wrote it, without a checksum
    with pytest.raises(InputError, match=match):
        load_stored(folder)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no stored interactions"):
        load_stored(tmp_path)
