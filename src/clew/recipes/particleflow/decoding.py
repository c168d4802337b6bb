"""What all networks share: the encoding of elements, and the decoder that predicts particles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.columns import CLASSES, FEATURES, TOWER
from clew.recipes.particleflow.settings import ParticleFlowNetworkConfig

TYPES = 3
ENCODED_WIDTH = TYPES + FEATURES - 1
MOMENTUM = ("pt", "eta", "sin_phi", "cos_phi", "energy")
HEAD_OF = (0, 1, 2, 2, 3)
"""The head of each momentum component: pt, eta, phi and energy have one head each."""
INPUT_OF = (2, 3, 4)
"""The features to which the predicted eta, sin phi and cos phi are corrections."""


def encode(elements: Tensor) -> Tensor:
    """Encode elements (..., 12) as (..., 14): one-hot type, log(1 + x / GeV) of energies and momenta, other features.

    Features after the twelfth (see `links`) are not changed. Padding (type 0) is encoded as zeros except for its type.
    """
    kind = elements[..., 0]
    tower = kind == TOWER
    types = torch.stack([(kind == number).to(elements.dtype) for number in range(TYPES)], dim=-1)
    pt, place, energy, parts, rest = torch.split(elements[..., 1:], [1, 3, 1, 2, elements.shape[-1] - 8], dim=-1)
    parts = torch.where(tower.unsqueeze(-1), parts.clamp(min=0).log1p(), parts)
    return torch.cat([types, pt.clamp(min=0).log1p(), place, energy.clamp(min=0).log1p(), parts, rest], dim=-1)


class Decoder(nn.Module):
    """Predicts class, charge and momentum from the encoded inputs and the outputs of all layers of both stacks.

    Transverse momenta and energies are predicted as log(1 + x / GeV). The momentum heads use the class logits as
    inputs, but their gradient does not flow back into the logits.
    """

    def __init__(self, width: int, settings: ParticleFlowNetworkConfig) -> None:
        super().__init__()
        wide, narrow, momentum_inputs = settings.momentum_width, settings.identity_width, width + len(CLASSES)
        self.identity_norm, self.momentum_norm = nn.LayerNorm(width), nn.LayerNorm(momentum_inputs)
        self.identity = nn.Linear(width, 2 * narrow)
        self.classes = nn.ModuleList([*(nn.Linear(narrow, narrow) for _ in range(3)), nn.Linear(narrow, len(CLASSES))])
        self.charge = nn.ModuleList([nn.Linear(narrow, narrow), nn.Linear(narrow, 1)])
        self.momentum = nn.Linear(momentum_inputs, 4 * wide)
        self.hidden = nn.ModuleList([nn.ModuleList([nn.Linear(wide, wide) for _ in range(2)]) for _ in range(4)])
        self.component = nn.ModuleList([nn.Linear(wide, 1) for _ in MOMENTUM])
        self.correct_pt = settings.correct_pt

    def forward(self, inputs: Tensor, layers: Sequence[Sequence[Tensor] | Tensor]) -> dict[str, Tensor]:
        """Decode the outputs of all layers.

        Args:
            inputs: Encoded elements (elements, 14).
            layers: Outputs (elements, width) of every layer, for the identity stack and for the momentum stack.
        """
        features = self.identity_norm(torch.cat([inputs, *(each[0] for each in layers)], dim=-1))
        class_state, charge_state = _elu(self.identity(features)).chunk(2, dim=-1)
        logits, charge = _apply_layers(self.classes, class_state), _apply_layers(self.charge, charge_state)
        features = torch.cat([inputs, *(each[1] for each in layers), logits.detach().to(inputs.dtype)], dim=-1)
        heads = _elu(self.momentum(self.momentum_norm(features))).chunk(4, dim=-1)
        states = [self._head(number, head) for number, head in enumerate(heads)]
        components = [layer(states[head]) for layer, head in zip(self.component, HEAD_OF, strict=True)]
        return {
            "class": logits,
            "charge": charge.squeeze(-1),
            "momentum": add_input_momentum(torch.cat(components, dim=-1), inputs, pt=self.correct_pt),
        }

    def _head(self, number: int, state: Tensor) -> Tensor:
        for layer in self.hidden[number]:  # type: ignore[attr-defined]
            state = _elu(layer(state))
        return state


def add_input_momentum(momentum: Tensor, inputs: Tensor, *, pt: bool = False) -> Tensor:
    """Add eta, sin phi, cos phi and energy of the element to the predicted components, and with `pt` also its pt."""
    start = inputs[..., TYPES : TYPES + len(MOMENTUM)].to(momentum.dtype)
    if pt:
        return momentum + start
    return momentum + torch.cat([torch.zeros_like(start[..., :1]), start[..., 1:]], dim=-1)


def _apply_layers(layers: nn.ModuleList, state: Tensor) -> Tensor:
    for layer in list(layers)[:-1]:
        state = _elu(layer(state))
    last: Tensor = layers[-1](state)
    return last


def _elu(state: Tensor) -> Tensor:
    return f.elu(state, inplace=True)
