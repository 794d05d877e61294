"""A folder of a run says what the run was, also where an older version wrote it."""

from pathlib import Path

from sfsl.run.folder import RunFolder
from sfsl.settings.run import RunConfig


def test_a_run_from_before_there_were_two_worlds_goes_on_in_the_papers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RunConfig())
    assert folder.config() == RunConfig()
    written = folder.config_file.read_text().splitlines()
    folder.config_file.write_text("\n".join(line for line in written if not line.startswith("world =")))
    assert folder.config().data.world == "paper"
