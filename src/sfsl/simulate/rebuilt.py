"""Personal rows rebuilt to evaluate with: what any client has, whether or not it ever was in a round."""

from collections.abc import Collection, Mapping

import numpy as np

from sfsl.arrays import Bits, Indices, Values
from sfsl.client.device import Device
from sfsl.submodel import RowSet, RowStore
from sfsl.training import ClientWork, LocalSettings, rebuild_cohort
from sfsl.training.task import Task

# Clients tested at the most: each costs a rebuild on its training samples, and more say no more about an AUC.
MOST_TESTED = 1000
# Clients whose samples are held at once.
_AT_ONCE = 400

# By table, rows ascending and their values.
Rebuilt = Mapping[str, tuple[Indices, Values]]


def draw_tested(clients: int, seed: int, most: int = MOST_TESTED, *, choose: Bits | None = None) -> Indices:
    """Draw the clients that are tested, the same in every round: places among so many, ascending.

    Where some of them ``choose`` the model, up to a third of those drawn do: they may be few among all, and
    too few of them would choose by chance.
    """
    order = np.random.default_rng(seed).permutation(clients)
    if choose is not None:
        choosing, others = order[choose[order]], order[~choose[order]]
        order = np.concatenate([choosing[: most // 3], others, choosing[most // 3 :]])
    return np.sort(order[:most])


def rebuild_personal(
    task: Task,
    devices: Mapping[str, Device],
    store: RowStore,
    settings: LocalSettings,
    *,
    seed: int,
    choose: Collection[str] = (),
) -> Rebuilt:
    """Rebuild the personal rows of clients that ``seed`` draws, on their training samples, with the model in
    the store. A row of theirs that no training sample has is zero. ``choose``: the clients that choose the
    model, by name."""
    names, dense = sorted(devices), store.read_dense().values
    choosing = np.array([name in choose for name in names]) if choose else None
    tested = [names[place] for place in draw_tested(len(names), seed, choose=choosing)]
    tables = [table for table in task.tables if table.name in task.personal]
    rows = {table.name: [np.zeros(0, np.int64)] for table in tables}
    values = {table.name: [np.zeros((0, table.width), np.float32)] for table in tables}
    for start in range(0, len(tested), _AT_ONCE):
        own = [devices[name] for name in tested[start : start + _AT_ONCE]]
        works = _works(task, own, store, start)
        rebuilt = rebuild_cohort(task, dense, works, settings)
        for device, work, one in zip(own, works, rebuilt, strict=True):
            for name, placed in device.rebuilt(work, one).items():
                rows[name].append(device.personal[name])
                values[name].append(placed)
    found = {}
    for name, some in rows.items():
        every = np.concatenate(some)
        order = np.argsort(every)  # a personal row belongs to one client: each occurs once
        found[name] = every[order], np.concatenate(values[name])[order]
    return found


def _works(task: Task, devices: list[Device], store: RowStore, seed: int) -> list[ClientWork]:
    """Return what clients have to rebuild with: all their training samples and the rows these need."""
    kept = [device.train.keep(device.needed) for device in devices]
    needed = [task.needed_rows(one)[0] for one in kept]
    values: list[dict[str, Values]] = [{} for _ in kept]
    for table in task.tables:
        union = np.unique(np.concatenate([one[table.name] for one in needed]))
        block = store.read_rows(table.name, RowSet(union)).values
        for own, rows in zip(values, needed, strict=True):
            own[table.name] = block[np.searchsorted(union, rows[table.name])]
    return [
        ClientWork(rows, own, data, seed + place)
        for place, (rows, own, data) in enumerate(zip(needed, values, kept, strict=True))
    ]
