"""What all networks share: how an element is shown to them, and how its particle is read from what they made of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.columns import CLASSES, FEATURES, TOWER
from clew.recipes.particleflow.settings import Network

TYPES = 3
ENCODED = TYPES + FEATURES - 1
MOMENTUM = ("pt", "eta", "sin_phi", "cos_phi", "energy")
HEAD_OF = (0, 1, 2, 2, 3)
"""By component of the momentum: pt, eta, phi and energy have a head each."""
INPUT_OF = (2, 3, 4)
"""The features that eta, sin phi and cos phi are corrections to."""


def encoded(elements: Tensor) -> Tensor:
    """(..., 12) to (..., 14): the type as one of three, energies and momenta as log(1 + x GeV), the rest as it is.

    The row of an element that is not there (type 0) holds zeros but for its type.
    """
    kind = elements[..., 0]
    tower = kind == TOWER
    types = torch.stack([(kind == number).to(elements.dtype) for number in range(TYPES)], dim=-1)
    pt, place, energy, parts, rest = torch.split(elements[..., 1:], [1, 3, 1, 2, FEATURES - 8], dim=-1)
    parts = torch.where(tower.unsqueeze(-1), parts.clamp(min=0).log1p(), parts)
    return torch.cat([types, pt.clamp(min=0).log1p(), place, energy.clamp(min=0).log1p(), parts, rest], dim=-1)


class Decoder(nn.Module):
    """Class, charge and momentum from the input encoding and the outputs of all layers of both stacks.

    Momenta are judged and corrected as log(1 + x GeV) where they are energies. The classes seen by the heads of
    momenta are not trained through them.
    """

    def __init__(self, width: int, settings: Network) -> None:
        super().__init__()
        wide, narrow, seen = settings.momentum_width, settings.identity_width, width + len(CLASSES)
        self.identity_norm, self.momentum_norm = nn.LayerNorm(width), nn.LayerNorm(seen)
        self.identity = nn.Linear(width, 2 * narrow)
        self.classes = nn.ModuleList([*(nn.Linear(narrow, narrow) for _ in range(3)), nn.Linear(narrow, len(CLASSES))])
        self.charge = nn.ModuleList([nn.Linear(narrow, narrow), nn.Linear(narrow, 1)])
        self.momentum = nn.Linear(seen, 4 * wide)
        self.hidden = nn.ModuleList([nn.ModuleList([nn.Linear(wide, wide) for _ in range(2)]) for _ in range(4)])
        self.component = nn.ModuleList([nn.Linear(wide, 1) for _ in MOMENTUM])

    def forward(self, inputs: Tensor, layers: Sequence[Sequence[Tensor] | Tensor]) -> dict[str, Tensor]:
        """`inputs` (elements, 14) and of every layer (elements, f) of the stacks for identity and for momentum."""
        seen = self.identity_norm(torch.cat([inputs, *(each[0] for each in layers)], dim=-1))
        first, second = _active(self.identity(seen)).chunk(2, dim=-1)
        logits, charge = _through(self.classes, first), _through(self.charge, second)
        seen = torch.cat([inputs, *(each[1] for each in layers), logits.detach().to(inputs.dtype)], dim=-1)
        heads = _active(self.momentum(self.momentum_norm(seen))).chunk(4, dim=-1)
        states = [self._head(number, head) for number, head in enumerate(heads)]
        made = [layer(states[head]) for layer, head in zip(self.component, HEAD_OF, strict=True)]
        return {"class": logits, "charge": charge.squeeze(-1), "momentum": corrected(torch.cat(made, dim=-1), inputs)}

    def _head(self, number: int, state: Tensor) -> Tensor:
        for layer in self.hidden[number]:  # type: ignore[attr-defined]
            state = _active(layer(state))
        return state


def corrected(momentum: Tensor, inputs: Tensor) -> Tensor:
    """pt as it is; eta, sin phi, cos phi and energy added to those of the element."""
    start = inputs[..., TYPES:].to(momentum.dtype)
    return momentum + torch.cat([torch.zeros_like(start[..., :1]), start[..., 1:5]], dim=-1)


def _through(layers: nn.ModuleList, state: Tensor) -> Tensor:
    for layer in list(layers)[:-1]:
        state = _active(layer(state))
    last: Tensor = layers[-1](state)
    return last


def _active(state: Tensor) -> Tensor:
    return f.elu(state, inplace=True)
