"""The commands that this package adds to ``sfsl``: ``privacy audit``, ``bench``, ``reproduce``, ``swarm``
and ``tune``.

Each function is an entry point of the group ``sfsl.commands``, which ``sfsl.cli`` calls with its app, or with
the group of commands that this one joins.
"""

import typer


def add_audit(privacy: typer.Typer) -> None:
    from sfsl_research.cli import audit

    audit.register(privacy)


def add_bench(app: typer.Typer) -> None:
    from sfsl_research.cli import bench, worlds

    worlds.register(bench.app)
    app.add_typer(bench.app, name="bench")


def add_reproduce(app: typer.Typer) -> None:
    from sfsl_research.cli import reproduce

    reproduce.register(app)


def add_swarm(app: typer.Typer) -> None:
    from sfsl_research.cli import swarm

    swarm.register(app)


def add_tune(app: typer.Typer) -> None:
    from sfsl_research.cli import tune

    tune.register(app)


# The commands print as those of sfsl do, and whoever imports that package has it call the functions above.
# So it comes first, whichever module of this one is asked for, and finds all of them.
import sfsl.cli  # noqa: E402, F401
