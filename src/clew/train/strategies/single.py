"""One process: the same steps, nobody to talk to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clew.recipe import Loss
from clew.tally import Tally


class Single:
    """The strategy of a process alone."""

    def __init__(self, **_: Any) -> None:
        self.rank = 0
        self.ranks = 1
        self.waited = 0.0
        self.signal = self.heard = 0

    def start(self, model: nn.Module) -> None:
        """Nothing to share."""

    def backward(self, losses: Mapping[str, Loss], parameters: Mapping[str, Sequence[nn.Parameter]]) -> Tensor:
        """Plain backward of each mean."""
        sums = []
        for name, own in parameters.items():
            total, weight = losses[name]
            for parameter in own:
                parameter.grad = None
            mean = total / (weight or 1.0)
            torch.autograd.backward(mean, inputs=list(own), retain_graph=len(parameters) > 1)
            for parameter in own:
                if parameter.grad is None:  # no part of this loss: a zero, as a sum over ranks would give
                    parameter.grad = torch.zeros_like(parameter)
            sums.append(torch.stack([total.detach().double(), torch.tensor(weight, device=total.device)]))
        self.heard = self.signal
        return torch.stack(sums)

    def gather(self, item: Any) -> list[Any]:
        """Only this one's."""
        return [item]

    def add(self, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
        """They are complete."""
        return dict(tallies)

    def close(self) -> None:
        """Nothing to leave."""
