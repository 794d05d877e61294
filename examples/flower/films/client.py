"""The ClientApp: runs at each node, a process for every message."""

from films.data import load
from films.model import task
from sfsl.flower import client_app, device_member

app = client_app(lambda node: device_member(node, task(), lambda state: load(node, state)))
