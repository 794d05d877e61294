"""Public data sets: where they are, under which terms, and how to make a table of each that runs can read."""

import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sfsl.data.lines import GZIP_MAGIC
from sfsl.durable import written_whole
from sfsl.errors import InputError

_PIECE = 1 << 20


@dataclass(frozen=True)
class PublicData:
    """``address`` is empty where a page must be visited, with an account. ``member`` is the file in its
    archive. ``header`` names the columns of the table, in the place of its first line where ``headed``;
    ``separator`` stands between fields there. ``checksum`` is that of the download, as its publisher or many
    users state it; where it is empty, what comes first is recorded, and compared with from then on.
    ``label`` is a rule to begin with."""

    about: str
    page: str
    terms: str
    member: str
    header: tuple[str, ...]
    address: str = ""
    separator: str = ","
    headed: bool = False
    checksum: str = ""
    label: str = ""


_RATED = ("user", "item", "rating", "time")
_GROUPLENS = "https://files.grouplens.org/datasets/movielens/"
_MOVIELENS = (
    "for research; not for commercial use without permission of GroupLens; cite Harper and Konstan (2015); "
    "the README in the archive has the terms"
)
_AMAZON = (
    "collected for research by McAuley Lab, UC San Diego; the page has the terms; cite Hou et al. (2024)"
)


def _amazon(name: str) -> PublicData:
    return PublicData(
        f"Amazon reviews of 2023, {name.replace('_', ' ').lower()}: users and items with 5 ratings or more",
        "https://amazon-reviews-2023.github.io/",
        _AMAZON,
        f"{name}.csv",
        _RATED,
        "https://mcauleylab.ucsd.edu/public_datasets/data/amazon_2023/benchmark/5core/rating_only/"
        f"{name}.csv.gz",
        headed=True,
        label="rating>=4",
    )


DATA_SETS = {
    "movielens-100k": PublicData(
        "100,000 ratings of 1,682 films by 943 users, 1998",
        "https://grouplens.org/datasets/movielens/100k/",
        _MOVIELENS,
        "u.data",
        _RATED,
        _GROUPLENS + "ml-100k.zip",
        separator="\t",
        checksum="md5:0e33842e24a9c977be4e0107933c0723",
        label="rating>=4",
    ),
    "movielens-1m": PublicData(
        "1,000,209 ratings of 3,900 films by 6,040 users, 2000",
        "https://grouplens.org/datasets/movielens/1m/",
        _MOVIELENS,
        "ratings.dat",
        _RATED,
        _GROUPLENS + "ml-1m.zip",
        separator="::",
        checksum="md5:c4d9eecfca2ab87c1945afe126590906",
        label="rating>=4",
    ),
    "movielens-latest-small": PublicData(
        "about 100,000 ratings by 600 users; it changes over time",
        "https://grouplens.org/datasets/movielens/latest/",
        _MOVIELENS,
        "ratings.csv",
        _RATED,
        _GROUPLENS + "ml-latest-small.zip",
        headed=True,
        label="rating>=4",
    ),
    "amazon-video-games": _amazon("Video_Games"),
    "amazon-musical-instruments": _amazon("Musical_Instruments"),
    "amazon-beauty": _amazon("Beauty_and_Personal_Care"),
    "taobao": PublicData(
        "100 million clicks, carts, favourites and buys of a million users in nine days of 2017",
        "https://tianchi.aliyun.com/dataset/649",
        "those of the Tianchi platform, where the file is to be had with an account; read them there",
        "UserBehavior.csv",
        ("user", "item", "category", "behavior", "time"),
        label="all",
    ),
    "lastfm-1k": PublicData(
        "19 million plays of artists by 992 listeners, until 2009",
        "http://ocelma.net/MusicRecommendationDataset/lastfm-1K.html",
        "distributed with permission of Last.fm, for non-commercial use; the README in the archive has them",
        "userid-timestamp-artid-artname-traid-traname.tsv",
        ("user", "time", "artist_id", "item", "track_id", "track"),
        "https://mtg.upf.edu/static/datasets/last.fm/lastfm-dataset-1K.tar.gz",
        separator="\t",
        label="all",
    ),
}


# What archives that are damaged raise. One whose flags say that it is encrypted, or packed in a way that this
# Python does not know, is a RuntimeError.
_BROKEN = (OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


def digest_of(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        made = hashlib.new(kind, usedforsecurity=False)
        while piece := file.read(_PIECE):
            made.update(piece)
    return made.hexdigest()


def require_checksum(path: Path, checksum: str, name: str) -> None:
    """Refuse a download that is not the one that is known."""
    kind, _, expected = checksum.partition(":")
    if checksum and (found := digest_of(path, kind)) != expected:
        raise InputError(
            f"{path} is not the {name} that is known: its {kind} is {found}, not {expected}; remove it and "
            "fetch it again, or look at its page whether there is another version"
        )


def write_table(download: Path, out: Path, data: PublicData) -> int:
    """Make a table with names of columns from a download; returns its lines."""
    lines = 0
    try:
        with written_whole(out) as target, _opened(download, data.member) as source:
            # Two signs as a separator become a tab, which neither ids nor ratings have in them.
            between = data.separator if len(data.separator) == 1 else "\t"
            target.write(between.join(data.header).encode() + b"\n")
            if data.headed:
                source.readline()
            while block := source.readlines(_PIECE):
                text = b"".join(block).replace(data.separator.encode(), between.encode())
                lines += len(block)
                # Such files have no quotes around texts, so one that is there belongs to a name.
                target.write(text.replace(b'"', b"'"))
    except _BROKEN as error:
        raise InputError(f"{download} cannot be unpacked: {error}; remove it and fetch it again") from None
    return lines


@contextmanager
def _opened(download: Path, member: str) -> Iterator[BinaryIO]:
    """Open the file of this name in an archive, packed with gzip, or as it is."""
    with download.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        if start == b"PK\x03\x04":
            archive = zipfile.ZipFile(raw)
            with archive.open(_member(archive.namelist(), member, download)) as file:
                yield io.BufferedReader(file)  # type: ignore[type-var]
        elif start[:2] == GZIP_MAGIC:
            unpacked = gzip.GzipFile(fileobj=raw)
            if unpacked.peek(512)[257:262] == b"ustar":
                with tarfile.open(fileobj=unpacked, mode="r|") as tape:
                    yield _in_tar(tape, member, download)
                while unpacked.read(_PIECE):  # to its end, where its checksum stands
                    pass
            else:
                yield io.BufferedReader(unpacked)
        else:
            yield raw


def _member(names: list[str], wanted: str, download: Path) -> str:
    for name in names:
        if name.rsplit("/", 1)[-1] == wanted:
            return name
    raise InputError(f"{download} has no file {wanted} in it; is it the right archive?")


def _in_tar(archive: tarfile.TarFile, wanted: str, download: Path) -> BinaryIO:
    for entry in archive:
        if entry.isfile() and entry.name.rsplit("/", 1)[-1] == wanted:
            file = archive.extractfile(entry)
            if file is not None:
                return file  # type: ignore[return-value]
    raise InputError(f"{download} has no file {wanted} in it; is it the right archive?")
