"""The settings of a server on Flower: sections of the run's configuration, as ``flwr run`` has it.

``round``, ``privacy``, ``hot``, ``training``, ``server`` and ``run`` are those of a run file; ``flower`` is
below. Other keys are the app's own. Where ``round.scheme`` is not given, rounds are over hot rows.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import ParameterError
from sfsl.service.members import ServiceSettings
from sfsl.settings.rounds import service_settings
from sfsl.settings.run import MOST_CLIENTS, RunConfig, from_sections
from sfsl.settings.sections import explained, section_from
from sfsl.settings.serve import SERVED, days_between, least_cohort, run_sections

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
SECTION = "flower"
_OF_A_RUN = ("round", "privacy", "hot", "training", "server", "run")


@explained
class FlowerSettings(Checked, frozen=True):
    """How a server on Flower calls its nodes, and how long it waits for them.

    state: The server's folder: the store, the registry and the metrics.
    rounds: Stop when so many rounds are in the store.
    min_cohort: Least clients in a round; "auto" is 80 % of round.clients.
    spare: Nodes called beyond round.clients, as a share of it, for those that do not answer.
    check_in_seconds: How long a node has to check in when it is called.
    phase_seconds: How long a node has for an answer; whoever is late is out of the round.
    training_seconds: How long it has for the submodel: to train and upload.
    wait_seconds: How long the run waits for enough nodes before it gives up; the store stands.
    poll_seconds: How often the SuperLink is asked for replies.
    largest_set: The most rows a client has.
    period_days: A node is invited once in so many days; 0 sets no limit here. "auto" is 7 with exact sums,
        the nodes' own period, and 1 with scheme "hot".
    roster: Active mode: the file of node ids and public keys. Empty: honest-but-curious mode.
    """

    state: str = "sfsl-flower"
    rounds: Annotated[int, Meta(ge=1, le=10**7)] = 10
    min_cohort: Annotated[int, Meta(ge=2, le=MOST_CLIENTS)] | Literal["auto"] = "auto"
    spare: Annotated[float, Meta(ge=0, le=10)] = 0.25
    check_in_seconds: Seconds = 120.0
    phase_seconds: Seconds = 120.0
    training_seconds: Seconds = 600.0
    wait_seconds: Seconds = 600.0
    poll_seconds: Annotated[float, Meta(ge=0.05, le=60)] = 0.5
    largest_set: Annotated[int, Meta(ge=1, le=2**24)] = 1000
    period_days: Annotated[int, Meta(ge=0, le=3650)] | Literal["auto"] = "auto"
    roster: str = ""


class FlowerConfig(Checked, frozen=True):
    run: RunConfig
    flower: FlowerSettings

    def require_sound(self) -> None:
        scheme = self.run.round.scheme
        if scheme not in SERVED or self.run.round.sums == "plain":
            raise ParameterError('on Flower rounds have round.scheme = "hot" or "sfsl", and masked sums')
        if scheme == "sfsl" and self.run.round.min_contributors == "auto":
            raise ParameterError(
                'round.min_contributors = "auto" is planned from the data of a simulation, which no server '
                "has; give a number, 2 at least (sfsl plan helps)"
            )

    def rounds(self) -> ServiceSettings:
        own, one = self.flower, self.run.round
        return service_settings(
            self.run,
            own,
            threshold=None if one.threshold == "auto" else one.threshold,
            min_cohort=least_cohort(one.clients, own.min_cohort),
            largest_set=own.largest_set,
            active=bool(own.roster),
            period_days=days_between(one.scheme, own.period_days),
        )


def read_config(run_config: Mapping[str, Any]) -> FlowerConfig:
    """Read a run's flat configuration: ``round.clients`` is the key ``clients`` of the section ``round``."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in run_config.items():
        section, dot, name = key.partition(".")
        if dot:
            sections.setdefault(section, {})[name] = value
    told = run_sections(sections)
    run = from_sections({name: told[name] for name in _OF_A_RUN if name in told})
    return FlowerConfig(run=run, flower=section_from(SECTION, FlowerSettings, sections.get(SECTION, {})))
