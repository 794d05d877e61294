"""Bundles on disk: folder and zip are one thing, and nothing is read that is not as it was written."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import sfsl
from bundles import write
from sfsl.bundle.contents import MANIFEST, WEIGHTS
from sfsl.bundle.file import read_bundle
from sfsl.errors import BundleError, InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write("logistic", tmp_path / "films")


def test_a_folder_and_a_zip_hold_the_same(folder: Path) -> None:
    packed = write("logistic", folder.with_suffix(".zip"))
    assert read_bundle(folder) == read_bundle(packed)
    again = write("logistic", folder.with_name("again.zip"))
    assert again.read_bytes() == packed.read_bytes()


def test_nothing_is_written_over(folder: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        write("logistic", folder)


def test_each_missing_file_is_found(folder: Path) -> None:
    for name in [one.name for one in folder.iterdir()]:
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(BundleError if name != MANIFEST else (BundleError, InputError)):
            sfsl.load(folder)
        (folder / name).write_bytes(content)
    assert sfsl.load(folder).round == 1


def test_each_altered_or_cut_file_is_found(folder: Path) -> None:
    for name in [one.name for one in folder.iterdir()]:
        content = (folder / name).read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for harmed in (flipped, content[:middle], content + b"\n{}", b""):
            (folder / name).write_bytes(harmed)
            with pytest.raises(BundleError):
                sfsl.load(folder)
        (folder / name).write_bytes(content)


def test_every_cut_of_a_zip_is_found(folder: Path) -> None:
    packed = write("logistic", folder.with_suffix(".zip"))
    content = packed.read_bytes()
    for size in range(0, len(content), 997):
        packed.write_bytes(content[:size])
        with pytest.raises(BundleError):
            sfsl.load(packed)


def test_a_zip_with_another_file_in_it_is_refused(folder: Path) -> None:
    packed = write("logistic", folder.with_suffix(".zip"))
    with zipfile.ZipFile(packed, "a") as opened:
        opened.writestr("../more.txt", "x")
    with pytest.raises(BundleError, match="other files"):
        sfsl.load(packed)


def test_a_name_that_leads_elsewhere_is_refused(folder: Path) -> None:
    text = json.loads((folder / MANIFEST).read_text())
    del text["checksum"]
    text["files"]["../" + folder.name + "/" + WEIGHTS] = text["files"].pop(WEIGHTS)
    (folder / MANIFEST).write_text(json.dumps(text))
    with pytest.raises(BundleError, match="no name of a file"):
        sfsl.load(folder)


def test_another_format_is_named(folder: Path) -> None:
    text = (folder / MANIFEST).read_text().replace("sfsl bundle 1", "sfsl bundle 9")
    (folder / MANIFEST).write_text(text[: text.rindex(",")] + "}")
    with pytest.raises(BundleError, match="'sfsl bundle 9'; this version reads"):
        sfsl.load(folder)


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Have somebody write another manifest, without a checksum."""
    text = json.loads((folder / MANIFEST).read_text())
    del text["checksum"]
    change(text)
    (folder / MANIFEST).write_text(json.dumps(text))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tables", [], "not those of the architecture"),
        ("dense", [["bias", [-1]]], "tables cannot be"),
        ("arguments", {"users": 10**12, "items": 1, "categories": 1}, "larger than any"),
        ("arguments", {"items": 1, "surprise": 1}, "do not make a model"),
        ("kind", "lstm", "do not make a model"),
        ("parts", {"tower": 1.0}, "do not make a model"),
    ],
)
def test_an_architecture_that_cannot_be_is_refused(folder: Path, key: str, value: Any, said: str) -> None:
    rewritten(folder, lambda text: text["architecture"].update({key: value}))
    with pytest.raises(BundleError, match=said):
        sfsl.load(folder).score(["film-1"])


def test_settings_that_cannot_be_read_are_refused(folder: Path) -> None:
    rewritten(folder, lambda text: text["provenance"].update(settings="[nonsense]\nx = 1"))
    with pytest.raises(BundleError, match="settings that cannot be read"):
        sfsl.load(folder).person(rated=[("film-1", 1), ("film-2", 0)])


def test_weights_of_another_architecture_are_refused(folder: Path) -> None:
    other = write("din", folder.with_name("other"))
    (folder / WEIGHTS).write_bytes((other / WEIGHTS).read_bytes())
    text = json.loads((folder / MANIFEST).read_text())
    del text["checksum"]
    text["files"][WEIGHTS] = json.loads((other / MANIFEST).read_text())["files"][WEIGHTS]
    (folder / MANIFEST).write_text(json.dumps(text))
    with pytest.raises(BundleError, match="not those of the architecture"):
        sfsl.load(folder)
