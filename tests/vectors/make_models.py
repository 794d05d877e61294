"""Makes models.json from the code: packages, scores, and one client's training (spec models). Needs torch.

python tests/vectors/make_models.py            write the file
python tests/vectors/make_models.py --check    fail if it differs from what the code gives, beyond rounding
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from sfsl.data.samples import NO_ROW, Samples
from sfsl.models.package import _CODEC, Package, build
from sfsl.submodel import ModelSpec, Table
from sfsl.training import LocalSettings
from sfsl.training.local import ClientWork, train_client
from sfsl.training.task import Task
from vectors.values import Json
from vectors.vector_file import write_or_check

PLACE = Path(__file__).parent / "models.json"
ABOUT = (
    "Number k of a dense part, and number k of each table row by row, is float32(((7919 k + c) mod 2003 - "
    "1001) / 4004) with c = 0 for the dense part and 1, 2, 3 for user, item and category. Numbers are right "
    "to about six digits."
)
USERS, ITEMS, CATEGORY_OF = 2, 5, [2, 0, 1, 1, 0]
SAMPLES = [(1, 3, [0], 1), (1, 0, [3, 1, 1], 0), (1, 4, [2, 0], 1)]


def values(count: int, shift: int) -> Any:
    return (((7919 * np.arange(count) + shift) % 2003 - 1001) / 4004).astype(np.float32)


def package(kind: Any, slopes: Any, width: int, categories: bool, dense: int, layout: Any = "paper") -> bytes:
    initial = 0.05 if kind == "din" else 0.0
    tables = [
        Table(
            name="user",
            rows=USERS,
            width=1 if kind == "logistic" else width,
            kind="personal",
            initial=initial,
        ),
        Table(name="item", rows=ITEMS, width=width, initial=initial),
    ]
    if categories:
        tables.append(
            Table(name="category", rows=3, width=width, kind="derived", source="item", initial=initial)
        )
    return _CODEC.encode(
        Package(
            kind=kind,
            width=width,
            slopes=slopes,
            initial=initial,
            users=USERS,
            items=ITEMS,
            categories=3 if categories else 0,
            category_of=bytes(CATEGORY_OF) if categories else b"",
            model=ModelSpec(tables=tuple(tables), dense=dense),
            layout=layout,
        )
    )


def samples(task: Task) -> Samples:
    longest = max(len(history) for _, _, history, _ in SAMPLES)
    columns = {
        "user": np.array([user for user, *_ in SAMPLES]),
        "item": np.array([item for _, item, *_ in SAMPLES]),
        "history": np.array([[*one, *[NO_ROW] * (longest - len(one))] for _, _, one, _ in SAMPLES]),
        "label": np.array([label for *_, label in SAMPLES], np.float32),
    }
    tables, follows = {"user": "user", "item": "item", "history": "item"}, {}
    if "category" in task.maps:
        of = np.array(CATEGORY_OF)
        columns["item_category"] = of[columns["item"]]
        columns["history_category"] = np.where(columns["history"] >= 0, of[columns["history"]], NO_ROW)
        tables |= {"item_category": "category", "history_category": "category"}
        follows = {"item_category": "item", "history_category": "history"}
    return Samples(columns, tables, follows)


def numbers(array: Any) -> Any:
    return np.vectorize(lambda one: float(f"{one:.7g}"))(np.asarray(array, np.float64)).tolist()


def case(
    name: str, kind: str, slopes: str, width: int, categories: bool, dense_size: int, layout: str = "paper"
) -> Json:
    data = package(kind, slopes, width, categories, dense_size, layout)
    task = build(data)
    dense = values(dense_size, 0)
    held = {
        table.name: values(table.rows * table.width, place + 1).reshape(table.rows, table.width)
        for place, table in enumerate(task.tables)
    }
    own = samples(task)
    batch = {column: torch.from_numpy(one) for column, one in own.columns.items()}
    task.module.eval()
    with torch.no_grad():
        logits = functional_call(task.module, task.parameters(dense, held), (batch,))
    rows = task.needed_rows(own)[0]
    clip = 0.3 if categories else 30.0  # reached, and not
    training = {"rate": 0.5, "batch_size": 8.0, "epochs": 2.0, "clip": clip}
    settings = LocalSettings(8, 2, 0.5, 1.0, clip)
    picked = {table: held[table][some] for table, some in rows.items()}
    update = train_client(task, dense, ClientWork(rows, picked, own, seed=0), settings)
    moved = {
        table: [
            [row, int(count), numbers(move)]
            for row, count, move in zip(some.tolist(), update.counts[table], update.rows[table], strict=True)
        ]
        for table, some in rows.items()
    }
    return {
        "name": name,
        "package": data.hex(),
        "samples": [
            {"user": user, "item": item, "history": history, "label": label, "logit": logit}
            for (user, item, history, label), logit in zip(SAMPLES, numbers(logits), strict=True)
        ],
        "training": training,
        "update": {
            "dense": numbers(update.dense[:40]),
            "dense_length": float(f"{np.linalg.norm(update.dense):.6g}"),
            "rows": moved,
        },
    }


def content() -> Json:
    return {
        "about": ABOUT + " Of the update's dense part the first 40 numbers are given, and its length.",
        "models": [
            case("logistic", "logistic", "", 2, True, 1),
            case("logistic without categories", "logistic", "", 2, False, 1),
            case("din", "din", "dice", 2, True, 2 * 18 + 80 * 17 + 40 * 81 + 41 + 200 * 20 + 80 * 202 + 162),
            case(
                "din without categories",
                "din",
                "prelu",
                3,
                False,
                2 * 15 + 80 * 13 + 40 * 81 + 41 + 200 * 17 + 80 * 202 + 162,
            ),
            case(
                "din with the wide layout",
                "din",
                "dice",
                2,
                True,
                2 * 18 + 80 * 17 + 40 * 81 + 41 + 200 * 20 + 80 * 202 + 162,
                "wide",
            ),
        ],
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6)
    return bool(one == other)


def main(arguments: Sequence[str]) -> int:
    return write_or_check(arguments, __doc__, PLACE, content, same)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
