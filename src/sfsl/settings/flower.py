"""The settings of a server on Flower: sections of the run's configuration, as ``flwr run`` has it.

``round``, ``training``, ``server`` and ``run`` are those of a run file; ``flower`` is below. Other keys are
the app's own.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import ParameterError
from sfsl.service.settings import ServiceSettings
from sfsl.settings.rounds import service_settings
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.sections import about, section_from
from sfsl.settings.serve import least_cohort

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
SECTION = "flower"
_OF_A_RUN = ("round", "training", "server", "run")


class FlowerSettings(Checked, frozen=True):
    state: Annotated[str, about("The server's folder: the store, the registry and the metrics.")] = (
        "sfsl-flower"
    )
    rounds: Annotated[int, Meta(ge=1, le=10**7), about("Stop when so many rounds are in the store.")] = 10
    min_cohort: Annotated[
        Annotated[int, Meta(ge=2, le=512)] | Literal["auto"],
        about('Least clients in a round; "auto" is 80 % of round.clients.'),
    ] = "auto"
    spare: Annotated[
        Annotated[float, Meta(ge=0, le=10)],
        about("Nodes called beyond round.clients, as a share of it, for those that do not answer."),
    ] = 0.25
    check_in_seconds: Annotated[Seconds, about("How long a node has to check in when it is called.")] = 120.0
    phase_seconds: Annotated[
        Seconds, about("How long a node has for an answer; whoever is late is out of the round.")
    ] = 120.0
    training_seconds: Annotated[Seconds, about("How long it has for the submodel: to train and upload.")] = (
        600.0
    )
    wait_seconds: Annotated[
        Seconds, about("How long the run waits for enough nodes before it gives up; the store stands.")
    ] = 600.0
    poll_seconds: Annotated[
        Annotated[float, Meta(ge=0.05, le=60)], about("How often the SuperLink is asked for replies.")
    ] = 0.5
    largest_set: Annotated[int, Meta(ge=1, le=2**24), about("The most rows a client has.")] = 1000
    period_days: Annotated[
        int, Meta(ge=0, le=3650), about("A node is invited once in so many days; 0 sets no limit here.")
    ] = 1
    roster: Annotated[
        str, about("Active mode: the file of node ids and public keys. Empty: honest-but-curious mode.")
    ] = ""


class FlowerConfig(Checked, frozen=True):
    run: RunConfig
    flower: FlowerSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.round.scheme != "sfsl" or self.run.round.sums == "plain":
            raise ParameterError('on Flower rounds have round.scheme = "sfsl" and masked sums')
        if self.run.round.min_contributors == "auto":
            raise ParameterError(
                'round.min_contributors = "auto" is planned from the data of a simulation, which no server '
                "has; give a number, 2 at least (sfsl plan helps)"
            )

    def rounds(self) -> ServiceSettings:
        own, one = self.flower, self.run.round
        return service_settings(
            self.run,
            threshold=None if one.threshold == "auto" else one.threshold,
            min_cohort=least_cohort(one.clients, own.min_cohort),
            largest_set=own.largest_set,
            active=bool(own.roster),
            check_in_seconds=own.check_in_seconds,
            phase_seconds=own.phase_seconds,
            training_seconds=own.training_seconds,
            period_days=own.period_days,
            rounds=own.rounds,
        )


def read_config(run_config: Mapping[str, Any]) -> FlowerConfig:
    """From a run's flat configuration: ``round.clients`` is the key ``clients`` of the section ``round``."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in run_config.items():
        section, dot, name = key.partition(".")
        if dot:
            sections.setdefault(section, {})[name] = value
    run = from_sections({name: sections[name] for name in _OF_A_RUN if name in sections})
    flower = section_from(SECTION, FlowerSettings, sections.get(SECTION, {}))
    assert isinstance(flower, FlowerSettings)  # noqa: S101 -- it was asked for
    return FlowerConfig(run=run, flower=flower)
