"""A store of another model, damaged, opened twice, on a full disk: clear errors, the last round whole."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

from clocks import PATIENCE
from sfsl.errors import StoreCorrupt, StoreError, StoreInUse, WrongModel
from sfsl.submodel import Commit, DenseBlock, LmdbStore, ModelSpec, RowBlock, RowSet, StoreSpec, Table

GOODS = Table(name="goods", rows=10**6, width=4)
WORDS = Table(name="words", rows=500, width=2)
SPEC = StoreSpec(model=ModelSpec(tables=(GOODS, WORDS), dense=2000), seed=bytes(32), row_slots=1)
DENSE = np.zeros(2000, np.float32)
PAGE = 4096
NUMBER_AT = 144  # of a commit, in each of the first two pages
LAST = 4


def commit(number: int, rows: int = 400) -> Commit:
    some = RowSet(np.arange(number, 10 * rows, 10))
    return Commit(
        number,
        {
            "goods": RowBlock(
                some,
                np.full((len(some), 4), number, np.float32),
                np.full((len(some), 1, 4), number, np.float32),
            )
        },
        DenseBlock(np.full(2000, number, np.float32), np.zeros((0, 2000), np.float32)),
        bytes([number]),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of a few rounds."""
    with LmdbStore.create(tmp_path / "store", SPEC, DENSE) as store:
        for number in range(1, LAST + 1):
            store.commit(commit(number))
    return tmp_path / "store"


def require_round(store: LmdbStore, number: int) -> None:
    """The store holds this round whole, and nothing of a later one."""
    assert store.round == number
    assert store.selection == bytes([number])
    assert set(store.read_dense().values.tolist()) == {number}
    for earlier in range(1, LAST + 1):
        rows = commit(earlier).tables["goods"].rows
        read = store.read_rows("goods", rows)
        if earlier <= number:
            assert set(read.values.ravel().tolist()) == set(read.state.ravel().tolist()) == {earlier}
    assert len(store.touched("goods")) == 400 * number


# -- another model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (StoreSpec(model=ModelSpec(tables=(GOODS,), dense=2000), seed=bytes(32), row_slots=1), "tables.1"),
        (StoreSpec(model=ModelSpec(tables=(WORDS, GOODS), dense=2000), seed=bytes(32), row_slots=1), "name"),
        (StoreSpec(model=ModelSpec(tables=(GOODS, WORDS), dense=1999), seed=bytes(32), row_slots=1), "dense"),
        (StoreSpec(model=SPEC.model, seed=bytes(31) + b"\1", row_slots=1), "seed"),
        (StoreSpec(model=SPEC.model, seed=bytes(32), row_slots=2), "row_slots is 1 there and 2 here"),
        (StoreSpec(model=SPEC.model, seed=bytes(32), row_slots=1, devices=True), "devices"),
    ],
    ids=["tables", "order", "dense", "seed", "optimizer", "devices"],
)
def test_a_store_of_another_model_is_refused_and_the_difference_named(
    path: Path, other: StoreSpec, named: str
) -> None:
    with pytest.raises(WrongModel, match=named):
        LmdbStore.open(path, other)
    with LmdbStore.open(path, SPEC) as store:
        require_round(store, LAST)


# -- damage ------------------------------------------------------------------------------------


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    with lmdb.open(str(foreign)) as env, env.begin(write=True) as txn:
        txn.put(b"\xff\xfe", b"not ours")
    for content in (b"", b"short", bytes(2 * PAGE), os.urandom(10 * PAGE)):
        folder = tmp_path / f"file{len(content)}"
        folder.mkdir()
        (folder / "data.mdb").write_bytes(content)
        with pytest.raises(StoreCorrupt):
            LmdbStore.open(folder)
    with pytest.raises(StoreError):
        LmdbStore.open(foreign)
    (tmp_path / "plain").write_bytes(b"a file where a folder is due")
    with pytest.raises(StoreError):
        LmdbStore.open(tmp_path / "plain")


def test_a_truncated_store_is_never_opened(path: Path) -> None:
    whole = (path / "data.mdb").read_bytes()
    lengths = [0, 1, 100, PAGE, PAGE + 1, 2 * PAGE, *range(3 * PAGE, len(whole), 11 * PAGE)]
    lengths += [*range(len(whole) - 8 * PAGE, len(whole), PAGE), len(whole) - 1]
    for length in lengths:
        (path / "data.mdb").write_bytes(whole[:length])
        try:
            store = LmdbStore.open(path)
        except StoreCorrupt:
            continue
        # Only what lies behind the last page in use may be missing.
        with store:
            require_round(store, LAST)
        assert length > len(whole) * 0.9


def zeroed(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) // PAGE) * PAGE
    data[start : start + PAGE] = bytes(PAGE)


def scrambled(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) // PAGE) * PAGE
    data[start : start + PAGE] = rng.randbytes(PAGE)


def flipped(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flipped_in_a_page_header(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data) // PAGE) * PAGE + rng.randrange(32)] ^= 1 << rng.randrange(8)


def swapped(data: bytearray, rng: random.Random) -> None:
    one, other = (rng.randrange(2, len(data) // PAGE) * PAGE for _ in range(2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


@pytest.mark.parametrize("damage", [zeroed, scrambled, flipped, flipped_in_a_page_header, swapped])
def test_a_damaged_store_is_refused_or_the_damage_is_where_nothing_is(
    path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    whole = (path / "data.mdb").read_bytes()
    rng = random.Random(7)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        damage(data, rng)
        (path / "data.mdb").write_bytes(data)
        try:
            store = LmdbStore.open(path)
        except StoreCorrupt:
            refused += 1
            continue
        with store:
            require_round(store, LAST)
    assert refused > 5


@pytest.mark.parametrize("commits", [0, LAST])
def test_no_flipped_bit_in_the_number_of_a_commit_brings_an_earlier_round_back(
    tmp_path: Path, commits: int
) -> None:
    """LMDB has the numbers of its last two commits in its first two pages, and takes the higher for the
    last. Also a store that has only been made, and a copy, are so."""
    with LmdbStore.create(tmp_path / "made", SPEC, DENSE) as store:
        for number in range(1, commits + 1):
            store.commit(commit(number))
        store.copy_to(tmp_path / "copied")
    for path in (tmp_path / "made", tmp_path / "copied"):
        whole = (path / "data.mdb").read_bytes()
        for bit in range(2 * 64):
            data = bytearray(whole)
            data[bit // 64 * PAGE + NUMBER_AT + bit % 64 // 8] ^= 1 << bit % 8
            (path / "data.mdb").write_bytes(data)
            try:
                store = LmdbStore.open(path, SPEC)
            except StoreCorrupt:
                continue
            with store:
                assert store.round == commits
                assert set(store.read_dense().values.tolist()) == {commits}


def test_a_row_that_was_changed_is_found_also_without_the_check_at_opening(path: Path) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    rows = commit(LAST).tables["goods"].rows
    key = int(rows.rows[17]).to_bytes(8, "big")
    data[data.index(key + np.full(4, LAST, "<f4").tobytes()) + len(key)] ^= 1
    (path / "data.mdb").write_bytes(data)
    with (
        LmdbStore.open(path, check=False) as store,
        pytest.raises(StoreCorrupt, match="1 rows of table 'goods'"),
    ):
        store.read_rows("goods", rows)
    with pytest.raises(StoreCorrupt, match="1 rows of table 'goods'"):
        LmdbStore.open(path)


_LAST_PAGE = 16 + 8 + 8 + 8 + 2 * 48  # in the head of a file: behind the page's own, and two databases


@pytest.mark.parametrize("pages", [1 << 20, 1 << 28, 1 << 40])
def test_a_head_that_says_too_much_makes_no_large_file(path: Path, pages: int) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    for start in (0, 4096):
        at = start + _LAST_PAGE
        assert int.from_bytes(data[at : at + 8], sys.byteorder) <= len(data) // 4096
        data[at : at + 8] = pages.to_bytes(8, sys.byteorder)
    (path / "data.mdb").write_bytes(data)
    for check in (False, True):
        with pytest.raises(StoreError):
            LmdbStore.open(path, check=check)
        assert (path / "data.mdb").stat().st_size == len(data)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lmdb.CorruptedError("a page"), StoreCorrupt),
        (lmdb.PageNotFoundError("a page"), StoreCorrupt),
        (lmdb.PanicError("an earlier write"), StoreError),
    ],
    ids=["corrupt", "missing", "panic"],
)
def test_damage_that_the_engine_finds_later_is_typed_too(
    path: Path, found: lmdb.Error, expected: type[StoreError]
) -> None:
    with LmdbStore.open(path) as store:
        with pytest.raises(StoreError) as raised, store._file.read():
            raise found
        assert type(raised.value) is expected
        require_round(store, LAST)


def test_a_store_of_a_later_format_is_not_guessed_at(path: Path) -> None:
    with lmdb.open(str(path), max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", b"sfsl row store 2", db=meta)
    with pytest.raises(StoreError, match="row store 2"):
        LmdbStore.open(path)


@pytest.mark.parametrize("record", [b"format", b"spec", b"head", b"dense"])
@pytest.mark.parametrize("content", [None, b"", bytes(80)], ids=["missing", "empty", "zeros"])
def test_a_store_that_lacks_a_record_says_which(path: Path, record: bytes, content: bytes | None) -> None:
    with lmdb.open(str(path), max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.delete(record, db=meta)
            if content is not None:
                txn.put(record, content, db=meta)
    with pytest.raises(StoreError):
        LmdbStore.open(path)


# -- two at once -------------------------------------------------------------------------------

HOLD = """
import sys
from sfsl.submodel import LmdbStore
store = LmdbStore.open(sys.argv[1])
print("held", flush=True)
input()
"""


def test_two_processes_on_one_store(path: Path, tmp_path: Path) -> None:
    other = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreInUse, match="open elsewhere"):
            LmdbStore.open(path)
        with pytest.raises(StoreInUse):
            LmdbStore.create(path, SPEC, DENSE)
        (tmp_path / "alias").symlink_to(path)
        with pytest.raises(StoreInUse):
            LmdbStore.open(tmp_path / "alias")
    finally:
        other.kill()
        other.communicate()
    with LmdbStore.open(path, SPEC) as store:  # the lock went with the process
        require_round(store, LAST)


def test_one_process_opens_a_store_once(path: Path) -> None:
    with LmdbStore.open(path), pytest.raises(StoreInUse):
        LmdbStore.open(path)
    LmdbStore.open(path).close()


def test_a_forked_child_does_not_use_its_parents_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LmdbStore.open(path) as store:
        monkeypatch.setattr("os.getpid", lambda: 1)
        with pytest.raises(StoreInUse, match="before a fork"):
            store.read_dense()
        with pytest.raises(StoreInUse, match="before a fork"):
            store.commit(commit(LAST + 1))


# -- a full disk -------------------------------------------------------------------------------

# Run in a process of its own: the limit on file sizes stays. argv: this folder, the store, how it fills up.
FULL = """
import resource, shutil, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + '/..']
from test_submodel_stores import LAST, SPEC, commit, require_round
from sfsl.errors import StoreError, StoreFull
from sfsl.submodel import LmdbStore

store, path, how = LmdbStore.open(sys.argv[2], SPEC), sys.argv[2], sys.argv[3]
if how == "limit":
    size = __import__("os").stat(path + "/data.mdb").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, resource.RLIM_INFINITY))
failures = []
for attempt in range(3):
    try:
        store.commit(commit(LAST + 1, rows=100_000))
    except StoreError as error:
        failures.append(type(error).__name__)
    require_round(store, LAST)
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.commit(commit(LAST + 1, rows=100_000))
    assert store.round == LAST + 1
store.close()
with LmdbStore.open(path, SPEC) as again:
    assert again.round == (LAST + 1 if how == "limit" else LAST)
print(*failures)
"""


def test_a_write_that_the_system_cuts_short_leaves_the_last_round(path: Path) -> None:
    """A limit on file sizes, which fails in the middle of a commit as a full disk does. Then it is lifted."""
    here = str(Path(__file__).parent)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", FULL, here, str(path), "limit"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3, done.stdout


def test_a_full_disk_is_called_that(path: Path, tmp_path: Path) -> None:
    """A real one, of 1 MiB, in a mount namespace of its own."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:  # noqa: S603
        pytest.skip("needs unshare(1) and the right to make namespaces, for a small disk of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$1" && cp -r "$2" "$1"/store && '
        'exec "$3" -c "$4" "$5" "$1"/store disk'
    )
    arguments = [str(disk), str(path), sys.executable, FULL, str(Path(__file__).parent)]
    done = subprocess.run(  # noqa: S603
        [unshare, "-rm", "sh", "-c", script, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["StoreFull"] * 3
