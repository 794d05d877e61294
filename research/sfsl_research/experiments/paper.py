"""The paper's learning curves: its schemes on data of its size, side by side (paper §V, Fig. on AUC)."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import Interactions, hold_out_last
from sfsl.data.stored import load_stored, store_interactions
from sfsl.data.synthetic import WORLDS, SyntheticTaobao
from sfsl.durable import FileLock
from sfsl.errors import InputError
from sfsl.models import din
from sfsl.settings.paper import ALGORITHM_1, MODEL
from sfsl.settings.run import RunConfig, from_sections
from sfsl_research.experiments.experiment import Experiment

# This project's averaging when the figure was made, and that of fl. Defaults change; these curves must not.
_AVERAGED = MODEL["server"] | {"weights": "auto", "kappa": 10.0, "kappa_rounds": 110, "dense_rate": "auto"}


def paper_arms(seed: int, *, clients: int, users: int, scale: float) -> dict[str, RunConfig]:
    """Every curve of the paper's figure, and one more, "ours": cpp2 with this project's averaging."""

    def arm(round_: Mapping[str, object], **sections: Mapping[str, object]) -> RunConfig:
        return from_sections(
            {
                **MODEL,
                "data": {"users": users, "scale": scale, **MODEL["data"]},
                "round": {"clients": clients, "min_contributors": 1, "bins": 0, **round_},
                "run": {"seed": seed},
                # A rate that suits large batches, which make a round of this size a matter of moments.
                "centralized": {"optimizer": "adam", "batch_size": 256, "learning_rate": 0.001},
                **sections,
                "server": {**_AVERAGED, **sections.get("server", {})},
            }
        )

    plain = {"scheme": "sfsl", "sums": "plain"}
    arms = {"centralized": arm({"scheme": "centralized"}), "fl": arm({"scheme": "fl"})}
    for number in range(1, 6):
        arms[f"cpp{number}"] = arm(plain, privacy={"preset": f"cpp{number}"}, server=ALGORITHM_1)
    arms["ours"] = arm(plain, privacy={"preset": "cpp2"})
    return arms


def open_paper_experiment(
    out: Path,
    arms: Mapping[str, RunConfig],
    data: Path,
    *,
    device: torch.device,
    compiled: bool,
    said: Callable[[str], None] = lambda text: None,
) -> Experiment:
    """Begun, or gone on with. The data are made once and stored in a folder, which others may share."""
    config = next(iter(arms.values()))
    train, test = hold_out_last(_data(data, config, said), config.data.held_out)
    task = din(Catalogue.of(train), seed=config.run.seed, layout="paper")
    said(f"{len(train):,} samples to train on, {len(test):,} held out")
    return Experiment(out, arms, task, train, test, device=device, compiled=compiled)


def _data(folder: Path, config: RunConfig, said: Callable[[str], None]) -> Interactions:
    world = WORLDS[config.data.world].scaled(config.data.scale, users=config.data.users)
    # What is 0 is left out, so that folders from before there was taste are known again.
    settings = {name: value for name, value in asdict(world).items() if value}
    about = f"synthetic, seed {config.run.seed}: {msgspec.json.encode(settings).decode()}"
    if not folder.exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder.parent}: {error.strerror}") from None
        with FileLock(folder):  # others may want to make them too
            said(f"making data of {config.data.users:,} clients")
            made = SyntheticTaobao(world, seed=config.run.seed).interactions()
            store_interactions(made, folder, about=about)
    return load_stored(folder, about=about)
