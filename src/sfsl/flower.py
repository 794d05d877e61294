"""Rounds on Flower: a ServerApp and a ClientApp for a federation that is there already.

::

    app = server_app(my_task)                                   # in the app's server.py
    app = client_app(lambda node: device_member(node, my_task(), my_samples))     # in its client.py

Flower carries frames that it does not look into; who may know what is settled by the protocol
(docs/guide/flower.md).
"""

from importlib.util import find_spec

from sfsl.installed import install_command

if find_spec("flwr") is None:
    raise ImportError(f"sfsl.flower needs Flower; install it with: {install_command('flower')}")

from sfsl.carriers.flower.apps import client_app, server_app
from sfsl.carriers.flower.node import Member, Node, Terms, device_member, model_of

__all__ = ["Member", "Node", "Terms", "client_app", "device_member", "model_of", "server_app"]
