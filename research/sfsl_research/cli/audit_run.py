"""``sfsl privacy audit --run`` and ``--data``: attacks on a real round of a run, and the page to file."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from sfsl.cli.output import console, emit_json, plain, probabilities, progress_console, table
from sfsl.durable import write_whole
from sfsl.errors import InputError
from sfsl.run.folder import RunFolder
from sfsl.settings.paper import as_in_paper
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.source import source_of
from sfsl.settings.toml import overridden, with_settings
from sfsl_research.audit.run_audit import Effort, RunAudit, audit_data, audit_run
from sfsl_research.audit.signoff import page, verdict


@dataclass(frozen=True)
class Asked:
    """What a command line asks for."""

    run: Path | None
    data: str | None
    level: str | None
    cohort: int
    scheme: str | None
    paper: bool
    settings: list[str] | None
    attacked: int
    canaries: int
    weaken: float
    confidence: float
    seed: int

    def config(self) -> RunConfig:
        """Return the settings of the round that is attacked."""
        if self.run is not None and (self.data is not None or self.paper or self.scheme is not None):
            raise InputError(
                "--run has data, scheme and settings of its own; leave out --data, --scheme, --paper"
            )
        given: dict[str, Any] = {}
        if self.level is not None:
            own = probabilities(self.level) if "," in self.level else []
            given = {"privacy.probabilities": own, "privacy.mix": {}}
            given |= {} if own else {"privacy.preset": self.level}
        if self.run is not None:
            return from_sections(
                overridden(with_settings(RunFolder(self.run).sections(), given), self.settings or ())
            )
        given["data.source"], given["data.path"] = source_of(self.data or "synthetic")
        given |= {"round.clients": self.cohort, "run.seed": self.seed}
        if self.scheme is not None:
            given["round.scheme"] = self.scheme
        sections = overridden(with_settings({}, given), self.settings or ())
        return from_sections(as_in_paper(sections) if self.paper else sections)


def audit_yours(asked: Asked, html: Path | None, json: bool) -> None:
    """Attack, print what was found, write the page, and exit with status 1 where a claim is false."""
    config = asked.config()
    effort = Effort(asked.attacked, asked.canaries, asked.confidence, asked.seed, asked.weaken)
    with progress_console().status("audit") as status:
        if asked.run is not None:
            found = audit_run(asked.run, config, effort, status.update)
        else:
            found = audit_data(config, effort, status.update)
    command = shlex.join(["sfsl", *sys.argv[1:]])
    if html is not None:
        try:
            write_whole(html, page(found, command).encode())
        except OSError as error:
            raise InputError(f"cannot write {html}: {error.strerror}") from None
    if json:
        emit_json(
            {"command": command, "violated": found.violated, "verdict": verdict(found), **figures(found)}
        )
    else:
        _print(found)
        if html is not None:
            console().print(f"Page: {html}")
    if found.violated:
        raise typer.Exit(1)


def figures(found: RunAudit) -> dict[str, Any]:
    """Return what was found as JSON has it, with the verdict on each attack."""
    result: dict[str, Any] = plain(found)
    for case, one in zip(result["linking"], found.linking, strict=True):
        for table_figures, named in zip(case["tables"], one.tables, strict=True):
            table_figures["found"] = named.found
    for canary, own in zip(result["canaries"], found.canaries, strict=True):
        canary["bound"]["violated"] = own.bound.violated
    return result


def _print(found: RunAudit) -> None:
    out = console()
    for case in found.linking:
        out.print(
            table(
                f"Rows that one client alone moved, {case.case}: who is it?",
                ("table", "rows", "askers", "guess", "requests", "named", "certain", "right"),
                [
                    (
                        one.table,
                        f"{one.rows:,}",
                        f"{one.askers:.1f}",
                        f"{one.guess:.1%}",
                        f"{one.by_requests:.1%} ± {100 * one.by_requests_error:.1f}",
                        f"{one.named:.1%} ± {100 * one.named_error:.1f}",
                        f"{one.certain:.1%}",
                        "–" if one.certain_right is None else f"{one.certain_right:.1%}",
                    )
                    for one in case.tables
                ],
            )
        )
    if found.canaries:
        out.print(
            table(
                "Canaries: what one round costs, from below",
                ("round", "epsilon claimed", "at least", "rho claimed", "at least", ""),
                [
                    (
                        one.kind,
                        f"{one.bound.claimed_epsilon:.3f}",
                        f"{one.bound.epsilon:.3f}",
                        f"{one.bound.claimed_rho:.4f}",
                        f"{one.bound.rho:.4f}",
                        "VIOLATED" if one.bound.violated else "kept",
                    )
                    for one in found.canaries
                ],
            )
        )
    if found.answers:
        out.print(
            table(
                "Epsilon of the answers about rows",
                ("rounds", "claimed", "at least", ""),
                [
                    (
                        str(one.rounds),
                        f"{one.claimed:.3f}",
                        f"{one.lower:.3f}",
                        "VIOLATED" if one.violated else "kept",
                    )
                    for one in found.answers
                ],
            )
        )
    out.print(verdict(found), soft_wrap=True)
