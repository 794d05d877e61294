"""Secure federated submodel learning: sums, unions and models of many clients, without seeing one of them.

In one call, all parties in this process, on the real protocol:

    aggregate            sum vectors of whole numbers           -> Aggregate
    secure_mean          the mean of float vectors              -> SecureMean
    private_set_union    unite sets of indices                  -> UnionResult

A model trained over simulated clients, yours or ours:

    train                run rounds; a callback hears of each   -> TrainedRun, with a RoundRecord for each
    load                 the model in a folder of a run         -> Model
    Table, Task          your torch module, and which of its embeddings are tables
    Samples, Fleet       what a client has, and all clients together
    Callback             is told of a run's start, rounds, tests and end: write your own tracker
    StopTraining         raised by a callback, ends a run

A deployment on a network:

    serve, serve_async   a server, which tells you when it is ready -> Serving
    join, join_async     a client inside your program               -> a list of Attempt
    Terms, Event         what that client insists on, and what it tells you
    Catalogue            what a served model is about: its items or words; it can grow

Every error is a SfslError (sfsl.errors draws the tree). Each name has an example: help(sfsl.train).
Importing sfsl is light; a name loads what it needs when it is first used, and says which extra has it.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sfsl.client import Attempt
    from sfsl.client.events import Event
    from sfsl.client.join import join, join_async
    from sfsl.data import Catalogue, Samples
    from sfsl.deploy import Serving, serve, serve_async
    from sfsl.errors import SfslError
    from sfsl.mean import SecureMean, secure_mean
    from sfsl.rounds.record import RoundRecord
    from sfsl.run.callbacks import Callback, StopTraining
    from sfsl.run.fleet import Fleet
    from sfsl.run.load import Model, load
    from sfsl.run.train import TrainedRun, train
    from sfsl.secagg import Aggregate, aggregate
    from sfsl.settings.terms import Terms
    from sfsl.submodel import Table
    from sfsl.training import Task
    from sfsl.union import UnionResult, private_set_union

__all__ = [
    "Aggregate",
    "Attempt",
    "Callback",
    "Catalogue",
    "Event",
    "Fleet",
    "Model",
    "RoundRecord",
    "Samples",
    "SecureMean",
    "Serving",
    "SfslError",
    "StopTraining",
    "Table",
    "Task",
    "Terms",
    "TrainedRun",
    "UnionResult",
    "__version__",
    "aggregate",
    "join",
    "join_async",
    "load",
    "private_set_union",
    "secure_mean",
    "serve",
    "serve_async",
    "train",
]

# Where each name is, and the extra that holds what it needs.
_ROOMS = {
    "sfsl.errors": ("", ("SfslError",)),
    "sfsl.secagg": ("", ("Aggregate", "aggregate")),
    "sfsl.union": ("", ("UnionResult", "private_set_union")),
    "sfsl.mean": ("", ("SecureMean", "secure_mean")),
    "sfsl.submodel": ("", ("Table",)),
    "sfsl.data": ("", ("Catalogue", "Samples")),
    "sfsl.rounds.record": ("", ("RoundRecord",)),
    "sfsl.settings.terms": ("", ("Terms",)),
    "sfsl.run.callbacks": ("", ("Callback", "StopTraining")),
    "sfsl.run.load": ("store", ("Model", "load")),
    "sfsl.training": ("train", ("Task",)),
    "sfsl.run.fleet": ("train", ("Fleet",)),
    "sfsl.run.train": ("train,store", ("TrainedRun", "train")),
    "sfsl.client.events": ("", ("Event",)),
    "sfsl.client": ("network", ("Attempt",)),
    "sfsl.client.join": ("network,train", ("join", "join_async")),
    "sfsl.deploy": ("network,store,train", ("Serving", "serve", "serve_async")),
}
_NEEDS = {"train": "torch", "store": "lmdb", "network": "httpx"}


def __getattr__(name: str) -> Any:
    room = next((room for room, (_, names) in _ROOMS.items() if name in names), None)
    if room is None:
        raise AttributeError(f"module 'sfsl' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(room), name)
    except ImportError as error:
        if not (extras := _ROOMS[room][0]):
            raise
        from sfsl.installed import install_command

        raise ImportError(
            f"sfsl.{name} needs more packages ({error}); install them with: {install_command(extras)}"
        ) from error
    return value


def __dir__() -> list[str]:
    """List the names that can be used here, with what is installed."""
    usable = [
        name
        for extras, names in _ROOMS.values()
        if all(find_spec(_NEEDS[extra]) for extra in extras.split(",") if extra)
        for name in names
    ]
    kept = [name for name, value in globals().items() if name[:2] == "__" or isinstance(value, ModuleType)]
    return sorted({*kept, *usable})
