"""ParticleNet (arXiv:1902.08570): edge convolutions with several matrices per edge and batch normalisation.

The message of an edge is a perceptron of `x_i` and `x_j - x_i`. Its first matrix acts on constituents before neighbours
are gathered: `A x_i + B (x_j - x_i)` is `(A - B) x_i + B x_j`. In training the network works on the real constituents
alone, so padding is not in the statistics of the batch normalisation. In evaluation it works on padded tensors, which
can be exported.
"""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.jets.edge_convolution import Neighbours
from clew.recipes.jets.settings import JetsNetworkConfig

EDGE_LAYERS = 3
"""Matrices per edge, as published."""


class EdgeNetwork(nn.Module):
    """One block: the mean over neighbours of a perceptron per edge, added to a projection of the input."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, width, bias=False)
        self.difference = nn.Linear(inputs, width, bias=False)
        self.first = nn.BatchNorm1d(width)
        self.others = nn.Sequential(*(_normalised(width, width) for _ in range(EDGE_LAYERS - 1)))
        self.shortcut = nn.Sequential(nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width))

    def forward(self, state: Tensor, rows: Tensor, real: Tensor) -> Tensor:
        """
        Args:
            state: Constituents of all jets (items, inputs).
            rows: The neighbours of each, as rows of `state` (items, neighbours).
            real: Whether there is one (items, neighbours).
        """
        neighbour = self.difference(state)
        edges = (self.own(state) - neighbour).unsqueeze(1) + f.embedding(rows, neighbour)
        messages = self.others(f.relu(self.first(edges.flatten(0, 1)))).view(edges.shape)
        weight = real.to(messages.dtype) / real.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (weight.unsqueeze(1) @ messages).squeeze(1)
        return f.relu(self.shortcut(state) + mean)


def _normalised(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())


class ParticleNet(nn.Module):
    """Blocks of edge convolutions, each twice as wide as the one before, then the mean over constituents.

    Neighbours are the nearest in eta and phi in the first block, and in the output of the last block in the others.
    """

    def __init__(self, inputs: int, classes: int, settings: JetsNetworkConfig) -> None:
        super().__init__()
        widths = [inputs, *(settings.width * 2**place for place in range(settings.layers))]
        self.coordinates, self.neighbours = list(settings.coordinates), settings.neighbours
        self.scale = nn.BatchNorm1d(inputs)
        self.blocks = nn.ModuleList(EdgeNetwork(a, b) for a, b in itertools.pairwise(widths))
        hidden = 4 * settings.width
        self.head = nn.Sequential(
            nn.Linear(widths[-1], hidden), nn.ReLU(), nn.Dropout(settings.dropout), nn.Linear(hidden, classes)
        )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        jets, places, _ = values.shape
        real = mask.unsqueeze(2)
        values = values * real  # what padding holds must not reach distances
        items = mask.flatten().nonzero().squeeze(1) if self.training else None
        state, points = self.scale(_rows(values, items)), values[:, :, self.coordinates]
        for block in self.blocks:
            near = Neighbours(points, mask, self.neighbours)
            state = block(state, *near.rows(items))
            if items is None:
                points = state.view(jets, places, -1)
            else:
                points = state.new_zeros(jets * places, state.shape[1]).index_copy(0, items, state)
                points = points.view(jets, places, -1)
        total = (points * real).sum(dim=1)
        logits: Tensor = self.head(total / real.sum(dim=1).clamp(min=1))
        return logits


def _rows(values: Tensor, items: Tensor | None) -> Tensor:
    """(jets, places, width) to (items, width): of all places, or of these."""
    flat = values.flatten(0, 1)
    return flat if items is None else flat[items]
