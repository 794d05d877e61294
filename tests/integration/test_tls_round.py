"""A tiny cohort over TLS; the real one is ``bench/tls_round.py`` with its run file (docs/results.md)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clocks import PATIENCE

pytest.importorskip("torch")

BENCH = Path(__file__).parents[2] / "bench"
SMALL = ("data.source=synthetic", "data.path=", "data.users=6", "data.scale=0.03", "round.min_contributors=2")


@pytest.mark.slow  # what it shows of rounds over a network, test_http_rounds and test_client_cli show too
def test_a_cohort_over_tls_makes_the_local_engines_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [word for one in (*SMALL, "serve.largest_set=300") for word in ("--set", one)]
    out = tmp_path / "out"
    ran = subprocess.run(  # noqa: S603
        [sys.executable, str(BENCH / "tls_round.py"), "--clients", "4", "--rounds", "2", *settings,
         "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["rounds"] == {"all": 2, "committed_by_everyone": 2}
    assert not any(found["different"].values())
    assert min(found["rows_compared"].values()) > 0
    assert found["dense_moved"] > 100
    assert len(found["seconds"]) == 7
    for one in found["seconds"].values():
        assert one["overhead"] == pytest.approx(one["wall"] - one["slowest_client"])

    # It tells a store of other rounds apart.
    monkeypatch.syspath_prepend(str(BENCH))
    from sfsl.run.fleet import build_fleet
    from sfsl.settings.serve import from_all_sections
    from sfsl.settings.toml import overridden, read_sections
    from tls_round import differences, in_one_process

    changed = [*SMALL, "round.clients=4", "serve.min_cohort=4", "run.seed=0"]
    chosen = from_all_sections(overridden(read_sections(BENCH / "tls_round.toml"), changed))
    fleet = build_fleet(chosen.run)
    other = differences(in_one_process(chosen, fleet, 4, 1), out / "state/store", fleet)["different"]
    assert other["round"] == 1
    assert other["dense values"] > 100
    assert other["item values"] > 0
