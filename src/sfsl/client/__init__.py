"""A client on a network, to put into an app: async, cancellable, with no global state and without torch.

::

    async with Link("https://host:8443", identity, ...) as link:
        await Participant(link, model, memory, trainer, ...).run()
"""

from sfsl.client.events import Backoff, Event
from sfsl.client.home import PersonalRows
from sfsl.client.link import Link, LinkLimits, trusted
from sfsl.client.participant import Attempt, Participant, Settings
from sfsl.client.round import ClientModel, DurableMemory, Lesson, Memory, Trainer

__all__ = ["Attempt", "Backoff", "DurableMemory", "Event", "Link", "LinkLimits", "Memory", "Participant"]
__all__ += ["ClientModel", "Lesson", "PersonalRows", "Settings", "Trainer", "trusted"]
