"""Which settings a search tries: a table of keys and values around the run's own, and arms drawn from it."""

from collections.abc import Callable, Mapping
from itertools import product, zip_longest

import msgspec
import numpy as np

from sfsl.errors import ParameterError
from sfsl.settings.run import RunConfig, TrainingSettings

Value = float | int | str
Changes = Mapping[str, Value]

_ARMS = 1004  # its stream of the seed


def _times(*factors: float) -> Callable[[Value], list[Value]]:
    return lambda own: [float(f"{float(own) * factor:.3g}") for factor in factors]


def _among(*values: Value) -> Callable[[Value], list[Value]]:
    return lambda own: [*values]


# One of them is tried alone and before all else. Where clients have few samples, biases of users and items
# may be all there is to learn, and a network is in their way.
_MODELS = ("logistic", "din")
# By key: what is tried beside the run's own value, which always is. Multiples follow whatever the default is.
SPACE: Mapping[str, Callable[[Value], list[Value]]] = {
    "server.row_rate": _times(1 / 3, 3),
    "server.row_prior": _times(1 / 3, 3),
    "server.row_pull": _among(0.0, 20.0, 100.0),
    "server.dense_rate": _times(1 / 3, 3),
    "training.learning_rate": _times(1 / 2, 2),
    "training.rebuild": _among(0.0, TrainingSettings().rebuild),
    "training.epochs": _among(1, 2),
}


def with_changes(config: RunConfig, changes: Changes) -> RunConfig:
    """Return the settings with these keys changed."""
    for name, value in changes.items():
        section, _, key = name.partition(".")
        own = msgspec.structs.replace(getattr(config, section), **{key: value})
        config = msgspec.structs.replace(config, **{section: own})
    return config


def said_value(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def draw_arms(base: RunConfig, count: int, seed: int, *, personal: bool = True) -> list[Changes]:
    """Draw ``count`` arms, or as many as there are; the first is ``base`` itself, without changes.

    In turn one arm differs from it in a single setting, and one is from anywhere in the grid: the first kind
    is often better where the default is nearly right, the second where it is not. Arms whose local training
    is the same share a pass on the device, so there are about twice as many arms as ways of local training.
    The second arm is another model. ``personal``: whether the model has personal rows; without any there is
    nothing to rebuild.
    """
    grid = [one for one in _grid(base, personal) if one]
    order = [grid[place] for place in np.random.default_rng([_ARMS, seed]).permutation(len(grid))]
    near, far = ([one for one in order if (len(one) == 1) is single] for single in (True, False))
    candidates = [one for pair in zip_longest(near, far) for one in pair if one]
    local, limit = {base.training}, max(2, count // 2)
    other = next(kind for kind in _MODELS if kind != base.model.kind)
    chosen: list[Changes] = [{}, {"model.kind": other}]
    waiting: list[Changes] = []
    for one in candidates:
        training = with_changes(base, one).training
        if len(one) > 1 and training not in local and len(local) >= limit:
            waiting.append(one)
            continue
        local.add(training)
        chosen.append(one)
    return [*chosen, *waiting][:count]


def _grid(base: RunConfig, personal: bool) -> list[Changes]:
    """Return every combination that the settings allow, each as what it changes."""
    # Keys that change nothing here would make arms that are the same.
    averages = base.server.row_step != "heat"
    idle = {"training.rebuild": not personal, "server.row_prior": averages, "server.row_pull": averages}
    choices = []
    for key, around in SPACE.items():
        own = _own(base, key)
        tried = [] if idle.get(key) else [one for one in dict.fromkeys(around(own)) if one != own]
        choices.append([None, *tried])
    found = list[Changes]()
    for values in product(*choices):
        changes = {key: one for key, one in zip(SPACE, values, strict=True) if one is not None}
        try:
            with_changes(base, changes)
        except ParameterError:  # beyond the bounds of a setting
            continue
        found.append(changes)
    return found


def _own(base: RunConfig, name: str) -> Value:
    """Return the run's own value; for "auto" what it stands for."""
    section, _, key = name.partition(".")
    value = getattr(getattr(base, section), key)
    own: Value = getattr(base, key) if value == "auto" else value
    return own
