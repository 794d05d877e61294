"""A client on a network, to put into an app: async, cancellable, with no global state and without torch.

::

    async with Link("https://host:8443", identity, ...) as link:
        await Participant(link, model, memory, trainer, ...).run()

What talks to a server needs the extra ``network`` and is loaded when it is first asked for: simulations and
Flower's nodes use the rest of this room, and have no need of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfsl.client.events import Backoff, Event
from sfsl.client.home import PersonalRows
from sfsl.client.round import ClientModel, DurableMemory, Lesson, Memory, Trainer

if TYPE_CHECKING:
    from sfsl.client.link import Link, LinkLimits, trusted
    from sfsl.client.participant import Attempt, Participant, Settings

__all__ = ["Attempt", "Backoff", "DurableMemory", "Event", "Link", "LinkLimits", "Memory", "Participant"]
__all__ += ["ClientModel", "Lesson", "PersonalRows", "Settings", "Trainer", "trusted"]

_TALKS = {"link": ("Link", "LinkLimits", "trusted"), "participant": ("Attempt", "Participant", "Settings")}


def __getattr__(name: str) -> Any:
    for module, names in _TALKS.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"sfsl.client.{module}"), name)
            return value
    raise AttributeError(f"module 'sfsl.client' has no attribute {name!r}")
