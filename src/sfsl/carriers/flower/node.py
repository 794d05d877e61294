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
from typing import Annotated, Any, Literal

from msgspec import Meta

from sfsl.carriers.flower.names import node_name
from sfsl.client.home import Home
from sfsl.codec import Checked
from sfsl.crypto.randomness import Randomness, SystemRandomness
from sfsl.errors import InputError
from sfsl.privacy import PRESETS, Budget, Calendar, IndexPrivacy
from sfsl.rounds import RoundPolicy
from sfsl.secagg import Policy
from sfsl.settings.sections import about, section_from

# As servers count them, so that a client's period and a server's of the same length are the same.
_PERIODS_FROM = date(1970, 1, 1)
_MOST_WORDS = 1 << 25  # of a sum: 128 MiB at four bytes
_FOLDER = "simulation.folder"
_TEMPORARY = "temporary"
_FLOWERS_OWN = ("partition-id", "num-partitions")


class Terms(Checked, frozen=True, rename="kebab"):
    """What a client insists on; as ``sfsl join`` has it."""

    state: Annotated[str, about("This client's folder; made if it is not there.")] = ""
    data: Annotated[str, about("Its samples; what is in the file is for the app to say.")] = ""
    roster: Annotated[str, about("Insist on active mode, and on these node ids and public keys.")] = ""
    privacy: Annotated[
        Literal["cpp1", "cpp2", "cpp3", "cpp4", "cpp5"], about("How it answers which rows it has.")
    ] = "cpp2"
    period_days: Annotated[int, Meta(ge=1, le=3650), about("Days in a period; fixed with the folder.")] = 7
    exposures: Annotated[int, Meta(ge=0), about("Rounds in a period; epsilon does not cover more.")] = 1
    epsilon: Annotated[float, Meta(ge=0), about("Epsilon per index over all periods; 0 is no limit.")] = 0.0
    least_cohort: Annotated[int, Meta(ge=2, le=512), about("Decline rounds of fewer clients.")] = 3
    least_threshold: Annotated[int, Meta(ge=2, le=512), about("Decline rounds that fewer can open.")] = 3
    least_contributors: Annotated[
        int, Meta(ge=1, le=512), about("Decline rounds that open rows of fewer clients.")
    ] = 2
    max_clip: Annotated[float, Meta(gt=0), about("Decline updates clipped at more than this.")] = 10.0
    max_rows: Annotated[int, Meta(ge=1), about("Decline submodels of more rows.")] = 10**6

    @property
    def index_privacy(self) -> IndexPrivacy:
        return PRESETS[self.privacy]

    @property
    def budget(self) -> Budget:
        return Budget(self.index_privacy.epsilon_infinity, self.epsilon or math.inf, self.exposures)

    @property
    def calendar(self) -> Calendar:
        return Calendar(start=_PERIODS_FROM, days=self.period_days)

    @property
    def policy(self) -> RoundPolicy:
        session = Policy(
            min_clients=self.least_cohort,
            min_threshold=self.least_threshold,
            min_contributors=self.least_contributors,
            max_words=_MOST_WORDS,
        )
        return RoundPolicy(session=session, max_clip=self.max_clip, max_rows=self.max_rows)


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
        terms = _terms("node config", known)
        if not terms.state:
            raise InputError("node config: state is a folder of this node's own, and empty here")
        home = Home(Path(terms.state).expanduser(), randomness)
        return Node(name, name, home, terms, node_config, run_config, False, randomness)
    # A run's word is not enough: a server could otherwise have a deployed client forget its ledger.
    if not (run_config.get(_FOLDER) and "ray" in sys.modules):
        raise InputError(
            "this node has no folder for its client's durable state; start it with --node-config "
            "'state=\"/path/of/its/own\"'"
        )
    terms = _terms("node", _section(run_config, "node."))
    chosen = str(run_config[_FOLDER])
    under = Path(tempfile.gettempdir()) / f"sfsl-{run_id}" if chosen == _TEMPORARY else Path(chosen)
    label = f"partition-{node_config.get('partition-id', node_id)}"
    return Node(
        name, label, Home(under / label, randomness), terms, node_config, run_config, True, randomness
    )


def _terms(section: str, content: Mapping[str, Any]) -> Terms:
    found = section_from(section, Terms, content)
    assert isinstance(found, Terms)  # noqa: S101 -- it was asked for
    return found


def _section(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
