"""The bench of a whole round: what it reports, that it checks its sums, and what does not cost more."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from sfsl.cli import app, main
from sfsl.errors import InputError, ParameterError
from sfsl.rounds import RoundClient
from sfsl.rounds.exchanges import CODEC, order
from sfsl_research.bench.memory import SERVER, MemoryMeter, bare_process_bytes
from sfsl_research.bench.round import bench_round
from sfsl_research.bench.simulated import SimulatedCohort, Sizes

SMALL = Sizes(clients=6, rows=5_000, set_size=40, unique=0.8, categories=60, width=4, dense=50)
EXCHANGES = ["check-in", "invitation", "inbound", "unmask-union", "union", "submodel", "unmask-update"]
KEYS = {
    "clients", "rows", "privacy", "precision", "dropout", "min_contributors", "seed", "encoding", "survivors",
    "union_size", "rows_asked", "client_bytes_up", "client_bytes_down", "client_mib", "client_seconds",
    "client_seconds_max", "server_seconds", "exchanges",
}  # fmt: skip
MEMORY_KEYS = {"client_peak_bytes", "client_peak_bytes_max", "server_peak_bytes", "bare_process_bytes"}


def test_a_small_round() -> None:
    result = bench_round(SMALL, bins=16)
    assert result.keys() >= KEYS
    assert not result.keys() & MEMORY_KEYS
    assert list(result["exchanges"]) == EXCHANGES
    assert result["survivors"] == 6
    assert 0 < result["client_seconds"] <= result["client_seconds_max"]
    for kind in ("up", "down"):
        by_exchange = sum(one[f"bytes_{kind}"] for one in result["exchanges"].values())
        assert by_exchange == pytest.approx(result[f"client_bytes_{kind}"], abs=7)
    least = 4 * (SMALL.dense + 32 + result["rows_asked"] * (SMALL.width + 1))
    assert result["exchanges"]["submodel"]["bytes_up"] > least


def test_active_mode_shows_what_proofs_cost() -> None:
    active, default = (bench_round(SMALL, bins=16, active=on) for on in (True, False))
    assert list(active["exchanges"]) == ["check-in", *order(active=True)]
    assert 20 < active["proof_bytes"] < active["client_bytes_down"] - default["client_bytes_down"]
    assert min(active["proof_client_seconds"], active["proof_server_seconds"]) > 0
    assert not [key for key in default if key.startswith("proof")]


@pytest.mark.parametrize("privacy", ["cpp1", "cpp4", "cpp5"])
@pytest.mark.parametrize(
    ("before", "least"), [("update", 1), ("update", 3), ("set", 2)], ids=lambda value: str(value)
)
def test_sums_are_right_whoever_vanishes(privacy: str, before: str, least: int) -> None:
    result = bench_round(
        SMALL, privacy=privacy, dropout=0.2, dropout_before=before, min_contributors=least, bins=0
    )
    assert result["survivors"] == 5


@pytest.mark.parametrize("which", ["first", "last"])
def test_one_wrong_word_is_noticed(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RoundClient.create_update
    seen = []

    def off_by_one(client: RoundClient, trained: Any) -> Any:
        message = honest(client, trained)
        seen.append(message)
        if len(seen) > 1:
            return message
        words = np.frombuffer(message.words, "<u4").copy()
        words[0 if which == "first" else -1] += 1
        return msgspec.structs.replace(message, words=words.tobytes())

    monkeypatch.setattr(RoundClient, "create_update", off_by_one)
    with pytest.raises(AssertionError, match="plain sums"):
        bench_round(SMALL, bins=0)
    assert len(seen) == SMALL.clients


def test_a_wrong_union_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SimulatedCohort.client

    def forgetful(self: SimulatedCohort, name: str, kind: Any) -> Any:
        kept = self.real[name]
        self.real[name] = kept[self.real[name] != min(map(min, self.real.values()))]
        made = honest(self, name, kind)
        self.real[name] = kept
        return made

    monkeypatch.setattr(SimulatedCohort, "client", forgetful)
    with pytest.raises(AssertionError, match="the union is not"):
        bench_round(SMALL, privacy="cpp5", bins=0)


def test_costs_do_not_follow_the_table() -> None:
    """A packed union takes log2(rows / size) bits and a little per index; nothing else depends on the rows
    of the table, but for the digits of that number itself."""
    small, large = (
        bench_round(replace(SMALL, rows=rows), privacy="cpp5", encoding="sketch", memory=True, bins=0)
        for rows in (10**5, 2 * 10**9)
    )
    assert small["union_size"] == large["union_size"]
    assert _beside_rows(large, "up") == pytest.approx(_beside_rows(small, "up"), abs=8)
    grown = _beside_rows(large, "down") - _beside_rows(small, "down")
    assert 0 < grown <= np.log2(2 * 10**9 / 10**5) / 8 * large["union_size"] + 32
    for party in ("client", "server"):
        peaks = small[f"{party}_peak_bytes"], large[f"{party}_peak_bytes"]
        assert max(peaks) < 1.15 * min(peaks)


def _beside_rows(result: dict[str, Any], way: str) -> float:
    """Bytes other than rows, of whose categories there are a few more or fewer in another table of goods."""
    words = SMALL.width + 1 if way == "up" else SMALL.width
    return float(
        result[f"client_bytes_{way}"] - 4 * words * (result["rows_asked"] + result["categories_asked"])
    )


def test_half_precision_halves_the_rows_of_a_download() -> None:
    whole, half = (bench_round(SMALL, privacy="cpp5", precision=kind) for kind in ("float32", "float16"))
    rows = (whole["rows_asked"] + whole["categories_asked"]) * SMALL.width
    assert whole["client_bytes_down"] - half["client_bytes_down"] == pytest.approx(2 * rows, abs=16)
    assert whole["client_bytes_up"] == half["client_bytes_up"]


def test_simulated_clients_are_like_the_papers() -> None:
    cohort = SimulatedCohort(Sizes(), privacy="cpp2", seed=3)
    assert {len(rows) for rows in cohort.real.values()} <= {300, 301}
    assert np.mean([len(cohort.derived(name)) for name in cohort.real]) == pytest.approx(117, abs=3)
    _, owners = np.unique(np.concatenate([*cohort.real.values()]), return_counts=True)
    assert np.mean(owners == 1) == pytest.approx(0.867, abs=0.01)


class TestMemory:
    def test_what_a_call_keeps_and_what_it_needs(self) -> None:
        meter = MemoryMeter(["ann", "bob"], CODEC, 1)
        kept = []

        def work(data: bytes) -> bytes:
            scratch = np.ones(300_000, np.uint8)
            kept.append(np.ones(100_000, np.uint8))
            return scratch[: 5 * len(data)].tobytes()

        with meter.tracing():
            sent = meter.at_client("ann", work, bytes(10_000))
            assert meter.peaks["ann"] == pytest.approx(460_000, abs=5_000)
            sent = meter.at_client("ann", work, bytes(10_000))
            assert meter.peaks["ann"] == pytest.approx(560_000, abs=5_000)
            meter.at_server(len, sent)
            meter.at_client("bob", len, sent)
        assert meter.peaks[SERVER] == pytest.approx(50_000, abs=1_000)
        assert meter.peaks["bob"] == pytest.approx(50_000, abs=1_000)

    def test_of_a_round(self) -> None:
        result = bench_round(SMALL, privacy="cpp5", memory=True)
        download = 4 * (SMALL.dense + SMALL.width * (result["rows_asked"] + result["categories_asked"]))
        assert result["client_peak_bytes"] > 2 * download  # the message, and what was read from it
        assert result["server_peak_bytes"] > SMALL.clients * download

    def test_a_bare_process(self) -> None:
        resident = bare_process_bytes()
        assert resident is None or 10 << 20 < resident < 1 << 30


def test_command() -> None:
    small = ("bench", "round", "--clients", "4", "--set-size", "20", "--dense", "30", "--bins", "8")
    shown = CliRunner().invoke(app, [*small, "--privacy", "cpp3", "--memory", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result.keys() >= KEYS | MEMORY_KEYS
    assert (result["privacy"], result["clients"], result["rows"]) == ("cpp3", 4, 143_534)
    people = CliRunner().invoke(app, small)
    assert "client_mib" in people.output
    assert "unmask-union" in people.output
    help_text = CliRunner().invoke(app, ["bench", "round", "--help"]).output
    assert "Example" in help_text
    assert "--dropout-before" in help_text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--dropout", "1.5"], "fraction below 1"),
        (["--dropout", "-0.1"], "fraction below 1"),
        (["--privacy", "cpp9"], "cpp1, cpp2"),
        (["--dropout-before", "lunch"], "update, set"),
        (["--precision", "float8"], "precision"),
        (["--clients", "1"], "at least 2"),
        (["--rows", "5"], "does not fit"),
        (["--min-contributors", "0"], "min_contributors"),
        (["--bins", "-1"], "bins"),
        (["--encoding", "best"], "sketch"),
        (["--clients", "6", "--set-size", "10", "--dropout", "0.7"], "are needed"),
    ],
)
def test_errors_are_one_line(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["sfsl", "bench", "round", *args])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    errors = capsys.readouterr().err
    assert says in errors
    assert "Traceback" not in errors


def test_errors_have_types() -> None:
    with pytest.raises(InputError):
        bench_round(SMALL, privacy="cpp0")
    with pytest.raises(ParameterError):
        bench_round(SMALL, precision="float8")
