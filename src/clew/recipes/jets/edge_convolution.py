"""A fast graph network over constituents: edge convolutions over nearest neighbours, one matrix per constituent.

Neighbours are searched in eta and phi in the first layer, and among the hidden values of the layer in the others. The
message of an edge is `gelu(A x_i + B x_j + c log(distance))`. The matrices act on constituents before neighbours are
gathered, and the next matrix on the mean of messages, so no matrix product is done per edge: this is several times as
fast as a perceptron per edge.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.jets.settings import JetsNetworkConfig

CLOSE = 1e-5
"""Added to squared distances before their logarithm."""


class Neighbours:
    """The nearest constituents of every constituent of a batch.

    Args:
        points: Positions (jets, constituents, dimensions).
        mask: Which constituents are real (jets, constituents).
        count: Number of neighbours. Jets with fewer constituents have fewer.
    """

    def __init__(self, points: Tensor, mask: Tensor, count: int) -> None:
        jets, places, _ = points.shape
        points = points.detach()  # which constituents are near has no gradient
        square = (points * points).sum(dim=2)
        apart = square.unsqueeze(2) + square.unsqueeze(1) - 2 * points @ points.transpose(1, 2)
        itself = torch.eye(places, dtype=torch.bool, device=points.device)
        apart = apart.masked_fill(~mask.unsqueeze(1) | itself, torch.inf)
        # a jet of a short batch has no `count` others: places beyond the last are never real
        apart = f.pad(apart, (0, count), value=torch.inf)
        distance, index = apart.topk(count, dim=2, largest=False, sorted=False)
        self.real = distance < torch.inf
        """(jets, constituents, neighbours): whether there is one."""
        self.closeness = torch.log(distance.masked_fill(~self.real, 0.0).clamp(min=0.0) + CLOSE)
        """(jets, constituents, neighbours): logarithm of the squared distance."""
        first = torch.arange(jets, device=points.device).view(-1, 1, 1) * places
        self._rows = torch.where(self.real, index, 0) + first

    def gather(self, values: Tensor) -> Tensor:
        """(jets, constituents, width) to (jets, constituents, neighbours, width)."""
        return f.embedding(self._rows, values.flatten(0, 1))

    def rows(self, items: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Neighbours as rows of a table of constituents, and whether there is one: both (constituents, neighbours).

        Args:
            items: The constituents that the table has, as places in the batch. Default: all, with padding.
        """
        rows, real = self._rows.flatten(0, 1), self.real.flatten(0, 1)
        if items is None:
            return rows, real
        number = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        number[items] = torch.arange(len(items), device=rows.device)
        return number[rows[items]], real[items]

    def mean(self, messages: Tensor) -> Tensor:
        """The mean over neighbours; 0 for a constituent without any."""
        real = self.real.unsqueeze(3).to(messages.dtype)
        return (messages * real).sum(dim=2) / real.sum(dim=2).clamp(min=1)


class EdgeBlock(nn.Module):
    """One edge convolution, added to its input, and a perceptron of each constituent."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.own, self.other = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.closeness = nn.Parameter(torch.zeros(width))
        self.join, self.dropout = nn.Linear(width, width), nn.Dropout(dropout)
        self.expand = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, state: Tensor, near: Neighbours) -> Tensor:
        values = self.before(state)
        edges = self.own(values).unsqueeze(2) + near.gather(self.other(values))
        messages = f.gelu(edges + near.closeness.unsqueeze(3) * self.closeness)
        state = state + self.dropout(self.join(near.mean(messages)))
        grown: Tensor = state + self.dropout(self.expand(self.between(state)))
        return grown


class EdgeConvolution(nn.Module):
    """Edge convolutions, then the mean and the maximum over constituents."""

    def __init__(self, inputs: int, classes: int, settings: JetsNetworkConfig) -> None:
        super().__init__()
        width = settings.width
        self.coordinates, self.neighbours = list(settings.coordinates), settings.neighbours
        self.embed = nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(EdgeBlock(width, settings.dropout) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(settings.dropout), nn.Linear(width, classes)
        )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        values = values * mask.unsqueeze(2)  # what padding holds must not reach distances
        state, points = self.embed(values), values[:, :, self.coordinates]
        for layer in self.layers:
            state = layer(state, Neighbours(points, mask, self.neighbours))
            points = state
        state, real = self.norm(state), mask.unsqueeze(2)
        count = real.sum(dim=1).clamp(min=1)
        highest = state.masked_fill(~real, -torch.inf).amax(dim=1)
        both = [(state * real).sum(dim=1) / count, torch.where(mask.any(dim=1, keepdim=True), highest, 0.0)]
        logits: Tensor = self.head(torch.cat(both, dim=1))
        return logits
