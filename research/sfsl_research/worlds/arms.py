"""What is trained in a world: the default, the paper's scheme, FL and centralized training at four rates."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from sfsl.settings.paper import as_in_paper
from sfsl.settings.run import RunConfig, from_sections

Sections = Mapping[str, Any]

DEFAULT, PAPER, FL, CENTRALIZED = "default", "paper", "fl", "centralized"
# FL has the default's server optimizer, at its rates times these.
FL_FACTORS = (0.3, 1.0, 3.0, 10.0)
# Of Adam, for batches of 256, which make a round a matter of moments.
CENTRAL_RATES = (0.0003, 0.001, 0.003, 0.01)
_CENTRAL_BATCH = 256
# What a world and the command decide, whatever a settings file says.
_NOT_OF_AN_ARM = ("data", "faults", "ray", "run")


def family_of(arm: str) -> str:
    """Name the arms among which the best counts: ``fl 0.3`` and ``fl 1`` are one family."""
    head = arm.split(" ")[0]
    return head if head in (FL, CENTRALIZED) else arm


# All arms are evaluated on the same held-out samples, and trained to their end.
_NOT_FOLLOWED = (("data", "validation"), ("run", "keep"), ("run", "patience"))
# What there is no such thing as in one place.
_NOT_CENTRAL = ("server", "privacy", "hot")


def arms_of(
    model: str, *, clients: int, seed: int, candidates: Mapping[str, Sections] | None = None
) -> dict[str, RunConfig]:
    """Return the settings of every arm in a world of this model. ``candidates`` stand beside the default."""
    chosen = {DEFAULT: _plain(model, {}, clients, seed)}
    for name, sections in (candidates or {}).items():
        chosen[name] = _plain(model, sections, clients, seed)
    default = chosen[DEFAULT]
    chosen[PAPER] = _plain(model, as_in_paper({}), clients, seed)
    rows, dense = default.row_rate, default.dense_rate
    for factor in FL_FACTORS:
        rates = {"row_rate": rows * factor, "dense_rate": dense * factor}
        chosen[f"{FL} {factor:g}"] = _plain(
            model, {"round": {"scheme": "fl"}, "server": rates}, clients, seed
        )
    for rate in CENTRAL_RATES:
        adam = {"optimizer": "adam", "batch_size": _CENTRAL_BATCH, "learning_rate": rate}
        central = {"round": {"scheme": "centralized"}, "centralized": adam}
        chosen[f"{CENTRALIZED} {rate:g}"] = _plain(model, central, clients, seed)
    return chosen


def _plain(model: str, sections: Sections, clients: int, seed: int) -> RunConfig:
    """Return these settings for plain sums, which give the same model as masked ones, and no secure AUC."""
    chosen = {name: dict(one) for name, one in sections.items() if name not in _NOT_OF_AN_ARM}
    chosen["round"] = chosen.get("round", {}) | {"clients": clients, "sums": "plain", "bins": 0, "cohorts": 1}
    chosen["run"] = {"seed": seed}
    if model == "lstm":
        chosen["model"] = {"kind": model}
        chosen["data"] = {"source": "shakespeare", "path": "a world"}
    return from_sections(chosen)


def digest_of(config: RunConfig) -> str:
    """Return what tells these settings from others, so that a changed arm is trained anew."""
    sections = msgspec.to_builtins(config)
    for section, key in _NOT_FOLLOWED:
        del sections[section][key]
    if config.round.scheme == CENTRALIZED:
        for section in _NOT_CENTRAL:
            del sections[section]
    return sha256(msgspec.json.encode(sections, order="sorted")).hexdigest()[:16]
