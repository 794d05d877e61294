"""``sfsl models``: versions of the model in a server's folder."""

import typer

app = typer.Typer(help="Versions of a server's model: list, tag, roll back.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    pass
