"""One bit of any file that we write becomes another: what is read is the same or a typed error, never
anything else. Of metrics, lines that were not hit are the same, and others are marked as lost."""

import logging
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from power import MEMORY
from typer.testing import CliRunner

pytest.importorskip("torch")

from bundles import catalogue as names
from bundles import trained, write
from cohort import MODEL
from deployment import MODEL_DIGEST, new_store
from sfsl.bundle.describe import describe, write_described
from sfsl.bundle.described import read_described
from sfsl.bundle.file import read_bundle
from sfsl.carriers.https.authority import create_authority, issue_server, read_certificate
from sfsl.carriers.https.listen import ConnectionLimits, Listen, _tls
from sfsl.cli import app
from sfsl.client.following import KnownModel, ServedModel
from sfsl.client.home import Home, PersonalRows, read_loosened
from sfsl.client.link import trusted
from sfsl.client.log import MemberLog
from sfsl.crypto.secret import Identity, Secret
from sfsl.data import SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue, write_catalogue
from sfsl.data.stored import load_stored, store_interactions
from sfsl.errors import Forked, SfslError
from sfsl.models import logistic_regression
from sfsl.privacy import PRESETS, Budget, Calendar, ClientState, Tables
from sfsl.report.runs import read_runs
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.run.best import BestModel
from sfsl.run.folder import RunFolder
from sfsl.scores import Scored, evaluate
from sfsl.service.backup import back_up, restore
from sfsl.service.clock import SigningClock
from sfsl.service.driver import Journal
from sfsl.service.folder import METRICS, MetricsFile, recover_lines
from sfsl.service.identities import read_identity, write_identity
from sfsl.service.log import LogTrust, head_json, sign_head
from sfsl.service.log_file import LogRules, RosterLog, read_heads
from sfsl.service.messages import LogEntry, LogHead
from sfsl.service.registry import Registry
from sfsl.service.versions import tag, versions
from sfsl.settings.run import RunConfig
from sfsl.submodel import Commit, DenseBlock, LmdbStore, ModelSpec, RowBlock, RowSet, StoreSpec, Table
from sfsl.testing import SeededRandomness
from sfsl_research.bench.utility_run import read_arm, write_arm
from sfsl_research.checkpoints import read_arrays
from sfsl_research.experiments.experiment import (
    CURVES,
    SETTINGS,
    _csv,
    _read_settings,
    _write_settings,
    read_curves,
)
from sfsl_research.reproduce.measured import UnionRow
from sfsl_research.reproduce.sheets import read_sheet, write_sheet
from sfsl_research.tune.folder import Plan, State, TuneFolder
from sfsl_research.tune.halving import ArmState
from sfsl_research.worlds.benchmark import ARMS, _append, read_outcomes
from sfsl_research.worlds.trial import Outcome

FEW, MANY = 24, 600
NOW_MS = 1_800_000_000_000
NOW = datetime(2026, 11, 16, tzinfo=UTC)
DAY = date(2026, 11, 16)
CALENDAR, BUDGET = Calendar(start=date(2026, 1, 1), days=30), Budget(100, 100)
ROUNDS = 6
SPEC = StoreSpec(
    model=ModelSpec(tables=(Table(name="goods", rows=10**6, width=4),), dense=64), seed=bytes(32), row_slots=1
)


def seeded(name: str) -> SeededRandomness:
    return SeededRandomness(name)


@dataclass(frozen=True)
class Kept:
    """One kind of files: how a folder of them is made, which are flipped, and what is read from them."""

    make: Callable[[Path], object]
    files: tuple[str, ...]
    read: Callable[[Path], object]
    same: Callable[[Any, Any], bool] = lambda found, wanted: bool(found == wanted)


# -- metrics and other lines -------------------------------------------------------------------


def journal() -> tuple[Journal, list[RoundRecord]]:
    kept = Journal(new_store())
    lines = [RoundTally(3, samples=10 * number).record(number, None) for number in range(1, ROUNDS + 1)]
    for line in lines:
        kept.commit(Commit(line.round), line, None)
    return kept, lines


def same_or_lost(found: list[RoundRecord], wanted: list[RoundRecord]) -> bool:
    """At most two lines go with one bit, where it was the line break between them; the last never does."""
    lost = [one.round for one, due in zip(found, wanted, strict=True) if one != due]
    assert all(found[number - 1] == RoundRecord.of_lost(number) for number in lost)
    return len(lost) <= 2 and ROUNDS not in lost


def outcome(number: int) -> Outcome:
    return Outcome(
        world="w", seed=number, arm="fl", settings="ab", rounds=3, clients=4, seconds=0.5 * number, points=()
    )


# -- stores ------------------------------------------------------------------------------------


def make_store(folder: Path) -> None:
    with LmdbStore.create(folder / "store", SPEC, np.zeros(64, np.float32)) as store:
        for number in range(1, 4):
            rows = RowSet(np.arange(number, 400, 10))
            values = np.full((len(rows), 4), number, np.float32)
            dense = DenseBlock(np.full(64, number, np.float32), np.zeros((0, 64), np.float32))
            store.commit(Commit(number, {"goods": RowBlock(rows, values, values[:, None])}, dense, b"kept"))


def read_store(folder: Path) -> object:
    return read_store_at(folder / "store")


def read_store_at(path: Path) -> object:
    with LmdbStore.open(path) as store:
        rows = store.read_rows("goods", RowSet(np.arange(500)))
        return (
            store.round, store.selection, store.spec, store.read_dense().values.tolist(),
            rows.values.tolist(), rows.state.tolist(), store.touched("goods").rows.tolist(),
        )  # fmt: skip


def make_registry(folder: Path) -> None:
    with Registry(folder / "registry", randomness=seeded("registry")) as registry:
        clients = [
            registry.enrol(Identity.generate(seeded(str(number))).public, NOW_MS + number)
            for number in range(12)
        ]
        for number in range(8):
            registry.invite(number % 3, bytes([number] * 16), clients[:9])
            registry.acknowledge(bytes([number] * 16), clients[number % 4 :])
        registry.revoke(clients[-1], NOW_MS + 99)


def read_registry(folder: Path) -> object:
    with Registry(folder / "registry") as registry:
        invited = [sorted(registry.invited(period)) for period in range(3)]
        rows = [registry._file.read(f"SELECT * FROM {name}") for name in ("acknowledgements", "rounds")]  # noqa: S608
        return registry.deployment, list(registry.clients()), invited, rows


def make_registry_log(folder: Path) -> None:
    """What a kill leaves: changes that are in the log beside the file, and not in it yet."""
    (folder / "live").mkdir()
    with Registry(folder / "live/registry", randomness=seeded("registry")) as registry:
        for number in range(6):
            client = registry.enrol(Identity.generate(seeded(str(number))).public, NOW_MS)
            registry.acknowledge(bytes([number] * 16), [client])
        for name in ("registry", "registry-wal"):
            shutil.copy(folder / "live" / name, folder / name)


def read_registry_log(folder: Path) -> object:
    with warned() as said:
        return read_registry(folder), bool(said)


@contextmanager
def warned() -> Iterator[list[str]]:
    """Hear what is logged, although nobody else does."""
    said: list[str] = []
    heard = logging.Handler()
    heard.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.disable(logging.NOTSET)
    logging.getLogger("sfsl").addHandler(heard)
    try:
        yield said
    finally:
        logging.getLogger("sfsl").removeHandler(heard)
        logging.disable(logging.WARNING)


def same_or_said(found: tuple[object, bool], wanted: tuple[object, bool]) -> bool:
    return found[0] == wanted[0] or found[1]


def read_clock(folder: Path) -> object:
    with warned() as said:
        clock = SigningClock(folder / "clock", wall=lambda: 0, steady=lambda: 0)
        return clock.began_ms, bool(said)


def make_clock(folder: Path) -> None:
    # Behind no horizon of before, so that a good file says nothing.
    SigningClock(folder / "clock", wall=lambda: 0, steady=lambda: 0).cover(5)


def make_server(folder: Path) -> None:
    """A server's folder after three rounds, with a version of its model."""
    make_store(folder)
    make_registry(folder)
    (folder / "registry").rename(folder / "registry.sqlite")
    tag(folder, "first")


def make_backup(folder: Path) -> None:
    make_server(folder)
    back_up(folder, folder / "backup", now=NOW)


def restored(folder: Path) -> object:
    made = restore(folder / "backup", folder / "restored")
    return made, read_store(folder / "restored")


# -- clients -----------------------------------------------------------------------------------


def make_state(folder: Path) -> None:
    with ClientState.create(folder / "state", client="ada", calendar=CALENDAR, budget=BUDGET) as state:
        real = {"goods": np.arange(0, 256, 3)}
        state.begin(
            DAY, PRESETS["cpp2"], Tables(shared=("goods",)), real, acknowledged=None, randomness=seeded("s")
        )
        state.expose(b"r1")


def read_state(folder: Path) -> object:
    with ClientState.open(folder / "state", client="ada", budget=BUDGET) as state:
        return state._record


def make_home(folder: Path) -> None:
    home = Home(folder, seeded("home"))
    with home.state("ada", CALENDAR, BUDGET) as state:
        home.samples(b"item,label,time\n1,1,1\n", state, DAY)
        home.exposed.fresh([b"one", b"two"], state, DAY)
        home.note_terms(["least-cohort 3 (50)"])
        state.begin(  # after which the samples stay as they are
            DAY, PRESETS["cpp2"], Tables(shared=("goods",)), {"goods": np.arange(3)},
            acknowledged=None, randomness=seeded("s"),
        )  # fmt: skip
    home.pin(bytes(range(16)))
    with PersonalRows.open(folder / "rows", MODEL, seeded("rows")) as rows:
        rows.keep({"user": (np.array([2, 5]), np.array([[1, 2], [3, 4]], np.float32))})
    catalogue = Catalogue.sized(3, item=4)
    served = ServedModel(MODEL_DIGEST, logistic_regression(catalogue), catalogue)
    KnownModel(folder / "model").settle(served, going_on=False)


def read_home(folder: Path) -> object:
    home = Home(folder, seeded("home"))
    with PersonalRows.open(folder / "rows", MODEL, seeded("x")) as rows:
        own = rows.read("user", np.array([1, 2, 5])).tolist()
    with home.state("ada", CALENDAR, BUDGET) as state:
        copy, changed = home.samples(b"item,label,time\n1,1,1\n", state, DAY)
        new = home.exposed.fresh([b"one"], state, DAY).tolist()
    kept = copy.read_bytes(), changed, new, read_loosened(folder)
    return home.deployment(), own, *kept, KnownModel(folder / "model")._read()


def snapshot_goes_on(folder: Path) -> object:
    """A round of hot rows goes on from what was kept of it, or not at all."""
    with ClientState.open(folder / "state", client="ada", budget=BUDGET) as state:
        data = (folder / "snapshot").read_bytes()
        state.go_on(data, None)
        return data


def make_snapshot(folder: Path) -> None:
    make_state(folder)
    (folder / "snapshot").write_bytes(seeded("snapshot").bytes(400))
    with ClientState.open(folder / "state", client="ada", budget=BUDGET) as state:
        state.keep((folder / "snapshot").read_bytes())


# -- keys and logs -----------------------------------------------------------------------------


def make_keys(folder: Path) -> None:
    create_authority(folder, "flips", 100, now=NOW)
    issue_server(folder, ["localhost"], 30, now=NOW)
    write_identity(folder / "identity.key", Secret(seeded("identity").bytes(32)))


def read_keys(folder: Path) -> object:
    """All keys are checked, and what certificates say is the same; a server is issued by the authority."""
    certificate, key = folder / "server.pem", folder / "server.key"
    assert _tls(Listen("localhost", 0, certificate, key, False, ConnectionLimits(1, 1))) is not None
    issue_server(folder, ["again"], 5, now=NOW, name="again")
    authority = trusted(folder / "authority.pem").get_ca_certs(binary_form=True)
    public = read_identity(folder / "identity.key").public
    return read_certificate(certificate), read_certificate(folder / "authority.pem"), authority, public


ONE = Identity.generate(seeded("witness"))
RULES = LogRules(frozenset({ONE.public}), 1)


def roster(folder: Path) -> RosterLog:
    return RosterLog(folder, bytes(range(16)), RULES, seeded("key"), NOW_MS)


def make_roster(folder: Path) -> None:
    """Entries that a head commits to, which a witness has signed, and such as wait for the next."""
    with roster(folder) as log:
        log.cosign(sign_head(ONE, log.offered), NOW_MS)
        for number in range(6):
            log.enter([LogEntry(Identity.generate(seeded(f"client {number}")).public)], NOW_MS + number)
            if number == 3:
                log.cosign(sign_head(ONE, log.offered), NOW_MS)


def read_roster(folder: Path) -> object:
    with roster(folder) as log:
        return log.entries, log.shown, log.offered, log.public


def member(folder: Path) -> MemberLog:
    return MemberLog(folder / "log", LogTrust(deployment="00" * 16, log=ONE.public.hex()))


def make_head(folder: Path) -> None:
    from sfsl.checksums import with_json_sum

    head = sign_head(ONE, LogHead(bytes(16), 4, bytes(range(32)), NOW_MS))
    (folder / "log").write_bytes(with_json_sum(head_json(head)))


HEADS = [sign_head(ONE, LogHead(bytes(16), size, bytes(range(32)), NOW_MS)) for size in (4, 5)]


def make_evidence(folder: Path) -> None:
    MemberLog(folder / "log", LogTrust(deployment="00" * 16, log=ONE.public.hex()))._forked(
        HEADS[0], HEADS[1], Forked("two heads")
    )


# -- runs and data -----------------------------------------------------------------------------


def make_run(folder: Path) -> None:
    run = RunFolder.create(folder / "run", RunConfig())
    _, lines = journal()
    MetricsFile(run.metrics_file, lines).close()
    run.write_summary(State(ROUNDS, {"a": ArmState()}))


def read_run(folder: Path) -> object:
    (run,) = read_runs([folder / "run"])
    return RunFolder(folder / "run").config(), run.lines, run.config, run.summary, run.versions


def make_tune(folder: Path) -> None:
    with TuneFolder.create(folder / "tune", Plan(RunConfig(), {"a": {"x": 1}}, 3, 4)) as tune:
        tune.save(State(3, {"a": ArmState()}), {"a/w": np.arange(300.0), "a/b": np.arange(7)})


def read_tune(folder: Path) -> object:
    with TuneFolder(folder / "tune") as tune:
        state, arrays = tune.load() or (None, {})
        return msgspec.to_builtins(tune.plan), state, {name: one.tolist() for name, one in arrays.items()}


def make_best(folder: Path) -> None:
    """The best model of a run, what it is worth, and the line of its round, which was lost since."""
    make_store(folder)
    line = msgspec.structs.replace(RoundTally(3).record(3, None), log_loss_valid=0.5)
    worth = evaluate(Scored(np.array([0.1, 0.9, 0.4, 0.2]), np.array([0.0, 1.0, 1.0, 0.0])))
    with LmdbStore.open(folder / "store") as store:
        BestModel(folder / "best", store, "log_loss", [*LOST[:2], line], worth)


LOST = [RoundRecord.of_lost(number) for number in (1, 2, 3)]


def read_best(folder: Path) -> object:
    with LmdbStore.open(folder / "store") as store:
        best = BestModel(folder / "best", store, "log_loss", LOST)
    return best._known(), read_store_at(folder / "best")


def same_or_anew(found: tuple[object, object], wanted: tuple[object, object]) -> bool:
    """What the copy is worth is computed again where it cannot be read; the copy is what it was."""
    return found[0] in (wanted[0], None) and found[1] == wanted[1]


def make_described(folder: Path) -> None:
    task, _, config = trained("logistic")
    write_described(folder, task, describe(task, config, "run", 3), names("logistic"))


def read_whole(folder: Path) -> object:
    """Catalogues are the same if what is written of them is."""
    found = read_described(folder)
    assert found is not None
    about, catalogue = found
    assert catalogue is not None
    return about, catalogue.public, catalogue.statistics


def sheet_rows() -> list[UnionRow]:
    return [UnionRow(9, 0.25, 1000, 30, seed, "sketch", 77, 1.5, 0.25, 0.125) for seed in range(5)]


def make_fetched(folder: Path) -> None:
    with zipfile.ZipFile(folder / "raw.zip", "w") as packed:
        packed.writestr("ml-100k/u.data", "1\t2\t3\t4\n" * 9)
    fetch(folder)


def fetch(folder: Path) -> object:
    """Fetch it once more, which is compared with what came before."""
    (folder / "table.csv").unlink(missing_ok=True)
    words = ["--from", str(folder / "raw.zip"), "-o", str(folder / "table.csv"), "--accept", "--json"]
    done = CliRunner().invoke(app, ["data", "fetch", "movielens-100k", *words])
    if done.exception is not None:
        raise done.exception
    return (folder / "table.csv").read_bytes()


ARM = {"arm": "fl", "rounds": 3, "points": [{"round": 3, "auc": 0.75}]}


def experiment_settings(folder: Path) -> object:
    return _read_settings(folder / SETTINGS)


def read_old_checkpoint(folder: Path) -> object:
    """Of a version that wrote no checksum: what is read may be anything, but it is read or refused."""
    read_arrays(folder / "old.npz")
    return None


KINDS = {
    "metrics": Kept(
        lambda folder: MetricsFile(folder / METRICS, journal()[1]).close(),
        (METRICS,),
        lambda folder: recover_lines(folder / METRICS, journal()[0]),
        same_or_lost,
    ),
    "curves": Kept(
        lambda folder: (folder / CURVES).write_bytes(
            _csv([("arm", "round", "auc", "loss"), *(("fl", at, f"{at / 9:.6f}", "1") for at in range(1, 9))])
        ),
        (CURVES,),
        read_curves,
    ),
    "outcomes": Kept(
        lambda folder: [_append(folder / ARMS, [outcome(number)]) for number in range(4)],
        (ARMS,),
        read_outcomes,
    ),
    "store": Kept(make_store, ("store/data.mdb",), read_store),
    "registry": Kept(make_registry, ("registry",), read_registry),
    "registry's log": Kept(make_registry_log, ("registry-wal", "registry"), read_registry_log, same_or_said),
    "clock": Kept(make_clock, ("clock",), read_clock, same_or_said),
    "versions": Kept(make_server, ("versions/first/data.mdb",), lambda folder: versions(folder)),
    "backup": Kept(
        make_backup,
        ("backup/backup.json", "backup/store/data.mdb", "backup/registry.sqlite"),
        restored,
    ),
    "state": Kept(make_state, ("state",), read_state),
    "home": Kept(
        make_home,
        ("deployment", "rows", "data", "data.sum", "model", "state", "exposed", "terms"),
        read_home,
    ),
    "snapshot": Kept(make_snapshot, ("snapshot", "state"), snapshot_goes_on),
    "keys": Kept(
        make_keys,
        ("authority.key", "authority.pem", "server.key", "server.pem", "identity.key"),
        read_keys,
    ),
    "log of identities": Kept(make_roster, ("roster.log", "roster.head", "roster.key"), read_roster),
    "head of a log": Kept(make_head, ("log",), lambda folder: member(folder).known()),
    "evidence of a fork": Kept(
        make_evidence, ("log-fork.json",), lambda folder: read_heads(folder / "log-fork.json")
    ),
    "best": Kept(make_best, ("best/evaluation.json", "best/data.mdb"), read_best, same_or_anew),
    "described model": Kept(make_described, ("model.json", "model-catalogue.json"), read_whole),
    "bundle": Kept(
        lambda folder: [write("logistic", folder / name) for name in ("bundle", "bundle.zip")],
        ("bundle/bundle.json", "bundle/weights.safetensors", "bundle/model.py", "bundle.zip"),
        lambda folder: [read_bundle(folder / name) for name in ("bundle", "bundle.zip")],
    ),
    "sheet": Kept(
        lambda folder: write_sheet(folder / "unions.csv", UnionRow, sheet_rows()),
        ("unions.csv",),
        lambda folder: read_sheet(folder / "unions.csv", UnionRow),
    ),
    "arm of a bench": Kept(
        lambda folder: write_arm(folder / "fl.json", ARM),
        ("fl.json",),
        lambda folder: read_arm(folder / "fl.json"),
    ),
    "experiment": Kept(
        lambda folder: _write_settings(folder / SETTINGS, {"fl": RunConfig()}),
        (SETTINGS,),
        experiment_settings,
    ),
    "source of a table": Kept(make_fetched, ("table.csv.source.json",), fetch),
    "run": Kept(
        make_run,
        ("run/config.toml", "run/summary.json", "run/versions.json", "run/metrics.jsonl"),
        read_run,
    ),
    "checkpoint": Kept(make_tune, ("tune/state.npz", "tune/tune.json"), read_tune),
    "old checkpoint": Kept(
        lambda folder: np.savez(folder / "old.npz", a=np.arange(50.0), b=np.arange(9)),
        ("old.npz",),
        read_old_checkpoint,
    ),
    "catalogue": Kept(
        lambda folder: [
            write_catalogue(
                Catalogue.of_items(np.arange(9) * 7, np.arange(3), np.arange(9) % 3), folder / name
            )
            for name in ("catalogue.json", "catalogue.json.gz")
        ],
        ("catalogue.json", "catalogue.json.gz"),
        lambda folder: [
            read_catalogue(folder / name).whole for name in ("catalogue.json", "catalogue.json.gz")
        ],
    ),
    "interactions": Kept(
        lambda folder: store_interactions(
            SyntheticTaobao(SyntheticSettings().scaled(0.02, users=5), seed=1).interactions(),
            folder / "data",
            about="five users",
        ),
        ("data/manifest.json", "data/item.npy", "data/label.npy"),
        lambda folder: {
            name: np.asarray(one).tolist() for name, one in vars(load_stored(folder / "data")).items()
        },
    ),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of lines about what was mended say nothing."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def flip_bits(kind: str, flips: int, seed: int) -> dict[str, int]:
    """Flip one bit after another, each in files as they were; return how the reader took them."""
    kept, draws, took = KINDS[kind], random.Random(f"{kind} {seed}"), {"same": 0, "refused": 0}
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        whole, broken = Path(place) / "whole", Path(place) / "broken"
        whole.mkdir()
        kept.make(whole)
        shutil.copytree(whole, broken)
        wanted = kept.read(broken)
        for number in range(flips):
            shutil.rmtree(broken)
            shutil.copytree(whole, broken)
            file = broken / kept.files[number % len(kept.files)]
            data = bytearray(file.read_bytes())
            at = draws.randrange(8 * len(data))
            data[at // 8] ^= 1 << at % 8
            file.write_bytes(data)
            try:
                found = kept.read(broken)
            except SfslError:
                took["refused"] += 1
                continue
            except BaseException as error:
                raise AssertionError(
                    f"{kind}, seed {seed}, flip {number}: bit {at} of {file.name}"
                ) from error
            assert kept.same(found, wanted), f"{kind}, seed {seed}, flip {number}: bit {at} of {file.name}"
            took["same"] += 1
    return took


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_is_taken_for_what_was_written(kind: str) -> None:
    took = flip_bits(kind, FEW, seed=1)
    assert sum(took.values()) == FEW


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_of_many_flipped_bits_none_is(kind: str) -> None:
    took = flip_bits(kind, MANY, seed=2)
    sys.stdout.write(f"{kind}: {took}\n")
    assert sum(took.values()) == MANY
