"""``sfsl bench …``: what things cost, measured here and now."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sfsl.cli.output import Settings, console, emit_json, progress_console, shown, table
from sfsl.settings.paper import as_in_paper
from sfsl.settings.run import from_sections
from sfsl.settings.source import source_of
from sfsl.settings.toml import overridden, read_run_sections, with_settings
from sfsl_research.bench.hot import bench_hot
from sfsl_research.bench.round import bench_round
from sfsl_research.bench.secagg import bench_secagg
from sfsl_research.bench.simulated import Sizes
from sfsl_research.bench.union import bench_union

app = typer.Typer(help="Measure what things cost on this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(
    epilog="Examples:  sfsl bench secagg --clients 100 --length 143534 --dropout 0.2   |   "
    "sfsl bench secagg --clients 1000 --length 10000 --json   |   "
    "sfsl bench secagg --clients 50 --length 18 --rows 10000 --share 0.2"
)
def secagg(
    clients: Annotated[int, typer.Option(help="Clients in the cohort.")] = 100,
    length: Annotated[int, typer.Option(help="Words per vector; with --rows, words per row.")] = 10_000,
    dropout: Annotated[float, typer.Option(help="Share of clients that vanish before they upload.")] = 0.0,
    neighbours: Annotated[
        int | None, typer.Option(help="Degree of a sparse graph. Default: complete up to 512 clients.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Sum rows of a table with so many rows, each client its own rows.")
    ] = None,
    share: Annotated[float, typer.Option(help="With --rows: share of the rows a client asks for.")] = 0.1,
    ring: Annotated[str, typer.Option(help="z32, z64 or f31.")] = "z32",
    active: Annotated[bool, typer.Option("--active", help="Signed keys and consistency checks.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the simulated data and dropouts, not of any key.")] = 0,
    json: Json = False,
) -> None:
    """A secure sum: CPU of client and server, bytes, and the raw cipher's time for the same masks."""
    with progress_console().status(f"{clients} clients × {length} words"):
        result = bench_secagg(
            clients,
            length,
            dropout=dropout,
            neighbours=neighbours,
            rows=rows,
            share=share,
            ring=ring,
            active=active,
            seed=seed,
        )
    _report("Secure aggregation", result, json)


@app.command(
    epilog="Examples:  sfsl bench hot   |   sfsl bench hot --clients 5000 --masked 50 --json   |   "
    "sfsl bench hot --clients 100 --epsilon inf"
)
def hot(
    clients: Annotated[int, typer.Option(help="Clients in the cohort, up to 10,000.")] = 1000,
    dropout: Annotated[float, typer.Option(help="Share that vanishes before it uploads.")] = 0.1,
    epsilon: Annotated[float, typer.Option(help="Of a client in all; inf: no noise.")] = 8.0,
    delta: Annotated[float, typer.Option(help="That goes with it.")] = 1e-6,
    participations: Annotated[int, typer.Option(help="Rounds that a client trains in.")] = 5,
    megabytes: Annotated[float, typer.Option(help="Down and up together, MiB: sets the hot rows.")] = 1.5,
    masked: Annotated[
        int | None, typer.Option(help="Only so many clients mask, to save time; the sum is not checked.")
    ] = None,
    json: Json = False,
) -> None:
    """A round over hot rows at the paper's size: CPU of client and server, noise, bytes."""
    with progress_console().status(f"{clients} clients") as status:
        result = bench_hot(
            clients,
            dropout=dropout,
            epsilon=epsilon,
            delta=delta,
            participations=participations,
            megabytes=megabytes,
            masked=masked,
            seen=lambda done: status.update(f"{clients} clients, {done} answered"),
        )
    _report("A round over hot rows", result, json)


@app.command(
    epilog="Examples:  sfsl bench union --clients 100 --domain 143534 --set-size 301 --unique 0.867   |   "
    "sfsl bench union --domain 2000000000 --dropout 0.2 --json"
)
def union(
    clients: Annotated[int, typer.Option(help="Clients in the cohort.")] = 100,
    domain: Annotated[int, typer.Option(help="Indices are 0..D-1; up to 2^63.")] = 143_534,
    set_size: Annotated[int, typer.Option(help="Indices per client.")] = 301,
    unique: Annotated[float, typer.Option(help="Share of the union that only one client holds.")] = 0.867,
    dropout: Annotated[float, typer.Option(help="Share of clients that vanish before they upload.")] = 0.0,
    encoding: Annotated[str, typer.Option(help="auto, identity, bloom or sketch.")] = "auto",
    capacity: Annotated[int | None, typer.Option(help="Default: clients times set size.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated sets and dropouts, not of any key.")] = 0,
    json: Json = False,
) -> None:
    """A private set union: bytes per client, CPU of client and server."""
    with progress_console().status(f"{clients} sets of {set_size} from {domain:,}"):
        result = bench_union(
            clients,
            domain,
            set_size,
            unique,
            dropout=dropout,
            encoding=encoding,
            capacity=capacity,
            seed=seed,
        )
    _report("Private set union", result, json)


@app.command(
    "round",
    epilog="Examples:  sfsl bench round --clients 100 --privacy cpp2 --memory   |   "
    "sfsl bench round --dropout 0.2 --json   |   "
    "sfsl bench round --privacy cpp5 --precision float16   |   "
    "sfsl bench round --rows 2000000000 --encoding sketch",
)
def whole_round(
    clients: Annotated[int, typer.Option(help="Clients in the cohort.")] = 100,
    privacy: Annotated[str, typer.Option(help="How clients answer: cpp1 to cpp5.")] = "cpp2",
    rows: Annotated[int, typer.Option(help="Rows of the table of items, which clients share.")] = 143_534,
    set_size: Annotated[int, typer.Option(help="Items per client; categories follow from them.")] = 301,
    dense: Annotated[int, typer.Option(help="Parameters of the dense part.")] = 64_327,
    dropout: Annotated[float, typer.Option(help="Share of clients that vanish.")] = 0.0,
    dropout_before: Annotated[
        str, typer.Option(help="What they vanish before: their masked update, or their masked set.")
    ] = "update",
    precision: Annotated[
        str, typer.Option(help="Of downloaded rows: float32, or float16, which loses some.")
    ] = "float32",
    min_contributors: Annotated[
        int, typer.Option(help="Rows asked for by fewer clients are left out; 1 is the paper.")
    ] = 1,
    bins: Annotated[int, typer.Option(help="Of the score histograms; 0 leaves them out.")] = 256,
    encoding: Annotated[str, typer.Option(help="Of the union: auto, identity, bloom or sketch.")] = "auto",
    active: Annotated[
        bool,
        typer.Option("--active", help="Active mode: signatures, and proofs of rows, shown apart too."),
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Run it once more under tracing, for each party's peak memory.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of simulated rows, updates and dropouts, not of keys.")] = 0,
    json: Json = False,
) -> None:
    """A whole round without training: bytes, CPU and memory of a client and of the server. Its sums are
    checked. Defaults are the paper's setting."""
    with progress_console().status(f"A round of {clients} clients at {privacy}"):
        result = bench_round(
            Sizes(clients=clients, rows=rows, set_size=set_size, dense=dense),
            privacy=privacy,
            min_contributors=min_contributors,
            precision=precision,
            bins=bins,
            encoding=encoding,
            active=active,
            dropout=dropout,
            dropout_before=dropout_before,
            memory=memory,
            seed=seed,
        )
    if json:
        emit_json(result)
        return
    exchanges = result.pop("exchanges")
    _report("One round", result, json)
    columns = ("", "bytes up", "down", "client s", "max", "server s")
    lines = [(name, *map(shown, one.values())) for name, one in exchanges.items()]
    console().print(table("By exchange", columns, lines))


@app.command(
    epilog="Examples:  sfsl bench train   |   "
    "sfsl bench train --clients 20 --scale 0.1 --repeats 1 --json   |   "
    "sfsl bench train --device cuda --clients 1000 --loop-clients 10"
)
def train(
    clients: Annotated[int, typer.Option(help="Clients in the cohort.")] = 100,
    scale: Annotated[
        float, typer.Option(help="Of what there is and what a client has; 1 is the paper's size.")
    ] = 1.0,
    model: Annotated[str, typer.Option(help="din, dien, bst, logistic or lstm.")] = "din",
    device: Annotated[str, typer.Option(help="Of the batched side: cpu, cuda, or auto.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="Of the batched side: local, resident, or auto, the faster one on a device.")
    ] = "auto",
    compiled: Annotated[
        bool,
        typer.Option(
            help="Of the batched side: make machine code of its steps, in half a minute; dien: many."
        ),
    ] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: as many as there are cores.")] = None,
    loop_clients: Annotated[
        int | None, typer.Option(min=1, help="Time the loop on so many clients only, as if all were as fast.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of either side.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated clients.")] = 0,
    json: Json = False,
) -> None:
    """Whole rounds with plain sums: clients trained one by one, and all at once."""
    from sfsl_research.bench.train import TrainingCohort, bench_train

    with progress_console().status(f"Rounds of {clients} clients, {model}"):
        result = bench_train(
            TrainingCohort(clients, scale, model, seed),
            device=device,
            engine=engine,
            compiled=compiled,
            threads=threads,
            loop_clients=loop_clients,
            repeats=repeats,
        )
    _report("Training", result, json)


@app.command(
    epilog="Examples:  sfsl bench drift --rounds 20   |   "
    "sfsl bench drift my.toml --data csv:clicks.csv --clients 50 --rounds 50 --json   |   "
    "sfsl bench drift --set training.batch_size=16 --set training.learning_rate=0.2"
)
def drift(
    config: Annotated[
        Path | None, typer.Argument(help="A run file (see sfsl init). Default: all defaults.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="As of sfsl run: synthetic, or csv: and a file.")] = None,
    clients: Annotated[int | None, typer.Option(help="round.clients; all of them are looked at.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Looked at: rounds 1, 5, 20 and 50 as far as there are, and the last.")
    ] = 20,
    paper: Annotated[bool, typer.Option("--paper", help="As of sfsl run: the paper's own settings.")] = False,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """What local training and averaging do to clients' log loss, on their training and held-out samples:
    with everything moved, and with the shared part or the personal rows alone."""
    from sfsl_research.experiments.diagnose import measure_drift

    given: dict[str, Any] = {"run.rounds": rounds}
    if clients is not None:
        given["round.clients"] = clients
    if data is not None:
        given["data.source"], given["data.path"] = source_of(data)
    sections = with_settings(read_run_sections(config) if config else {}, given)
    sections = overridden(sections, settings or ())
    wanted = from_sections(as_in_paper(sections) if paper else sections)
    with progress_console().status("reading data") as status:
        result = measure_drift(wanted, seen=lambda number: status.update(f"round {number} of {rounds}"))
    if json:
        emit_json(result)
        return
    found = result["rounds"]
    for pool, title in (("train", "training"), ("held_out", "held-out")):
        lines = [
            (name, *(_known(one["looks"][name][pool]["log_loss"]) for one in found))
            for name in found[0]["looks"]
        ]
        if pool == "train":
            lines.insert(1, ("during (what a run shows)", *(shown(one["loss_during"]) for one in found)))
        columns = ("", *(f"round {one['round']}" for one in found))
        console().print(table(f"Log loss of clients' {title} samples", columns, lines))
    others = [name for name, one in found[0].items() if not isinstance(one, dict) and name != "round"]
    lines = [(name, *(_known(one[name]) for one in found)) for name in others]
    for pool in found[0]["by_history"]:
        for length in dict.fromkeys(name for one in found for name in one["by_history"][pool]):
            sizes = (one["by_history"][pool].get(length, {}).get("entry_norm") for one in found)
            lines.append((f"entry_norm, {pool}, history {length}", *map(_known, sizes)))
    console().print(table("Moves and inputs", columns, lines))


@app.command(
    epilog="Examples:  sfsl bench utility --out utility   |   "
    "sfsl bench utility --users 49023 --scale 1 --clients 5000,1000 --device cuda --together 12 --out full"
)
def utility(
    out: Annotated[Path, typer.Option(help="Folder for data, results and the picture; it goes on there.")],
    world: Annotated[str, typer.Option(help="Synthetic world: paper, tastes or films.")] = "paper",
    users: Annotated[int, typer.Option(min=20, help="Clients of the fleet.")] = 2000,
    scale: Annotated[float, typer.Option(help="1 is the paper's size.")] = 0.05,
    clients: Annotated[
        str, typer.Option(help="Clients of a round over hot rows, separated by commas.")
    ] = "200",
    epsilon: Annotated[
        str, typer.Option(help="In total over five turns of a client; inf: no noise.")
    ] = "8,inf",
    paper: Annotated[str, typer.Option(help="Clients of a round of the paper's scheme, cpp2.")] = "100",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    together: Annotated[int, typer.Option(min=1, help="Arms trained at a time.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of data, model and noise.")] = 0,
    json: Json = False,
) -> None:
    """What rounds over hot rows learn under noise, beside the paper's scheme and centralized training."""
    from sfsl_research.bench.utility import make_data, utility_arms
    from sfsl_research.bench.utility_run import draw, lines, run_arms

    data = out / "data"
    with progress_console().status("making data") as status:
        if not data.exists():
            make_data(data, world, users, scale, seed, together)
        arms = utility_arms(
            {"source": "stored", "path": str(data)},
            users=users,
            cohorts=[int(one) for one in clients.split(",")],
            epsilons=[float(one) for one in epsilon.split(",")],
            paper_cohorts=[int(one) for one in paper.split(",") if one],
            device=device,
            seed=seed,
        )
        result = run_arms(out / "arms", arms, together=together, seen=status.update)
    pictures = draw(result, out)
    if json:
        emit_json(result)
        return
    columns = ("", "rounds", "AUC", "log loss", "touches of hot rows", "noise of a sum, in clips")
    console().print(table(f"{users:,} clients, five turns each", columns, lines(result)))
    console().print(f"Pictures: {', '.join(map(str, pictures))}")


def _known(value: object) -> str:
    return "–" if value is None else shown(value)


def _report(title: str, result: dict[str, Any], json: bool) -> None:
    if json:
        emit_json(result)
    else:
        console().print(table(title, ("", ""), [(key, shown(value)) for key, value in result.items()]))
