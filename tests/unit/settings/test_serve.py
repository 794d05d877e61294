"""Settings of a server: safe by default, and refused where they are not."""

import tomllib
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import ParameterError
from sfsl.settings.flower import read_config
from sfsl.settings.run import from_sections
from sfsl.settings.sections import description
from sfsl.settings.serve import ServeSettings, from_all_sections, section_toml
from sfsl.settings.terms import Terms

TLS = {"certificate": "server.pem", "key": "server.key"}
LISTED = TLS | {"clients": "clients.txt"}


def test_defaults_are_safe() -> None:
    own = from_all_sections({"serve": LISTED}).serve
    assert own.host == "127.0.0.1"
    assert not own.plain
    assert not own.proxied
    assert own.enrolment == "list"
    assert own.period_days == "auto"


@pytest.mark.parametrize(
    ("serve", "own"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"plain": True}, False),
        (TLS, False),
    ],
    ids=str,
)
def test_on_loopback_the_server_may_make_its_own_certificate(serve: dict[str, Any], own: bool) -> None:
    assert from_all_sections({"serve": serve | {"enrolment": "open"}}).serve.own_tls is own


def test_every_key_is_described() -> None:
    for field in msgspec.structs.fields(ServeSettings):
        assert description(field).endswith("."), field.name


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        ({"clients": "c", "host": "0.0.0.0"}, "needed for TLS.*sfsl keys authority"),  # noqa: S104
        ({"clients": "c", "key": "server.key"}, "needed for TLS"),
        ({"clients": "c", "certificate": "server.pem"}, "needed for TLS"),
        (LISTED | {"plain": True}, "contradict"),
        ({"clients": "c", "plain": True, "host": "0.0.0.0"}, "only loopback"),  # noqa: S104
        (TLS, "needs the file of public keys"),
        (LISTED | {"enrolment": "open"}, '"open" has none'),
        (LISTED | {"enrolment": "all"}, "not one of 'list', 'open'"),
        (LISTED | {"port": 70000}, "serve.port = 70000"),
        (LISTED | {"phase_seconds": 0}, "serve.phase_seconds"),
        (LISTED | {"min_cohort": 101}, "serve.min_cohort = 101"),
        (LISTED | {"nothing": 1}, "there is no key serve.nothing"),
    ],
    ids=str,
)
def test_what_is_refused(serve: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        from_all_sections({"serve": serve})


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ({"round": {"scheme": "fl"}}, "is for simulations"),
        ({"round": {"scheme": "sfl"}}, "is for simulations"),
        ({"round": {"sums": "plain"}}, "hides nothing"),
        ({"round": 3}, "round"),
        ({"serve": LISTED | {"active": True}, "round": {"clients": 600}}, "everybody checks"),
        ({"nothing": {}}, r"there is no section \[nothing\]"),
    ],
)
def test_what_a_server_does_not_run(rest: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        from_all_sections({"serve": LISTED} | rest)


def test_a_server_runs_rounds_over_hot_rows_unless_it_says_otherwise() -> None:
    chosen = from_all_sections({"serve": LISTED}).run
    assert (chosen.round.scheme, chosen.privacy.participations, chosen.hot.surveys) == ("hot", 10, 1)
    own = {"privacy": {"participations": 3}, "hot": {"surveys": 2}}
    chosen = from_all_sections({"serve": LISTED} | own).run
    assert (chosen.privacy.participations, chosen.hot.surveys) == (3, 2)
    paper = from_all_sections({"serve": LISTED, "round": {"scheme": "sfsl"}}).run
    assert (paper.round.scheme, paper.privacy.participations) == ("sfsl", "auto")
    assert from_sections({}).round.scheme == "sfsl"  # of a simulation


def test_the_section_that_is_printed_reads_back() -> None:
    result = CliRunner().invoke(app, ["serve", "--settings"])
    assert result.exit_code == 0
    read = tomllib.loads(result.output)
    assert read == tomllib.loads(section_toml())
    assert set(read["serve"]) == {field.encode_name for field in msgspec.structs.fields(ServeSettings)}
    chosen = from_all_sections({"serve": read["serve"] | LISTED}).serve
    assert chosen == from_all_sections({"serve": LISTED}).serve


def test_a_section_is_a_section() -> None:
    with pytest.raises(ParameterError, match="is a section"):
        from_all_sections({"serve": 3})


@pytest.mark.parametrize(("clients", "least"), [(2, 2), (3, 3), (4, 4), (10, 8), (100, 80)])
def test_the_least_cohort(clients: int, least: int) -> None:
    assert from_all_sections({"serve": LISTED, "round": {"clients": clients}}).min_cohort == least
    chosen = from_all_sections({"serve": LISTED | {"min_cohort": 2}, "round": {"clients": clients}})
    assert chosen.min_cohort == 2


def test_periods_of_server_and_clients_agree_unless_told_otherwise() -> None:
    exact = {"scheme": "sfsl", "min_contributors": 3}
    assert from_all_sections({"serve": LISTED, "round": exact}).period_days == Terms().period_days
    assert (
        from_all_sections({"serve": LISTED}).period_days == 1
    )  # hot rows: clients count epsilon, no periods
    assert from_all_sections({"serve": {**LISTED, "period_days": 3}, "round": exact}).period_days == 3
    given = {f"round.{key}": value for key, value in exact.items()}
    assert read_config(given).rounds().period_days == Terms().period_days
    assert read_config({}).rounds().period_days == 1
