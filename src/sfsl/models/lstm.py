"""A coupled-gate LSTM for the next word, as in Gboard (paper §I; Hard et al., 2018)."""

import torch
from torch import Tensor, nn

from sfsl.data.catalogue import WORD, Catalogue
from sfsl.errors import ParameterError
from sfsl.submodel.tables import Table
from sfsl.training.task import Batch, Task

WIDTH = 32
UNITS = 64
INITIAL = 0.1


class NextWordLSTM(nn.Module):
    """Columns: ``context``, the words before, oldest first; ``target``, the word that may come next;
    ``known``, how many words the client has.

    The forget gate is one minus the input gate, which saves a quarter of an LSTM. A word has one row, which
    serves where it is read and where it is predicted (tied embeddings), and its last number is the word's
    bias. The softmax is over the words the client has, the first ``known`` rows of what it downloaded:
    those it does not have it never asked for, and rows that fill up a stack of clients take no part.

    The output is the logarithm of how much likelier the target is than by a blind guess among these words,
    so that clients with few words and with many can be compared.
    """

    def __init__(
        self, words: int, *, width: int = WIDTH, units: int = UNITS, device: str | None = None
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width + 1, device=device)
        self.given = nn.Linear(width, 3 * units)
        self.before = nn.Linear(units, 3 * units, bias=False)
        self.meant = nn.Linear(units, width)
        self.units = units

    def forward(self, batch: Batch) -> Tensor:
        target = batch["target"].clamp_min(0).unsqueeze(-1)
        return self.chances(batch).gather(-1, target).squeeze(-1) + batch["known"].clamp_min(1).log()

    def chances(self, batch: Batch) -> Tensor:
        """The logarithm of the chance that each row at hand comes next: [..., rows]."""
        rows, known = self.word.weight, batch["known"].clamp_min(1)
        fit = self.meant(self._read(batch["context"])) @ rows[:, :-1].mT + rows[:, -1]
        absent = torch.arange(rows.shape[0], device=rows.device) >= known.unsqueeze(-1)
        return torch.log_softmax(fit.masked_fill(absent, -1e9), dim=-1)

    def _read(self, context: Tensor) -> Tensor:
        """The state after the last word; a filler leaves it as it was."""
        present = (context >= 0).unsqueeze(-1)
        # What the words contribute does not depend on the state: one product for all of them.
        entry, exit_, fresh = self.given(self.word(context.clamp_min(0))[..., :-1]).chunk(3, dim=-1)
        cell = torch.zeros_like(entry[..., 0, :])
        state = torch.zeros_like(cell)
        for step in range(context.shape[-1]):
            entered, left, renewed = self.before(state).chunk(3, dim=-1)
            gate = torch.sigmoid(entry[..., step, :] + entered) * present[..., step, :]
            cell = cell + gate * (torch.tanh(fresh[..., step, :] + renewed) - cell)
            after = torch.sigmoid(exit_[..., step, :] + left) * torch.tanh(cell)
            state = torch.where(present[..., step, :], after, state)
        return state


def next_word_loss(output: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy over the client's own words. Words that did not come next are there for testing only."""
    return (batch["known"].clamp_min(1).log() - output) * batch["label"]


def next_word_lstm(
    catalogue: Catalogue, *, seed: int, width: int = WIDTH, units: int = UNITS, initial: float = INITIAL
) -> Task:
    """For the public vocabulary of a catalogue; the dense part begins as ``seed`` says.

    Which of the words a client uses is private. The table is not only looked up: the softmax reads all of it.
    """
    words = catalogue.rows(WORD)
    if words is None:
        raise ParameterError(
            f"a model of words needs a catalogue with the table {WORD!r}; this one has "
            f"{', '.join(repr(table.name) for table in catalogue.tables)}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = NextWordLSTM(words, width=width, units=units, device="meta")
    table = Table(name=WORD, rows=words, width=width + 1, initial=initial)
    return Task(module, (table,), loss=next_word_loss)
