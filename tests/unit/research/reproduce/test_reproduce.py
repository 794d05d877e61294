"""`sfsl reproduce` in little: what is measured, its columns, the pictures, the page, and what goes wrong."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.cli import app, main
from sfsl.errors import InputError
from sfsl_research.bench.simulated import Sizes
from sfsl_research.experiments.experiment import CURVES
from sfsl_research.reproduce import measured, paper, targets
from sfsl_research.reproduce.fig_auc import RUNS
from sfsl_research.reproduce.measured import Asked, RoundRow, measure_rounds
from sfsl_research.reproduce.scales import SCALES, Learning, Scale
from sfsl_research.reproduce.sheets import columns, read_sheet, write_sheet
from sfsl_research.reproduce.target import Job
from sfsl_research.reproduce.targets import MADE, PAGE, TARGETS, chosen, reproduce, write_page

TINY = Scale(
    name="tiny",
    clients=(4, 6),
    dropouts=(0.0, 0.2),
    repeats=1,
    cohorts=1,
    remembered=("cpp2", "cpp5", "sfl"),
    learning=Learning(users=12, world=0.01, clients=4, rounds=2, every=1),
    sizes=Sizes(rows=3_000, set_size=30, unique=0.8, categories=40, width=4, dense=50),
    users=200,
)
COLUMNS = {
    "table-privacy": "scheme,p1,p2,p5,p6,epsilon_one,epsilon_infinity,p7,p8,asked_real,asked_other,"
    "opened_alone,opened_zero,paper_p5,paper_p6,paper_epsilon_one,paper_epsilon_infinity,paper_p7,paper_p8",
    "fig-auc": "scheme,round,auc,best,paper_auc,paper_round",
    "fig-communication": "scheme,clients,mib_up,mib_down,mib,paper_mib",
    "fig-computation": "scheme,clients,client_seconds,server_seconds,paper_client_seconds,"
    "paper_server_seconds",
    "table-union": "clients,union_size,encoding,mib,client_seconds,server_seconds,paper_mib,"
    "paper_client_seconds,paper_server_seconds",
    "fig-dropout": "scheme,clients,dropout,server_seconds,paper_server_seconds",
    "memory": "scheme,clients,client_peak_mib,server_peak_mib,client_process_mib,server_process_mib,"
    "paper_client_mib,paper_server_mib",
}
QUICK = [name for name in TARGETS if name != "fig-auc"]


def job(out: Path, scale: Scale = TINY, seed: int = 0) -> Job:
    return Job(out, scale, seed, lambda doing, done, total: None)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pictures are not what is looked at: to draw one takes longer than to measure what is in it."""

    def save(figure: object, folder: Path, name: str) -> list[Path]:
        files = [folder / f"{name}.{form}" for form in ("png", "svg")]
        for file in files:
            file.write_text("a picture")
        return files

    monkeypatch.setattr(targets, "save", save)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """Every target that takes no training, in one folder."""
    out = tmp_path_factory.mktemp("reproduced")
    return out, {name: reproduce(TARGETS[name], job(out))[0] for name in QUICK}


@pytest.mark.parametrize("name", QUICK)
def test_a_target_writes_rows_and_pictures(whole: tuple[Path, dict[str, list[Any]]], name: str) -> None:
    out, rows = whole
    text = (out / f"{name}.csv").read_text()
    assert text.splitlines()[0].startswith(f"scale,seed,{COLUMNS[name]},")  # and a checksum
    assert len(text.splitlines()) == 1 + len(rows[name])
    assert [one.scale for one in rows[name]] == ["tiny"] * len(rows[name])
    png, svg = ((out / f"{name}.{form}").read_bytes() for form in ("png", "svg"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) > 15_000
    assert b"<svg" in svg
    assert svg.count(b"<path") > 30


@pytest.mark.parametrize("name", QUICK)
def test_the_page_has_what_was_measured(whole: tuple[Path, dict[str, list[Any]]], name: str) -> None:
    out, rows = whole
    page = (out / PAGE).read_text()
    section = page.split(f'<section id="{name}">')[1].split("</section>")[0]
    cells = re.findall(r"<td>(.*?)</td>", section)
    measured_here = {
        "table-privacy": lambda row: f"{100 * row.asked_real:.1f}",
        "fig-communication": lambda row: f"{row.mib:.2f}",
        "fig-computation": lambda row: f"{row.server_seconds:.2f}",
        "table-union": lambda row: f"{row.mib:.3f}",
        "fig-dropout": lambda row: f"{row.server_seconds:.3f}",
        "memory": lambda row: f"{row.client_peak_mib:.1f}",
    }[name]
    assert measured_here(rows[name][-1]) in cells
    assert "data:image/png;base64," in section
    assert f"sfsl reproduce {name} --scale tiny --seed 0" in section


def test_the_page_loads_nothing_and_follows_the_reader(whole: tuple[Path, dict[str, list[Any]]]) -> None:
    page = (whole[0] / PAGE).read_text()
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert page.count("<section") == len(QUICK)


def test_the_page_is_made_from_what_is_there(
    whole: tuple[Path, dict[str, list[Any]]], tmp_path: Path
) -> None:
    for name in ("memory", "table-union"):
        (tmp_path / f"{name}.csv").write_bytes((whole[0] / f"{name}.csv").read_bytes())
    page = write_page(tmp_path).read_text()
    assert re.findall(r'<section id="(.*?)"', page) == ["table-union", "memory"]
    assert (tmp_path / "memory.svg").exists()


def test_costs_have_the_papers_order(whole: tuple[Path, dict[str, list[Any]]]) -> None:
    rows = {row.scheme: row.mib for row in whole[1]["fig-communication"] if row.clients == 6}
    assert list(rows) == list(paper.SCHEMES)
    assert rows["cpp1"] < rows["cpp3"] < rows["cpp5"] < rows["sfl"]


def test_the_full_model_is_the_papers() -> None:
    sizes = SCALES["paper"].sizes_of("sfl", 100)
    model = sizes.model()
    summed = [table for table in model.tables if table.kind != "personal"]
    assert model.dense + sum(table.rows * table.width for table in summed) == 3_617_023
    assert SCALES["paper"].sizes_of("cpp2", 100) == Sizes()


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [Asked("cpp1", 4), Asked("cpp5", 4)]
    first = measure_rounds(job(tmp_path), asked[:1])
    made = []
    honest = measured.bench_round

    def counting(*args: Any, **options: Any) -> dict[str, Any]:
        made.append(options["privacy"])
        return honest(*args, **options)

    monkeypatch.setattr(measured, "bench_round", counting)
    both = measure_rounds(job(tmp_path), asked)
    assert made == ["cpp5"]
    assert both[asked[0]].server_seconds == pytest.approx(first[asked[0]].server_seconds, rel=1e-5)
    measure_rounds(job(tmp_path, seed=1), asked[:1])
    assert made == ["cpp5", "cpp1"]
    assert len(read_sheet(tmp_path / measured.ROUNDS, RoundRow)) == 3


def test_memory_is_added_to_a_round_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure_rounds(job(tmp_path), [Asked("cpp1", 4)])[Asked("cpp1", 4)]
    assert first.client_peak_mib is None
    monkeypatch.setattr(measured, "bench_round", None)
    asked = Asked("cpp1", 4, memory=True)
    traced = measure_rounds(job(tmp_path), [asked])[asked]
    assert traced.mib == pytest.approx(first.mib, rel=1e-5)
    assert traced.client_peak_mib  # which is larger, sizes this small do not say
    assert traced.server_peak_mib
    monkeypatch.setattr(measured, "round_memory", None)
    assert measure_rounds(job(tmp_path), [asked])[asked].client_peak_mib == pytest.approx(
        traced.client_peak_mib, rel=1e-5
    )


def test_a_stopped_target_keeps_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([measured.bench_round])

    def stopping(*args: Any, **options: Any) -> dict[str, Any]:
        for bench in left:
            return bench(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(measured, "bench_round", stopping)
    with pytest.raises(KeyboardInterrupt):
        reproduce(TARGETS["fig-communication"], job(tmp_path))
    assert len(read_sheet(tmp_path / measured.ROUNDS, RoundRow)) == 1
    assert not (tmp_path / "fig-communication.csv").exists()


def test_of_several_runs_the_median_counts(tmp_path: Path) -> None:
    scale = replace(TINY, repeats=3)
    (found,) = measure_rounds(job(tmp_path, scale), [Asked("cpp2", 4)]).values()
    runs = sorted(row.mib_up for row in read_sheet(tmp_path / measured.ROUNDS, RoundRow))
    assert len(runs) == 3
    assert found.mib_up == pytest.approx(runs[1], rel=1e-5)


def test_infinity_survives_the_sheet(whole: tuple[Path, dict[str, list[Any]]]) -> None:
    read = read_sheet(whole[0] / "table-privacy.csv", TARGETS["table-privacy"].rows)
    assert math.isinf(read[0].epsilon_one)
    assert read[1].epsilon_one == pytest.approx(paper.PRIVACY["cpp2"]["epsilon_one"], abs=0.005)


def test_percentages_of_the_paper_agree_with_its_numbers() -> None:
    """Costs that are derived from one percentage give the other percentages back."""
    for scheme, percent in paper.COMMUNICATION_SAVED.items():
        of = 1 - paper.COMMUNICATION[scheme].value / paper.COMMUNICATION["sfl"].value
        assert 100 * of == pytest.approx(percent, abs=0.05)
    for numbers, saved in (
        (paper.CLIENT_MEMORY, paper.CLIENT_MEMORY_SAVED),
        (paper.SERVER_MEMORY, paper.SERVER_MEMORY_SAVED),
    ):
        of = 1 - numbers["cpp5"].value / numbers["sfl"].value
        assert 100 * of == pytest.approx(saved["cpp5"], abs=0.2)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("scheme,clients\ncpp1,4\n", "its columns are not"),
        (",".join(columns(RoundRow)) + "\ncpp1,many,0,1,1,1,0,4,1,1,1,1,1,1,,,\n", "line 2"),
        (",".join(columns(RoundRow)) + "\ncpp1,4\n", "line 2"),
        ("", "its columns are not"),
        ("\udcff", "decode"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / measured.ROUNDS
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=says) as caught:
        measure_rounds(job(tmp_path), [Asked("cpp1", 4)])
    assert "Remove the file" in str(caught.value)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another folder with --out"):
        write_sheet(tmp_path / "file" / "rows.csv", RoundRow, [])


def test_names() -> None:
    assert [one.name for one in chosen(["all"])] == list(COLUMNS)
    assert [one.name for one in chosen(["memory", "fig-auc"])] == ["fig-auc", "memory"]
    with pytest.raises(InputError, match="no target 'fig-nine'; there are table-privacy, fig-auc"):
        chosen(["fig-nine"])


@pytest.mark.parametrize(
    ("target", "missing", "says"),
    [
        ("fig-auc", "sfsl_research.experiments.experiment", r"pip install .*\[train,store\]"),
        ("memory", "matplotlib.figure", r"pip install .*\[plot\]"),
    ],
)
def test_what_is_not_installed_is_said_before_anything_is_measured(
    target: str, missing: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    if missing.startswith("sfsl"):
        monkeypatch.delattr("sfsl_research.experiments.experiment", raising=False)
    with pytest.raises(InputError, match=says):
        reproduce(TARGETS[target], job(tmp_path))
    assert not any(tmp_path.iterdir())


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "small", replace(TINY, name="small"))


@pytest.mark.parametrize("flags", [[], ["--list"], ["--list", "memory"]])
def test_without_a_target_they_are_listed(flags: list[str]) -> None:
    shown = CliRunner().invoke(app, ["reproduce", *flags], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for name, target in TARGETS.items():
        assert name in shown.stdout
        assert target.about in shown.stdout


@pytest.mark.usefixtures("undrawn")
def test_the_command(tmp_path: Path, tiny: None) -> None:
    words = ["reproduce", "table-union", "table-privacy", "--out", str(tmp_path / "new"), "--seed", "3"]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "Private set union by itself" in shown.stdout
    assert "table-union 1/2: union of 4 clients" in shown.stderr
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert list(told["targets"]) == ["table-privacy", "table-union"]
    assert told["targets"]["table-privacy"][0]["epsilon_one"] is None
    assert told["targets"]["table-union"][0]["seed"] == 3
    assert all(Path(file).stat().st_size for file in told["files"])
    assert str(tmp_path / "new" / PAGE) in told["files"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fig-nine"], "no target 'fig-nine'"),
        (["memory", "--scale", "huge"], "--scale 'huge': there are small and paper"),
        (["fig-auc", "--stop-after", "nan"], "--stop-after nan"),
        (["fig-auc", "--only", "cpp2, cpp9"], "--only cpp9: the curves are"),
        (["table-privacy", "--out", __file__], "cannot make the folder"),
    ],
)
def test_wrong_words(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["sfsl", "reproduce", *words])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert says in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **options: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(measured, "bench_union", stop)
    shown = CliRunner().invoke(app, ["reproduce", "table-union", "--out", str(tmp_path)])
    assert shown.exit_code == 130
    assert "the same command goes on" in shown.stderr


# -- learning ----------------------------------------------------------------------------------


def test_curves_in_little(tmp_path: Path) -> None:
    """Side by side, in two stretches, the second of which goes on where the first ended."""
    rows, _ = reproduce(TARGETS["fig-auc"], job(tmp_path))
    assert (tmp_path / "fig-auc.csv").read_text().startswith(f"scale,seed,{COLUMNS['fig-auc']},")
    by = {scheme: [row for row in rows if row.scheme == scheme] for scheme in {row.scheme for row in rows}}
    assert set(by) == {"centralized", "fl", "cpp1", "cpp2", "cpp3", "cpp4", "cpp5", "ours"}
    assert all([row.round for row in line] == [1, 2] for line in by.values())
    best = {scheme: next(row for row in line if row.best) for scheme, line in by.items()}
    assert (best["cpp2"].paper_auc, best["cpp2"].paper_round) == (0.615, 4908)
    assert best["cpp3"].paper_auc is None
    page = (tmp_path / PAGE).read_text()
    for number in ("0.641", "0.615", "0.601", "0.543", "803", "4,908", f"{best['cpp2'].auc:.4f}"):
        assert f"<td>{number}</td>" in page
    assert "CPP2, our averaging" in page
    assert re.search(r"CPP1 and CPP5 differ by 0\.00\d\d at most", page)
    svg = (tmp_path / "fig-auc.svg").read_text()
    assert svg.count("<path") > 30
    longer = replace(TINY, learning=replace(TINY.learning, rounds=3))
    more, _ = reproduce(TARGETS["fig-auc"], job(tmp_path, longer))
    assert max(row.round for row in more) == 3
    assert [row.auc for row in more if row.round < 3] == [row.auc for row in rows]


@pytest.mark.usefixtures("undrawn")
def test_curves_may_be_made_in_parts(tmp_path: Path) -> None:
    parts = job(tmp_path)
    rows, _ = reproduce(TARGETS["fig-auc"], replace(parts, only=("fl", "centralized", "cpp2")))
    assert {row.scheme for row in rows} == {"fl", "centralized", "cpp2"}
    assert "CPP1 and CPP5" not in (tmp_path / PAGE).read_text().replace("CPP1 and CPP5 have the same", "")
    more, _ = reproduce(TARGETS["fig-auc"], replace(parts, only=("ours",)))
    assert {row.scheme for row in more} == {"fl", "centralized", "cpp2", "ours"}
    assert len([*(tmp_path / RUNS).glob("data-*/")]) == 1
    made = (tmp_path / MADE).read_bytes()
    assert b"--only ours" in made
    elsewhere = replace(parts, out=tmp_path / "elsewhere")
    reproduce(TARGETS["fig-auc"], replace(elsewhere, only=("cpp4",)))
    name = "tiny-0-cpp4"
    shutil.copytree(elsewhere.out / RUNS / name, tmp_path / RUNS / name)
    another = tmp_path / RUNS / "tiny-01" / CURVES  # of another seed
    another.parent.mkdir()
    another.write_text("arm,round,auc,loss,samples,seconds\ncpp3,9,0.61,0.6,100,1.0\n")
    drawn, _ = reproduce(TARGETS["fig-auc"], replace(parts, stop_after=0.0))
    assert {row.scheme for row in drawn} == {"fl", "centralized", "cpp2", "ours", "cpp4"}
    longer = tmp_path / RUNS / "tiny-0-fl" / CURVES  # fewer points, and further
    longer.parent.mkdir()
    longer.write_text("arm,round,auc,loss,samples,seconds\nfl,9,0.61,0.6,100,1.0\n")
    drawn, _ = reproduce(TARGETS["fig-auc"], replace(parts, stop_after=0.0))
    assert [(row.round, row.auc) for row in drawn if row.scheme == "fl"] == [(9, 0.61)]
    assert (tmp_path / MADE).read_bytes() == made  # what was only drawn was not made here and now
    equal = tmp_path / RUNS / "tiny-0-fl-too" / CURVES  # as long, and better: no reason to take it
    equal.parent.mkdir()
    equal.write_text("arm,round,auc,loss,samples,seconds\nfl,9,0.99,0.6,100,1.0\ncpp3,8,nan,nan,0,1.0\n")
    with equal.open("a") as file:
        file.write("cpp3,9,0.52,0.6,100,1.0\n")
    drawn, _ = reproduce(TARGETS["fig-auc"], replace(parts, stop_after=0.0))
    assert [row.auc for row in drawn if row.scheme == "fl"] == [0.61]
    assert [row.auc for row in drawn if row.scheme == "cpp3" and row.best] == [0.52]
    assert (
        "9 rounds (Centralized 2, CPP2 2, CPP4 2, CPP2, our averaging 2 so far)"
        in (tmp_path / PAGE).read_text()
    )
    with pytest.raises(InputError, match="--only cpp9: the curves are"):
        reproduce(TARGETS["fig-auc"], replace(parts, only=("cpp9",)))


@pytest.mark.usefixtures("undrawn")
def test_when_it_was_made_is_when_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thrice = replace(TINY, repeats=3)
    for name in ("table-union", "table-privacy"):
        reproduce(TARGETS[name], job(tmp_path, thrice))
    made = json.loads((tmp_path / MADE).read_text())
    assert made["table-union"]["runs"] == 3
    assert made["table-privacy"]["runs"] == 1
    monkeypatch.setattr("platform.machine", lambda: "another machine")
    reproduce(TARGETS["table-union"], job(tmp_path, thrice))
    assert json.loads((tmp_path / MADE).read_text()) == made
    assert "another machine" not in (tmp_path / PAGE).read_text()
    reproduce(TARGETS["table-union"], job(tmp_path, replace(thrice, repeats=4)))
    assert "another machine" in (tmp_path / PAGE).read_text()


def test_the_papers_scale_wants_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiny = replace(TINY, name="paper")
    for changes, said in [
        ({}, "torch sees no GPU here"),
        ({"device": "cuda"}, "there is cpu"),
        ({"device": "tpu"}, "there is cpu"),
        ({"stop_after": 0.0}, "no AUC in"),
    ]:
        with pytest.raises(InputError, match=said):
            reproduce(TARGETS["fig-auc"], replace(job(tmp_path, tiny), **changes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table-privacy", "table-union"])
def test_small_scale(tmp_path: Path, name: str) -> None:
    """The two that are quick as they ship; costs of rounds take minutes."""
    rows, _ = reproduce(TARGETS[name], job(tmp_path, SCALES["small"]))
    if name == "table-union":
        assert all(row.mib < row.paper_mib for row in rows)
    else:
        assert all(abs(row.asked_real - row.paper_p5) < 0.01 for row in rows)
        assert all(abs(row.opened_zero - row.paper_p8) < 0.015 for row in rows)
