"""``sfsl predict``: scores and recommendations of a bundle's model, in the ids of its catalogue."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from typer import Argument, Option

from sfsl.cli.model import data_settings
from sfsl.cli.output import Json, present, progress_console, table
from sfsl.cli.run import require_torch
from sfsl.cli.tables import Columns, Label
from sfsl.errors import InputError
from sfsl.settings.source import columns_of

if TYPE_CHECKING:
    from sfsl.bundle.model import Bundle, Person
    from sfsl.data import Interactions

_SHOWN = 20


class Rated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item: str | int
    clicked: bool | int


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of a JSON file: somebody by a ``user`` of --data, a ``history``, or what they ``rated`` in order;
    and ``items`` to score, or how many are the ``top``."""

    user: str | int | None = None
    history: list[str | int] = []
    rated: list[Rated] = []
    items: list[str | int] = []
    top: int | None = None


@dataclass(frozen=True)
class Asked:
    name: str
    person: "Person"
    items: list[str]
    top: int


def predict(
    bundle: Annotated[
        Path | None,
        Argument(metavar="BUNDLE", help="What sfsl export wrote; with --state it may be left out."),
    ] = None,
    history: Annotated[
        list[str] | None,
        Option(metavar="ID,ID…", help="What somebody clicked, the oldest first (or the words before)."),
    ] = None,
    items: Annotated[
        list[str] | None, Option(metavar="ID,ID…", help="Score these, instead of recommending.")
    ] = None,
    top: Annotated[int, Option(min=1, help="How many to recommend.")] = 10,
    data: Annotated[str | None, Option(help="Samples of --user, as for sfsl run.")] = None,
    user: Annotated[list[str] | None, Option(metavar="ID", help="A user of --data; repeatable.")] = None,
    requests: Annotated[
        Path | None,
        Option(
            help="Many at once: a CSV of user,item (pairs to score) or of user alone (the top for each), "
            "with --data; or a JSON list of objects with user or history or rated, and items or top."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        Option(metavar="DIR", help="A client's folder: its samples and its own row, which stay here."),
    ] = None,
    columns: Columns = None,
    label: Label = "",
    json: Json = False,
) -> None:
    """Scores for pairs, or the best items for somebody, with ids as in the data that it was trained on.

    Somebody with labelled samples (--data, --state, or rated in a JSON file) has a row of their own rebuilt
    from these; whoever is new and has none begins at zero. Everything happens on this machine.

    With --state and no bundle, a client scores with the model that it downloaded last: of rounds over hot
    rows all that was published, of the paper's scheme the rows that it asked for, and no others.
    """
    require_torch()
    from sfsl.bundle.model import Bundle

    if bundle is None:
        bundle = _last_download(state)
    model = Bundle(bundle)
    if sum((bool(history), bool(user), requests is not None, state is not None)) != 1:
        raise InputError("say for whom: one of --history, --user with --data, --requests or --state")
    if user and data is None:
        raise InputError("--user names somebody in a table: give it with --data FILE")
    wanted = split_ids(items)
    with _bar() as progress:
        if state is not None:
            asked = [Asked("", _of_client(model, state, columns, label), wanted, top)]
        elif history:
            asked = [Asked("", model.person(split_ids(history)), wanted, top)]
        else:
            known = None if data is None else _table(model, data, columns, label)
            given = (
                read_requests(requests)
                if requests
                else [Request(user=one, items=[*wanted]) for one in user or ()]
            )
            asked = _asked(model, known, given, top, progress)
        results = _answers(model, asked, progress)
    whole = {"bundle": str(bundle), "round": model.round, "predictions": results}
    lines = [(one["user"], item["id"], f"{item['score']:.4f}") for one in results for item in one["items"]]
    more = [f"… and {len(lines) - _SHOWN:,} more; --json prints all"] if len(lines) > _SHOWN else []
    heads = (("user", model.named.name, "score"), lines) if any(one[0] for one in lines) else (
        (model.named.name, "score"), [one[1:] for one in lines])  # fmt: skip
    present(whole, json, table(f"{bundle}, round {model.round}", heads[0], heads[1][:_SHOWN]), *more)


def _last_download(state: Path | None) -> Path:
    """Return the model that a client downloaded last, which it keeps."""
    from sfsl.client.current import CURRENT

    if state is None:
        raise InputError("name a bundle, which sfsl export writes; or a client's folder: --state DIR")
    if not (state / CURRENT).is_file():
        raise InputError(
            f"{state} has no model: a client keeps what it downloads in a round that trains (sfsl join). "
            "Name a bundle, or take part"
        )
    return state / CURRENT


def split_ids(texts: list[str] | None) -> list[str]:
    """Read ids with commas between them."""
    return [one.strip() for text in texts or () for one in text.split(",") if one.strip()]


def read_requests(path: Path) -> list[Request]:
    """Read who is asked about: a JSON list, or a CSV with a column user and perhaps one of items."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if data.lstrip()[:1] in (b"[", b"{"):
        try:
            return msgspec.json.decode(data, type=list[Request])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is no list of requests: {error}") from None
    try:
        lines = csv.DictReader(data.decode("utf-8-sig").splitlines(), strict=True)
        names, rows = lines.fieldnames or (), list(lines)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is neither JSON nor a CSV in UTF-8: {error}") from None
    if "user" not in names:
        raise InputError(f"{path} has the columns {', '.join(names)}; it needs user, and item for pairs")
    by_user: dict[str, list[str | int]] = {}
    for row in rows:
        own = by_user.setdefault((row["user"] or "").strip(), [])
        if item := (row.get("item") or "").strip():
            own.append(item)
    return [Request(user=user, items=own) for user, own in by_user.items()]


def _table(model: "Bundle", data: str, columns: str | None, label: str) -> "Interactions":
    from sfsl.data.own import in_catalogue
    from sfsl.run.fleet import load_interactions

    given, _ = load_interactions(data_settings(model, data, columns, label), model.config.run.seed)
    return in_catalogue(given, model.catalogue)[0]


def _asked(
    model: "Bundle", known: "Interactions | None", given: list[Request], top: int, progress: "Steps"
) -> list[Asked]:
    places = {} if known is None else {str(name): row for row, name in enumerate(known.users.tolist())}
    named = [str(one.user) for one in given if one.user is not None and not one.history and not one.rated]
    if missing := [name for name in named if name not in places]:
        where = "--data" if known is not None else "nothing: give --data FILE"
        raise InputError(f"user {missing[0]!r} is not in {where} ({len(missing)} of {len(named)} are not)")
    people: dict[str, Person] = {}
    if known is not None and named:
        order = list(dict.fromkeys(named))
        progress.begin("people", len(order))
        rows = np.array([places[name] for name in order], np.int64)
        people = dict(zip(order, model.people(known, rows, progress.seen), strict=True))
    asked = []
    for one in given:
        rated = [(each.item, each.clicked) for each in one.rated]
        alone = one.history or rated
        person = model.person(one.history, rated) if alone else people.get(str(one.user))
        if person is None:
            person = model.person()
        asked.append(
            Asked("" if one.user is None else str(one.user), person, [*map(str, one.items)], one.top or top)
        )
    return asked


def _answers(model: "Bundle", asked: list[Asked], progress: "Steps") -> list[dict[str, Any]]:
    pairs = [(place, item) for place, one in enumerate(asked) for item in one.items]
    scores = np.zeros(0)
    if pairs:
        progress.begin("pairs", len(pairs))
        who, rows = np.array([place for place, _ in pairs], np.int64), model.find([item for _, item in pairs])
        scores = model.score_pairs([one.person for one in asked], who, rows, progress.seen)
    found: list[dict[str, Any]] = [{"user": one.name, "items": []} for one in asked]
    for (place, item), score in zip(pairs, scores, strict=True):
        found[place]["items"].append({"id": item, "score": float(score)})
    ranked = [place for place, one in enumerate(asked) if not one.items]
    progress.begin("recommendations", len(ranked))
    for done, place in enumerate(ranked, 1):
        best = model.best_for(asked[place].person, asked[place].top)
        found[place]["items"] = [{"id": name, "score": score} for name, score in best]
        progress.seen(done)
    return found


def _of_client(model: "Bundle", state: Path, columns: str | None, label: str) -> "Person":
    """Return a deployed client, from the samples that its period froze and the row that it keeps."""
    from sfsl.client.person import person_of_client
    from sfsl.data.own import Layout

    trained = model.config.data
    layout = Layout(trained.columns if columns is None else columns_of(columns), label or trained.label)
    return person_of_client(model, state, layout)


class Steps:
    """Shows how far a command is; on no terminal, nothing."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar: TaskID | None = None

    def begin(self, what: str, total: int) -> None:
        self._bar = self._progress.add_task(what, total=total)

    def seen(self, done: int) -> None:
        if self._bar is not None:
            self._progress.update(self._bar, completed=done)


@contextmanager
def _bar() -> Iterator[Steps]:
    screen = progress_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        yield Steps(progress)
