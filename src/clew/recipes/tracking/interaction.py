"""An interaction network on the concatenated hit graphs of a batch. All iterations share one set of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clew import Batch


class _Pairwise(nn.Module):
    """A hidden layer over [node a, node b, edge]. Products are computed once per node and edge, then gathered and
    added."""

    def __init__(self, hidden: int, extra: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, hidden, bias=False)
        self.edge = nn.Linear(extra, hidden, bias=False)

    def forward(self, node: Tensor, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return torch.relu(self.inner(node)[source] + self.outer(node)[target] + self.edge(edge))


class InteractionNet(nn.Module):
    """Scores edges between hits. Input: `node` (hits, 3), `edge` (edges, 4), `link` (edges, 2). Output: one logit per
    edge.

    Each iteration updates every edge from itself and its two hits, then every hit from itself and the sums over its
    inner and outer edges. Updates are residual, and normalised so that values do not grow with the iterations.
    """

    def __init__(self, features: int = 3, edge_features: int = 4, hidden: int = 32, iterations: int = 8) -> None:
        super().__init__()
        self.iterations = iterations
        self.embed_node = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.embed_edge = nn.Sequential(nn.Linear(edge_features, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.pair = _Pairwise(hidden, hidden)
        self.edge = nn.Linear(hidden, hidden)
        self.node = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.edge_norm, self.node_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.read = _Pairwise(hidden, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, batch: Batch) -> Tensor:
        source, target = batch["link"].unbind(dim=1)
        node, edge = self.embed_node(batch["node"]), self.embed_edge(batch["edge"])
        for _ in range(self.iterations):
            edge = self.edge_norm(edge + self.edge(self.pair(node, edge, source, target)))
            zeros = torch.zeros_like(node)
            arriving, leaving = zeros.index_add(0, target, edge), zeros.index_add(0, source, edge)
            node = self.node_norm(node + self.node(torch.cat([node, arriving, leaving], dim=1)))
        logits: Tensor = self.score(self.read(node, edge, source, target))
        return logits.squeeze(1)
