"""``sfsl data``: a look at data, the sample, public data sets from a server of ours, the old spelling."""

import gzip
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.cli import app, fetch
from sfsl.data import load_table, load_taobao
from sfsl.data.public import DATA_SETS, write_table
from sfsl.errors import InputError


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_sample_and_a_look_at_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "ratings.csv"
    assert "made-up ratings" in run("sample", "--out", out)
    assert out.read_text().startswith("user_id,movie_id,rating,timestamp\n")
    assert out.stat().st_size < 250_000
    found = json.loads(run("inspect", out, "--json"))
    assert found["flags"] == '--columns user=user_id,item=movie_id,time=timestamp --label "rating>=4"'
    assert found["problems"] == {}
    assert found["refused"] == ""
    assert found["figures"]["users"] == 300
    assert found["plan"]["clients"] == 100
    assert found["plan"]["min_contributors"] >= 2
    assert found["plan"]["hot"]["problems"]
    shown = run("inspect", out)
    for words in (
        "owners per item",
        "Under differential privacy",
        "Train on it: sfsl run --data",
        "its name",
    ):
        assert words in shown
    with pytest.raises(InputError, match="exists already"):
        run("sample", "--out", out)
    assert "made-up" in run("fetch", "sample", "--out", tmp_path / "again.csv")


def test_a_folder_is_stored_as_before(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "c.csv"
    path.write_text("who,what,at\n" + "".join(f"{n % 9},{n},{n}\n" for n in range(50)))
    flags = ("--data", path, "--columns", "user=who,item=what,time=at", "--json")
    for words in (("store", tmp_path / "a"), (tmp_path / "b",)):
        assert json.loads(run(*words, *flags))["users"] == 9
    with pytest.raises(InputError, match="are for tables"):
        run(tmp_path / "c", "--columns", "user=who")


# -- public data sets ----------------------------------------------------------------------------------


def zipped(name: str, text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("README", "terms")
        archive.writestr(name, text)
    return made.getvalue()


def tarred(name: str, text: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


PLAYS = (
    'user_1\t2009-05-04T23:08:57Z\tid\tAC/DC, live\ttid\t7" Mix\nuser_1\t2009-05-04T13:54:10Z\t\tAir\t\tLa\n'
)
DOWNLOADS = {
    "movielens-100k": zipped("ml-100k/u.data", "196\t242\t3\t881250949\n186\t302\t5\t891717742\n"),
    "movielens-1m": zipped("ml-1m/ratings.dat", "1::1193::5::978300760\n1::661::3::978302109\n"),
    "movielens-latest-small": zipped(
        "ml-latest-small/ratings.csv",
        "userId,movieId,rating,timestamp\n1,1,4.0,964982703\n1,3,0.5,964981247\n",
    ),
    "amazon-video-games": gzip.compress(
        b"user_id,parent_asin,rating,timestamp\nAGKA,0700026657,5.0,1446502200000\nAGKB,B07,1.0,1446502200001\n"
    ),
    "taobao": b"1,2268318,2520377,pv,1511544070\n1,2333346,2520771,buy,1511561733\n",
    "lastfm-1k": tarred("lastfm-dataset-1K/userid-timestamp-artid-artname-traid-traname.tsv", PLAYS),
}
READ = {
    "movielens-100k": (["186", "196"], ["242", "302"], [1, 0]),
    "movielens-1m": (["1"], ["661", "1193"], [1, 0]),
    "movielens-latest-small": (["1"], ["1", "3"], [0, 1]),
    "amazon-video-games": (["AGKA", "AGKB"], ["0700026657", "B07"], [1, 0]),
    "taobao": (["1"], ["2268318", "2333346"], [1, 1]),
    "lastfm-1k": (["user_1"], ["AC/DC, live", "Air"], [1, 1]),
}


class Host(ThreadingHTTPServer):
    """Serves ``content``; a request that gets more than ``most`` bytes breaks off there."""

    content, most, tag = b"", 10**9, '"one"'
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Host

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        host, wanted = self.server, self.headers.get("Range")
        host.asked.append(wanted)
        same = self.headers.get("If-Range") == host.tag
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and same else 0
        if self.path == "/gone":
            self.send_error(404)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(host.content) - start))
        self.send_header("ETag", host.tag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(host.content) - 1}/{len(host.content)}")
        self.end_headers()
        self.wfile.write(host.content[start:][: host.most])


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(("127.0.0.1", 0), Handler) as made:
        made.asked = []
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def fetched(host: Host, name: str, out: Path, *more: object, path: str = "x") -> Any:
    words = ["--from", f"http://127.0.0.1:{host.server_address[1]}/{path}", "-o", str(out), "--json"]
    done = CliRunner().invoke(app, ["data", "fetch", name, *words, *map(str, more)])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", DOWNLOADS)
def test_every_format_becomes_a_table(tmp_path: Path, host: Host, name: str) -> None:
    host.content, out = DOWNLOADS[name], tmp_path / "out.csv"
    made = fetched(host, name, out, "--accept")
    assert made["lines"] == 2
    data, report = load_table(out, label=DATA_SETS[name].label)
    assert report.problems == {}
    assert [str(one) for one in data.users] == READ[name][0]
    assert [str(one) for one in data.items] == READ[name][1]
    assert sorted(data.label.tolist()) == sorted(READ[name][2])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.csv", "out.csv.source.json"]
    if name == "taobao":
        assert load_taobao(out)[1].samples == 2


def test_terms_are_shown_and_must_be_accepted(tmp_path: Path, host: Host) -> None:
    out = tmp_path / "m.csv"
    with pytest.raises(InputError, match="must be accepted"):
        fetched(host, "movielens-100k", out)
    assert not host.asked
    assert not list(tmp_path.iterdir())


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path, host: Host) -> None:
    host.content, host.most = DOWNLOADS["movielens-100k"], 100
    assert fetched(host, "movielens-100k", tmp_path / "m.csv", "--accept")["lines"] == 2
    assert host.asked[:3] == [None, "bytes=100-", "bytes=200-"]


@pytest.fixture
def broken_off(host: Host, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A download of which the first 150 bytes are there."""

    def make(out: Path) -> None:
        host.content, host.most = DOWNLOADS["movielens-100k"], 150
        with monkeypatch.context() as patch:
            patch.setattr(fetch, "_TRIES", 0)
            with suppress(OSError):
                fetch._go_on(f"http://127.0.0.1:{host.server_address[1]}/x", beside(out), lambda *_: None)
        assert beside(out).stat().st_size == 150
        host.most = 10**9
        host.asked.clear()

    return make


def beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.download")


def test_another_file_begins_anew(tmp_path: Path, host: Host, broken_off: Callable[[Path], None]) -> None:
    broken_off(out := tmp_path / "m.csv")
    host.tag, host.content = '"newer"', DOWNLOADS["movielens-100k"] + bytes(9)
    assert fetched(host, "movielens-100k", out, "--accept")["lines"] == 2
    assert host.asked == ["bytes=150-"]


@pytest.mark.parametrize("harm", ["flip", "zeros", "short", "note", "no note", "old note"])
def test_what_is_not_as_it_came_is_fetched_again(
    tmp_path: Path, host: Host, broken_off: Callable[[Path], None], harm: str
) -> None:
    """A bit flipped, a power cut that left zeros or less than was noted, a note that is damaged."""
    broken_off(out := tmp_path / "m.csv")
    part, note = beside(out), beside(beside(out)).with_name("m.csv.download.etag")
    data = bytearray(part.read_bytes())
    match harm:
        case "flip":
            data[70] ^= 1
        case "zeros":
            data[100:] = bytes(50)
        case "short":
            del data[149:]
        case "note":
            note.write_bytes(note.read_bytes().replace(b"150", b"151"))
        case "no note":
            note.unlink()
        case _:
            note.write_text(host.tag)
    part.write_bytes(data)
    assert fetched(host, "movielens-100k", out, "--accept")["lines"] == 2
    assert host.asked == [None]


def test_what_came_behind_the_last_note_is_fetched_again(
    tmp_path: Path, host: Host, broken_off: Callable[[Path], None]
) -> None:
    """As after a kill."""
    broken_off(out := tmp_path / "m.csv")
    with beside(out).open("ab") as part:
        part.write(bytes(20))
    assert fetched(host, "movielens-100k", out, "--accept")["lines"] == 2
    assert host.asked == ["bytes=150-"]


def test_a_disk_that_changes_what_came_is_found(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that is not packed has no checksum of its own."""
    host.content, go_on = DOWNLOADS["taobao"], fetch._go_on

    def changes(address: str, path: Path, seen: Any) -> str:
        came = go_on(address, path, seen)
        path.write_bytes(path.read_bytes().replace(b"pv", b"qv"))
        return came

    monkeypatch.setattr(fetch, "_go_on", changes)
    with pytest.raises(InputError, match="the disk changed it"):
        fetched(host, "taobao", tmp_path / "t.csv", "--accept")
    assert not (tmp_path / "t.csv").exists()


def test_a_table_that_changed_is_not_read(tmp_path: Path, host: Host) -> None:
    host.content, out = DOWNLOADS["taobao"], tmp_path / "t.csv"
    fetched(host, "taobao", out, "--accept")
    assert load_table(out, label="all")[1].samples == 2
    out.write_bytes(out.read_bytes().replace(b"2268318", b"2268319"))
    with pytest.raises(InputError, match=r"not as sfsl data fetch wrote it.*remove t\.csv\.source\.json"):
        load_table(out, label="all")
    (tmp_path / "t.csv.source.json").unlink()
    assert load_table(out, label="all")[1].samples == 2


@pytest.mark.parametrize("name", ["movielens-100k", "amazon-video-games", "lastfm-1k"])
def test_an_archive_that_is_damaged_is_refused_or_read_as_it_was(tmp_path: Path, name: str) -> None:
    """Behind its first bytes, by which it is known for one."""
    download, out = tmp_path / "d", tmp_path / "t"
    download.write_bytes(whole := DOWNLOADS[name])
    write_table(download, out, DATA_SETS[name])
    wanted = out.read_bytes()
    for at in range(8 * 4, 8 * len(whole), 5):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        download.write_bytes(data)
        with suppress(InputError):
            write_table(download, out, DATA_SETS[name])
        assert out.read_bytes() == wanted, at


def test_what_comes_again_must_be_the_same(tmp_path: Path, host: Host) -> None:
    host.content, out = DOWNLOADS["movielens-latest-small"], tmp_path / "m.csv"
    fetched(host, "movielens-latest-small", out, "--accept")
    with pytest.raises(InputError, match="exists already"):
        fetched(host, "movielens-latest-small", out, "--accept")
    out.unlink()
    host.content = zipped("ratings.csv", "userId,movieId,rating,timestamp\n1,1,1.0,1\n")
    with pytest.raises(InputError, match="not what came the last time"):
        fetched(host, "movielens-latest-small", out, "--accept")
    assert not out.exists()


def test_what_cannot_be_fetched(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.csv"
    with pytest.raises(InputError, match="answers 404"):
        fetched(host, "movielens-100k", out, "--accept", path="gone")
    host.content = b"not a zip"
    monkeypatch.setitem(DATA_SETS, "here", DATA_SETS["movielens-100k"])
    with pytest.raises(InputError, match=r"no data set 'nowhere'; there are sample, movielens-100k"):
        fetched(host, "nowhere", out, "--accept")
    host.content = zipped("other.txt", "x")
    with pytest.raises(InputError, match=r"no file u\.data in it"):
        fetched(host, "movielens-100k", out, "--accept")
    with pytest.raises(InputError, match="get it at https://tianchi"):
        run("fetch", "taobao", "--accept", "--out", out)
    with pytest.raises(InputError, match="neither an address"):
        run("fetch", "taobao", "--accept", "--out", out, "--from", tmp_path / "nothing")
    assert not out.exists()


def test_a_known_checksum_is_checked(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.content = DOWNLOADS["movielens-100k"]
    address = f"http://127.0.0.1:{host.server_address[1]}/x"
    known = replace(DATA_SETS["movielens-100k"], address=address)
    monkeypatch.setitem(DATA_SETS, "movielens-100k", known)
    with pytest.raises(InputError, match=r"not the movielens-100k that is known: its md5 is"):
        run("fetch", "movielens-100k", "--accept", "--out", tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_TRIES", 2)
    with pytest.raises(InputError, match=r"cannot be fetched: .*run the same command again"):
        run(
            "fetch", "movielens-1m", "--from", "http://127.0.0.1:9/x", "--accept", "--out", tmp_path / "m.csv"
        )


def test_the_list(tmp_path: Path) -> None:
    assert set(json.loads(run("fetch", "--json"))["data sets"]) == set(DATA_SETS)
