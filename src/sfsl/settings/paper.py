"""The paper's own settings (§V and Algorithm 1), which defaults are no longer."""

from collections.abc import Mapping
from typing import Any

from sfsl.settings.toml import Sections, overridden

# Model and training as the paper has them: DIN on sums of histories, batches of two at a rate of 1, personal
# rows that are kept from round to round.
MODEL: Sections = {
    "data": {"world": "paper", "max_history": 50, "validation": 0.0},
    "model": {"layout": "paper", "initial": 0.05},
    "training": {
        "batch_size": 2,
        "learning_rate": 1.0,
        "decay": 0.999,
        "clip": 0.1,
        "max_samples": 0,
        "rebuild": 0.0,
    },
    "server": {"row_step": "add", "row_rate": 1.0, "dense_step": "add"},
}
# As the paper's Algorithm 1 has it: rows and dense part move by averages over samples.
ALGORITHM_1 = {"weights": "samples", "kappa": 1.0, "kappa_rounds": 0, "dense_rate": 1.0}


def as_in_paper(sections: Mapping[str, Any]) -> Sections:
    """Return these settings, and the paper's for what they do not say."""
    own = overridden(sections, ())
    scheme = own.get("round", {}).get("scheme", "sfsl")
    paper = {name: dict(content) for name, content in MODEL.items()}
    paper["round"] = {"min_contributors": 1}
    if scheme in ("sfsl", "fsl"):  # full models are averaged by the size of data sets
        paper["server"] |= ALGORITHM_1
    return {name: paper.get(name, {}) | own.get(name, {}) for name in [*paper, *own]}
