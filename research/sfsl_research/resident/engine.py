"""Rounds of a simulated fleet that lives on a device: data, models, training and plain sums.

The round is that of ``plain``, step by step and with the same integers, as array operations over the whole
cohort; nothing waits for the device until somebody looks at what came out. What is drawn by chance is drawn
by the device's generator, so that runs repeat themselves, and agree with ``plain`` in distribution. Faults
and score histograms are not simulated here.

Several models can be trained side by side on the same cohorts: a device that is busy with the long tail of
one cohort's steps has room for more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sfsl.arrays import Indices
from sfsl.errors import InputError, ParameterError
from sfsl.privacy import IndexPrivacy
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import PAPER, Table
from sfsl.training.graphs import STEPS_PER_GRAPH
from sfsl.training.local import learning, rebuilding
from sfsl.training.stack import Columns, Stack, StackPlan, StackTrainer
from sfsl_research.resident.answers import Answers, Union, client_keys
from sfsl_research.resident.clients import Cohort, Kept, ResidentClients
from sfsl_research.resident.hot import HotFigures, HotRows
from sfsl_research.resident.model import Moved, ResidentModel, averaged, decoded, encoded, row_moves

_NOWHERE = 1024


@dataclass(frozen=True)
class TableFigures:
    """What happened to one table: ``union`` has its rows, and fillers behind them; some of these were
    ``opened``, and some ``moved``.

    With ``min_contributors`` 1 all of the union counts as opened, and so do the few rows that nobody asked
    for, which ``plain`` does not count: to know them, everyone's answers about the rows of others would have
    to be drawn, and nothing else depends on those.
    """

    union: Tensor
    real: Tensor
    opened: Tensor
    moved: Tensor


@dataclass(frozen=True)
class Figures:
    """What a round came to, on the device still. ``loss`` is summed over samples."""

    samples: Tensor
    loss: Tensor
    diverged: Tensor
    tables: dict[str, TableFigures] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """One model under its settings. ``privacy`` is everyone's choice."""

    name: str
    model: ResidentModel
    settings: SimulationSettings
    privacy: IndexPrivacy

    def __post_init__(self) -> None:
        rules = self.settings.rules
        if rules.update.averaging.weights == "dataset" and rules.encoding != "whole":
            raise ParameterError(f"{self.name}: weights by data set are for full models here")
        if self.settings.faults.rates or self.settings.faults.late:
            raise ParameterError(f"{self.name}: a fleet on a device has no faults; take the local engine")


class ResidentEngine:
    """Runs rounds of ``clients`` clients. All arms have one task and one way of local training."""

    def __init__(
        self, fleet: ResidentClients, arms: Sequence[Arm], *, clients: int, seed: int, compiled: bool = False
    ) -> None:
        self._fleet, self._arms, self._clients, self._seed = fleet, arms, clients, seed
        self._task, self._local = arms[0].model.task, arms[0].settings.local
        if any((arm.model.task, arm.settings.local) != (self._task, self._local) for arm in arms):
            raise ParameterError("models that are trained side by side share their task and local settings")
        if not self._task.personal:  # there is nothing to rebuild
            self._local = replace(self._local, rebuild=0.0)
        # One each, seeded alike: models differ by their settings, not by what was drawn for them.
        self._generators = [torch.Generator(fleet.device) for _ in arms]
        self._plan = StackPlan.of(self._task, fleet.holds, fleet.widths, self._local.batch_size)
        # How many samples rebuild and how many are learned from, by how many a client has.
        self._parts = fleet.there(np.stack(self._local.parts(np.arange(fleet.host.samples.max() + 1))))
        compiled = (compiled or self._local.compiled) and fleet.device.type == "cuda"
        self._stack, self._first = self._buffers()
        how = learning(self._task, self._local, 0, rebuilt=self._first is not None)
        self._trainer = StackTrainer(self._task, how, self._stack, self._plan, compiled=compiled)
        self._rebuilder: StackTrainer | None = None
        if self._first is not None:
            how = rebuilding(self._task, self._local)
            self._rebuilder = StackTrainer(self._task, how, self._first, self._plan, compiled=compiled)

    def prepare(self) -> None:
        """Do what a device takes time for once: capture its graphs."""
        if self._fleet.device.type == "cuda":
            for one in (self._trainer, self._rebuilder):
                if one is not None:
                    one.capture()

    def run(self, number: int, chosen: Indices) -> list[Figures]:
        """Run round ``number``, counted from 1, with the chosen clients. Figures are on the device still."""
        different = len(np.unique(chosen))
        if different != self._clients or len(chosen) != self._clients:
            raise InputError(
                f"a round here has {self._clients} different clients; {len(chosen)} were chosen, {different} "
                "of them different"
            )
        cohort = self._fleet.cohort(chosen)
        for generator in self._generators:
            generator.manual_seed((self._seed * 1_000_003 + number) % 2**63)
        same = _Same(self._fleet, self._task.spec.summed, cohort)
        rounds = [_ArmRound(self, place, same, number) for place in range(len(self._arms))]
        first, last = self._local.parts(cohort.samples)
        self._rebuild(first)
        steps = -(-last // self._local.batch_size) * self._local.epochs
        self._trainer.run(np.repeat(steps, len(self._arms)).tolist(), self._local.rate(number - 1))
        return [one.conclude() for one in rounds]

    def run_hot(self, number: int, chosen: Indices, rows: HotRows) -> HotFigures:
        """Run round ``number`` over hot rows up to its sums, which move nothing yet but personal rows. Of
        more clients than there are buffers for, some are trained after others."""
        if len(np.unique(chosen)) != len(chosen) or not len(chosen):
            raise InputError("a round over hot rows has different clients, and at least one")
        (generator,) = self._generators
        generator.manual_seed((self._seed * 1_000_003 + number) % 2**63)
        chosen = chosen[np.argsort(-self._fleet.host.samples[chosen], kind="stable")]  # few wait for others
        others = np.setdiff1d(np.arange(len(self._fleet.host)), chosen)[: self._clients]
        total = HotFigures.none(self._task.spec, rows, self._fleet.device)
        for start in range(0, len(chosen), self._clients):
            real = chosen[start : start + self._clients]
            # Buffers have room for so many, and whoever fills them up does not count.
            filled = np.append(real, others[: self._clients - len(real)])
            filled = np.append(filled, np.setdiff1d(chosen, real)[: self._clients - len(filled)])
            cohort = self._fleet.cohort(filled)
            same = _Same(self._fleet, (), cohort)
            one = _ArmRound(self, 0, same, number, rows)
            first, last = self._local.parts(cohort.samples)
            self._rebuild(first)
            steps = -(-last // self._local.batch_size) * self._local.epochs
            self._trainer.run(steps.tolist(), self._local.rate(number - 1))
            total = total + one.conclude_hot(self._fleet.there(np.isin(cohort.chosen, real)))
        return total

    def rebuild(self, chosen: Indices) -> None:
        """Rebuild the personal rows of these clients on all their samples, with each model as it is: rows to
        score with. Rows of all others become zero; no round reads them.

        Which samples are drawn does not depend on the round.
        """
        for arm, generator in zip(self._arms, self._generators, strict=True):
            generator.manual_seed(self._seed % 2**63)
            for name in self._task.personal:
                arm.model.tables[name].zero_()
        others = np.setdiff1d(np.arange(len(self._fleet.host)), chosen)[: self._clients]
        chosen = chosen[np.argsort(-self._fleet.host.samples[chosen], kind="stable")]  # few wait for others
        for start in range(0, len(chosen), self._clients):
            some = chosen[start : start + self._clients]
            some = np.append(some, others[: self._clients - len(some)])  # buffers have room for so many
            some = np.append(some, chosen[: self._clients - len(some)])
            cohort = self._fleet.cohort(some)
            same = _Same(self._fleet, self._task.spec.summed, cohort)
            parts = [_ArmRound(self, place, same, None) for place in range(len(self._arms))]
            self._rebuild(np.minimum(cohort.samples, self._local.max_samples or cohort.samples))
            for one in parts:
                one.keep_rebuilt()

    def _rebuild(self, samples: Indices) -> None:
        """Take the steps that rebuild, of so many samples of each client."""
        if self._rebuilder is not None:
            steps = -(-samples // self._local.batch_size) * self._local.rebuild_epochs
            self._rebuilder.run(np.repeat(steps, len(self._arms)).tolist(), self._local.rebuild_rate)

    def _buffers(self) -> tuple[Stack, Stack | None]:
        """Make the buffers of all slots; another order in the same ones is for steps that rebuild."""
        fleet, task, device = self._fleet, self._task, self._fleet.device
        slots = self._clients * len(self._arms)
        most = sorted(fleet.host.samples.tolist())[-self._clients :]
        self._room = sum(most)
        local, taken = self._local, min(most[-1], self._local.max_samples or most[-1])

        def order(samples: int, epochs: int) -> Tensor:
            steps = -(-samples // local.batch_size) * epochs
            steps = -(-steps // STEPS_PER_GRAPH) * STEPS_PER_GRAPH
            return torch.full((slots, steps, local.batch_size), -1, device=device)

        stack = Stack(
            dense={
                name: torch.zeros((slots, *shape), device=device) for name, shape in task.dense_shapes.items()
            },
            tables={
                table.name: torch.zeros((slots, fleet.largest(table.name) + 1, table.width), device=device)
                for table in task.tables
            },
            columns=self._column_buffers(self._room * len(self._arms)),
            order=order(taken, local.epochs),
            losses=torch.zeros(slots, device=device),
        )
        if not local.rebuild:
            return stack, None
        rebuild = order(taken, local.rebuild_epochs)  # all of them, to evaluate
        return stack, replace(stack, order=rebuild, losses=torch.zeros_like(stack.losses))

    def _column_buffers(self, samples: int) -> Columns:
        """Make room for so many samples, in the shapes that packing one sample gives."""
        fleet = self._fleet
        none = torch.zeros(0, dtype=torch.int64, device=fleet.device)
        columns = {name: none.reshape(0, *([width] if width else [])) for name, width in fleet.widths.items()}
        like = self._plan.pack(columns | fleet.kinds, dict.fromkeys(self._plan.fetched, 0))

        def room(some: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: one.new_zeros((samples, *one.shape[1:])) for name, one in some.items()}

        return Columns(room(like.packed), room(like.others))


@dataclass(frozen=True)
class _Work:
    """What a cohort learns from, and which samples rebuild before, if any; ``counts`` are, by table, of the
    learned samples that touch each row."""

    learned: Tensor
    rebuild: Tensor | None
    samples: Tensor
    counts: dict[str, Tensor]
    columns: Columns


class _Same:
    """What is the same for all models of a round; ``everything`` is for those whose clients ask for all."""

    def __init__(self, fleet: ResidentClients, summed: Sequence[Table], cohort: Cohort) -> None:
        self.cohort, self.samples = cohort, fleet.there(cohort.samples)
        self.unions = {table.name: Union.of(cohort.rows[table.name].row, table.rows) for table in summed}
        self.everything: _Work | None = None


class _ArmRound:
    """One model's part in a round: its buffers are filled here, and emptied in ``conclude``.

    Without a ``number`` it only rebuilds, on all samples, for ``keep_rebuilt``. With ``hot`` rows nobody asks
    for any, and ``conclude_hot`` ends it.
    """

    def __init__(
        self,
        engine: ResidentEngine,
        place: int,
        same: _Same,
        number: int | None,
        hot: HotRows | None = None,
    ) -> None:
        self._arms, self._place = len(engine._arms), place
        self._arm = engine._arms[place]
        self._task, self._fleet, self._stack = engine._task, engine._fleet, engine._stack
        self._local, self._generator, self._plan = engine._local, engine._generators[place], engine._plan
        self._cohort, self._unions, self._room = same.cohort, same.unions, engine._room * place
        self._most, self._parts, self._first = same.samples, engine._parts, engine._first
        self._summed, self._only_rebuilds, self._hot = self._task.spec.summed, number is None, hot
        if number is None or hot is not None:
            self._work = self._kept({})
            self._fill()
            return
        self._update = self._arm.settings.rules.update_in(number)
        self._shared = [table.name for table in self._summed if table.kind == "shared"]
        every = self._arm.settings.period
        answers = self._ask(engine._seed, (number - 1) // every if every else 0)
        asked = {name: answers.about_own(self._cohort.rows[name]) for name in self._shared}
        self._open = self._opened(answers, asked)
        drawn = self._local.rebuild or self._local.max_samples
        if self._arm.privacy.p1 == self._arm.privacy.p3 == 1 and not drawn:
            same.everything = same.everything or self._kept(asked)
            self._work = same.everything
        else:
            self._work = self._kept(asked)
        self._fill()

    def _ask(self, seed: int, period: int) -> Answers:
        privacy, cohort = self._arm.privacy, self._cohort
        column = torch.empty((len(cohort), 1), dtype=torch.float64, device=self._fleet.device)
        four = (privacy.p1, privacy.p2, privacy.p3, privacy.p4)
        chances = torch.cat([torch.full_like(column, one) for one in four], dim=1)
        return Answers(client_keys(cohort.numbers, seed, period), chances, self._generator)

    def _opened(self, answers: Answers, asked: dict[str, Tensor]) -> dict[str, Tensor]:
        """Say which rows of each union enough clients asked for; the others are left out by everyone."""
        rules = self._arm.settings.rules
        if rules.min_contributors <= 1 or rules.encoding == "whole":
            return {name: union.real for name, union in self._unions.items()}
        counts = {name: torch.zeros_like(union.rows) for name, union in self._unions.items()}
        for name in self._shared:
            union, rows = self._unions[name], self._cohort.rows[name]
            derived = [table for table in self._summed if table.source == name]
            for asks in answers.about_union(rows, union, asked[name]):
                counts[name] += asks.sum(0)
                for table in derived:
                    counts[table.name] += self._derived_requests(table, union, asks)
        least = rules.min_contributors
        return {name: union.real & (counts[name] >= least) for name, union in self._unions.items()}

    def _derived_requests(self, table: Table, union: Union, asked: Tensor) -> Tensor:
        """Count these clients that ask, through rows of the source, for each row of a derived table."""
        of = self._arm.model.maps[table.name][union.rows]
        found = torch.zeros((len(asked), table.rows + 1), dtype=torch.int32, device=asked.device)
        requests = (found.index_add_(1, of, asked.to(torch.int32)) > 0).sum(0)
        return requests[self._unions[table.name].rows]

    def _kept(self, asked: dict[str, Tensor]) -> _Work:
        kept = self._fleet.keep(self._cohort, asked)
        fillers = {name: one.shape[1] - 1 for name, one in self._stack.tables.items()}
        rebuild, learned = self._draw_lots(kept.keep)
        return _Work(
            learned,
            rebuild,
            self._per_client(learned),
            {}
            if self._only_rebuilds or self._hot is not None
            else {table.name: self._count(table, Kept(learned, kept.columns)) for table in self._summed},
            self._plan.pack(kept.columns, fillers),
        )

    def _draw_lots(self, keep: Tensor) -> tuple[Tensor | None, Tensor]:
        """Say which of the kept samples rebuild, and which are learned from, as ``draw_lot`` does."""
        local, cohort = self._local, self._cohort
        if not (local.rebuild or local.max_samples):
            return None, keep
        rank = torch.empty_like(cohort.sample)
        rank[self._shuffled(keep)] = torch.arange(len(rank), device=rank.device) - cohort.start[cohort.client]
        counts = self._per_client(keep)
        taken = (counts.clamp_max(local.max_samples) if local.max_samples else counts)[cohort.client]
        if self._only_rebuilds:
            return keep & (rank < taken), torch.zeros_like(keep)
        first, last = (part[counts][cohort.client] for part in self._parts)
        learned = keep & (rank >= taken - last) & (rank < taken)
        return (keep & (rank < first) if local.rebuild else None), learned

    def _shuffled(self, some: Tensor) -> Tensor:
        """Return all samples, client by client, each one's ``some`` first and in an order drawn by chance."""
        drawn = torch.rand(len(some), generator=self._generator, device=some.device, dtype=torch.float64)
        return (self._cohort.client * 2 + ~some + drawn).argsort()

    def _count(self, table: Table, kept: Kept) -> Tensor:
        """Count the kept samples that touch each row of each client; one that has it twice counts once."""
        rows, cohort = self._cohort.rows[table.name], self._cohort
        touched = [
            kept.columns[name].reshape(len(kept.keep), -1)
            for name, one in self._fleet.holds.items()
            if one == table.name
        ]
        places = torch.cat(touched, dim=1).to(torch.int32).sort(dim=1).values
        fresh = torch.ones_like(places, dtype=torch.bool)
        fresh[:, 1:] = places[:, 1:] != places[:, :-1]
        fresh &= (places >= 0) & kept.keep.unsqueeze(1)
        # Whatever does not count goes to many places: a GPU is slow to add much up in one.
        nowhere = len(rows.row) + torch.arange(len(places), device=places.device).unsqueeze(1) % _NOWHERE
        flat = torch.where(fresh, rows.start[cohort.client].unsqueeze(1) + places, nowhere)
        counts = torch.zeros(len(rows.row) + _NOWHERE, dtype=torch.int64, device=flat.device)
        return counts.index_add_(0, flat.flatten(), fresh.flatten().to(torch.int64))[: len(rows.row)]

    def _fill(self) -> None:
        stack, work, model = self._stack, self._work, self._arm.model
        here = slice(self._room, self._room + len(work.learned))
        for name, one in work.columns.packed.items():
            stack.columns.packed[name][here] = one
        for name, one in work.columns.others.items():
            stack.columns.others[name][here] = one
        for name, one in model.dense_parameters().items():
            stack.dense[name][self._place :: self._arms] = one
        for table in self._task.tables:
            # A client that diverged leaves NaN in rows that the next one has not, and that fillers point to.
            stack.tables[table.name][self._place :: self._arms].zero_()
            if self._first is not None and table.kind == "personal":
                continue  # which begin at zero
            row = self._cohort.rows[table.name].row
            stack.tables[table.name].flatten(0, 1)[self._slots(table.name)] = self._begun(table.name)[row]
        first, last = (part[self._most] for part in self._parts)
        if self._only_rebuilds:
            first = self._most.clamp_max(self._local.max_samples) if self._local.max_samples else self._most
        if self._first is not None and work.rebuild is not None:
            self._fill_order(self._first.order, work.rebuild, first, self._local.rebuild_epochs)
        self._fill_order(stack.order, work.learned, last, self._local.epochs)

    def _fill_order(self, order: Tensor, some: Tensor, most: Tensor, epochs: int) -> None:
        """Put some samples of each client, at most ``most`` of them, in a fresh order per epoch, in batches
        that are alike, or one apart; fillers behind."""
        cohort, size = self._cohort, self._local.batch_size
        own = order[self._place :: self._arms]
        filled = own.new_full((len(own), own[0].numel() + 1), -1)  # the last place is for what is not taken
        nowhere = filled.shape[1] - 1
        room = ((most + size - 1) // size * size)[cohort.client]
        taken = self._per_client(some)
        steps = ((taken + size - 1) // size).clamp_min(1)
        # So many batches have one more than the others, which have ``few``.
        few, more = (one[cohort.client] for one in (taken // steps, taken % steps))
        place = torch.arange(len(some), device=some.device) - cohort.start[cohort.client]
        rest = place - more * (few + 1)
        early = place // (few + 1) * size + place % (few + 1)
        late = (more + rest // few.clamp_min(1)) * size + rest % few.clamp_min(1)
        slot = torch.where(rest < 0, early, late)
        for epoch in range(epochs):
            sample = self._shuffled(some)
            at = torch.where(place < taken[cohort.client], slot + epoch * room, nowhere)
            filled[cohort.client, at] = sample + self._room
        own.copy_(filled[:, :-1].reshape(own.shape))

    def _slots(self, table: str) -> Tensor:
        rows = self._cohort.rows[table]
        return (rows.client * self._arms + self._place) * self._stack.tables[table].shape[1] + rows.place

    def _per_client(self, of_samples: Tensor) -> Tensor:
        zeros = torch.zeros(len(self._cohort), dtype=torch.int64, device=of_samples.device)
        return zeros.index_add_(0, self._cohort.client, of_samples.to(torch.int64))

    def keep_rebuilt(self) -> None:
        """Put rebuilt rows into the model; zeros for a client with whom that went astray."""
        assert self._first is not None  # noqa: S101 -- whoever asks for it has it
        fine = self._first.losses[self._place :: self._arms].isfinite()
        for name in self._task.personal:
            rows = self._cohort.rows[name]
            values = self._stack.tables[name].flatten(0, 1)[self._slots(name)]
            kept = fine[rows.client].unsqueeze(1) & values.isfinite()
            self._arm.model.tables[name].index_copy_(0, rows.row, torch.where(kept, values, 0.0))

    def _begun(self, table: str) -> Tensor:
        """Return the rows that clients begin with: those of the model, hot ones as they are downloaded."""
        hot = self._hot
        return (
            self._arm.model.tables[table]
            if hot is None
            else hot.begun.get(table, self._arm.model.tables[table])
        )

    def _learned(self) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
        """Return how far dense parts and rows moved, the losses, and with whom all went well."""
        cohort, mine = self._cohort, slice(self._place, None, self._arms)
        before = self._arm.model.dense_parameters()
        dense = torch.cat(
            [(self._stack.dense[name][mine] - one).flatten(1) for name, one in before.items()], dim=1
        )
        rows = {
            table.name: self._stack.tables[table.name].flatten(0, 1)[self._slots(table.name)]
            - self._begun(table.name)[cohort.rows[table.name].row]
            for table in self._task.tables
        }
        losses = self._stack.losses[mine]
        total = dense.sum(1) + losses
        if self._first is not None:
            total = total + self._first.losses[mine]
        for name, moved in rows.items():
            total = total.index_add(0, cohort.rows[name].client, moved.sum(1))
        return dense, rows, losses, total.isfinite() & (self._work.samples > 0)

    def conclude_hot(self, there: Tensor) -> HotFigures:
        """Sum what those clients learned who are ``there``, each within the clip; their own rows move."""
        assert self._hot is not None  # noqa: S101 -- whoever asks for it gave it
        dense, rows, losses, fine = self._learned()
        trained, fine = self._work.samples > 0, fine & there
        for name in self._task.personal:
            self._move_personal(name, rows[name], fine)
        found = self._hot.summed(dense, rows, self._cohort.rows, fine)
        return replace(
            found,
            samples=torch.where(fine, self._work.samples, 0).sum(),
            loss=torch.where(fine, losses, 0.0).sum() / self._local.epochs,
            diverged=(~fine & there & trained).sum(),
        )

    def conclude(self) -> Figures:
        """Sum what clients learned, and move the model."""
        model, update, cohort = self._arm.model, self._update, self._cohort
        dense, rows, losses, fine = self._learned()
        weight = torch.where(fine, self._work.samples, 0)
        tables = {}
        for table in self._task.tables:
            if table.kind == "personal":
                self._move_personal(table.name, rows[table.name], fine)
            else:
                tables[table.name] = self._move_rows(table, rows[table.name], weight, fine)
        words, capped = encoded(
            torch.where(fine.unsqueeze(1), dense, 0.0), weight, update.dense, self._generator
        )
        sums = Moved(words.sum(0, keepdim=True), capped.sum(0, keepdim=True))
        values, weights = decoded(sums, update.dense, torch.full_like(sums.weights, len(cohort)))
        model.move_dense(averaged(values, weights, PAPER)[0], weights[0] > 0, update.dense_step)
        return Figures(
            samples=weight.sum(),
            loss=torch.where(fine, losses, 0.0).sum() / self._local.epochs,
            diverged=(~fine & (self._work.samples > 0)).sum(),
            tables=tables,
        )

    def _move_personal(self, table: str, moves: Tensor, fine: Tensor) -> None:
        model, rows = self._arm.model, self._cohort.rows[table]
        kept = torch.where(fine[rows.client].unsqueeze(1), moves, 0.0)
        model.tables[table].index_add_(0, rows.row, kept)  # a personal row has one owner
        model.touched[table].index_fill_(0, rows.row, True)

    def _move_rows(self, table: Table, moves: Tensor, samples: Tensor, fine: Tensor) -> TableFigures:
        update, union, rows = self._update, self._unions[table.name], self._cohort.rows[table.name]
        counts = torch.where(fine[rows.client], self._work.counts[table.name], 0)
        weights = counts
        if update.averaging.weights == "owners":
            weights = (counts > 0).to(torch.int64)
        elif update.averaging.weights == "dataset":
            weights = torch.where(counts > 0, samples[rows.client], 0)
        trained = torch.where((counts > 0).unsqueeze(1), moves, 0.0)
        words, capped = encoded(trained, weights, update.rows, self._generator)
        sums = Moved(
            torch.zeros((len(union.rows), table.width), dtype=torch.int64, device=words.device),
            torch.zeros_like(union.rows),
        )
        sums.values.index_add_(0, union.at, words)
        sums.weights.index_add_(0, union.at, capped)
        if update.averaging.weights == "dataset":  # everyone asked for every row, and weighs in on it
            sums.weights.copy_(samples.clamp_max(update.rows.max_weight).sum().expand_as(sums.weights))
        everyone = torch.full_like(sums.weights, len(self._cohort))
        values, total = decoded(sums, update.rows, everyone)
        opened = self._open[table.name]
        total = torch.where(opened, total, 0)
        moved = (total > 0) & (values != 0).any(1)
        self._arm.model.move_rows(table.name, union.rows, row_moves(values, total, update), moved, update)
        return TableFigures(union.rows, union.real, opened, moved)
