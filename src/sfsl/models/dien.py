"""Deep Interest Evolution Network for click prediction (Zhou et al., AAAI 2019)."""

import torch
from torch import Tensor, nn

from sfsl.models.items import ItemModel
from sfsl.training.task import Batch


class GatedUnit(nn.Module):
    """A GRU, written out as products so that many clients can run it at once.

    With ``attention`` the update gate is scaled by it, step by step (AUGRU): what does not matter to the
    item at hand leaves the state as it was. A step whose attention is 0 changes nothing.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.given = nn.Linear(inputs, 3 * units)
        self.gates = nn.Linear(units, 2 * units, bias=False)
        self.candidate = nn.Linear(units, units, bias=False)
        self.units = units

    def forward(self, steps: Tensor, attention: Tensor) -> Tensor:
        """The state after each step: [..., steps, units]. ``attention``: [..., steps, 1]."""
        # What the inputs contribute does not depend on the state: one product for all steps.
        update, reset, fresh = self.given(steps).chunk(3, dim=-1)
        state = torch.zeros_like(update[..., 0, :])
        states = []
        for step in range(steps.shape[-2]):
            kept, remembered = self.gates(state).chunk(2, dim=-1)
            gate = torch.sigmoid(update[..., step, :] + kept) * attention[..., step, :]
            known = torch.sigmoid(reset[..., step, :] + remembered) * state
            candidate = torch.tanh(fresh[..., step, :] + self.candidate(known))
            state = state + gate * (candidate - state)
            states.append(state)
        return torch.stack(states, dim=-2)


class DIEN(ItemModel):
    """Columns and tables are those of DIN; the order of the history matters.

    A GRU over the history extracts interests, attention compares each with the item at hand by a bilinear
    form, and a second GRU whose update gate is scaled by the attention lets the interest evolve. Its last
    state goes into DIN's tower in the place of the attended pasts. The paper's auxiliary loss, which tells
    the next click from a sampled one at every step, is left out: it needs negatives for each place of a
    history and a second output per sample.
    """

    def add_layers(self, size: int, inputs: int) -> None:
        self.extractor = GatedUnit(size, size)
        self.relevance = nn.Linear(size, size, bias=False)
        self.evolution = GatedUnit(size, size)

    def forward(self, batch: Batch, apart: bool = False) -> Tensor:
        """The logit of a click, or its parts."""
        item = self.items(batch, "item")
        held = batch["history"] >= 0
        present = held.unsqueeze(-1)
        past = self.items(batch, "history") * present
        interests = self.extractor(past, present.to(past.dtype))
        compared = (interests * self.relevance(item).unsqueeze(-2)).sum(dim=-1, keepdim=True)
        share = torch.softmax(compared.masked_fill(~present, -1e9), dim=-2) * present
        interest, whole = self.evolution(interests, share)[..., -1, :], self.pooled(past, held)
        user = self.user(batch["user"])
        entry = torch.cat([user, item, whole, item * whole, interest], dim=-1)
        return self.click_logit(entry, user, item, whole, apart=apart)
