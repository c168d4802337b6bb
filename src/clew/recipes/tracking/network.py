"""The GraphNet for segment graphs. It works on the concatenated graphs of a batch, without dense matrices or
padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clew import Batch, Loss


class GraphNet(nn.Module):
    """Scores edges between segments. It has 102,785 parameters with 5 features and 128 hidden units.

    Input: a batch with `node` (nodes, features) and `edge` (edges, 2). Output: one logit per edge.
    """

    def __init__(self, features: int = 5, hidden: int = 128, iterations: int = 1) -> None:
        super().__init__()
        width = hidden + features
        self.iterations = iterations
        self.embed = nn.Sequential(nn.Linear(features, hidden), nn.Tanh())
        self.edge_hidden = nn.Linear(2 * width, hidden)
        self.edge_score = nn.Linear(hidden, 1)
        self.node = nn.Sequential(nn.Linear(3 * width, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())

    def forward(self, batch: Batch) -> Tensor:
        features = batch["node"]
        source, target = batch["edge"].unbind(dim=1)
        state = torch.cat([self.embed(features), features], dim=1)
        for _ in range(self.iterations):
            gate = torch.sigmoid(self._score(state, source, target)).unsqueeze(1)
            zeros = torch.zeros_like(state)
            arriving = zeros.index_add(0, target, gate * state[source])
            leaving = zeros.index_add(0, source, gate * state[target])
            state = torch.cat([self.node(torch.cat([arriving, leaving, state], dim=1)), features], dim=1)
        return self._score(state, source, target)

    def _score(self, state: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """One logit per edge. W [a, b] = W_a a + W_b b is computed once per node, and gathered per edge."""
        width = state.shape[1]
        weight = self.edge_hidden.weight
        inner = nn.functional.linear(state, weight[:, :width], self.edge_hidden.bias)
        outer = nn.functional.linear(state, weight[:, width:])
        logits: Tensor = self.edge_score(torch.tanh(inner[source] + outer[target]))
        return logits.squeeze(1)


def edge_loss(logits: Tensor, batch: Batch, positive: float, negative: float) -> Loss:
    """Binary cross-entropy over edges.

    Args:
        logits: One logit per edge.
        batch: Batch with the column `label`. Event weights are applied.
        positive: Weight of true edges.
        negative: Weight of false edges.
    """
    edges = batch.ragged("label")
    label = edges.values.to(logits.dtype)
    weight = torch.where(label > 0, positive, negative)
    if batch.weights is not None:
        weight = weight * batch.weights[edges.events]
    total = nn.functional.binary_cross_entropy_with_logits(logits, label, weight, reduction="sum")
    return Loss(total, float(len(label)))
