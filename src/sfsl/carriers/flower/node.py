"""A node's own configuration: where its client lives, and what that client insists on.

It is the node's operator who gives it (``flower-supernode --node-config``), never the server: privacy
parameters and limits are the client's. Simulated nodes have no operator; the run's section ``node`` stands
for him there.
"""

import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from sfsl.carriers.flower.names import node_name
from sfsl.client.home import Home
from sfsl.crypto.randomness import Randomness, SystemRandomness
from sfsl.errors import InputError
from sfsl.settings import terms
from sfsl.settings.sections import about, section_from

_FOLDER = "simulation.folder"
_TEMPORARY = "temporary"
_FLOWERS_OWN = ("partition-id", "num-partitions")


class Terms(terms.Terms, frozen=True, rename="kebab"):
    """What a node's client insists on, and where it lives."""

    state: Annotated[str, about("This client's folder; made if it is not there.")] = ""
    data: Annotated[str, about("Its samples; what is in the file is for the app to say.")] = ""
    roster: Annotated[str, about("Insist on active mode, and on these node ids and public keys.")] = ""
    epsilon: Annotated[float, Meta(ge=0), about("Epsilon per index over all periods; 0 is no limit.")] = 0.0

    @property
    def _most_epsilon(self) -> float:
        return self.epsilon or math.inf


@dataclass(frozen=True)
class Node:
    """One node as an app sees it. ``config`` and ``run`` are Flower's configurations of the node and the run;
    ``label`` is what its durable state is marked with, so that it is not taken for another's."""

    name: str
    label: str
    home: Home
    terms: Terms
    config: Mapping[str, Any]
    run: Mapping[str, Any]
    simulated: bool
    randomness: Randomness

    @property
    def partition(self) -> int:
        """Which part of the data is this node's, in a simulation or where its operator says so."""
        found = self.config.get("partition-id")
        if isinstance(found, bool) or not isinstance(found, int):
            raise InputError("this node has no partition-id; give one with --node-config 'partition-id=0'")
        return found

    @staticmethod
    def today() -> date:
        return datetime.now(UTC).date()


def open_node(
    node_id: int, run_id: int, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
) -> Node:
    """From what Flower knows of a node. A node with a folder is a deployed one, whatever the run says."""
    randomness = SystemRandomness()
    name = node_name(node_id)
    if "state" in node_config:
        own = {key: value for key, value in node_config.items() if key not in _FLOWERS_OWN}
        known = {key: value for key, value in own.items() if not key.startswith("app.")}
        own_terms = _terms("node config", known)
        if not own_terms.state:
            raise InputError("node config: state is a folder of this node's own, and empty here")
        home = Home(Path(own_terms.state).expanduser(), randomness)
        return Node(name, name, home, own_terms, node_config, run_config, False, randomness)
    # A run's word is not enough: a server could otherwise have a deployed client forget its ledger.
    if not (run_config.get(_FOLDER) and "ray" in sys.modules):
        raise InputError(
            "this node has no folder for its client's durable state; start it with --node-config "
            "'state=\"/path/of/its/own\"'"
        )
    own_terms = _terms("node", _section(run_config, "node."))
    chosen = str(run_config[_FOLDER])
    under = Path(tempfile.gettempdir()) / f"sfsl-{run_id}" if chosen == _TEMPORARY else Path(chosen)
    label = f"partition-{node_config.get('partition-id', node_id)}"
    return Node(
        name, label, Home(under / label, randomness), own_terms, node_config, run_config, True, randomness
    )


def _terms(section: str, content: Mapping[str, Any]) -> Terms:
    found = section_from(section, Terms, content)
    assert isinstance(found, Terms)  # noqa: S101 -- it was asked for
    return found


def _section(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
