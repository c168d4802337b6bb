"""An interaction network on concatenated hit graphs: gather and scatter, one set of weights for all iterations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clew import Batch


class _Pairwise(nn.Module):
    """A hidden layer over [node a, node b, edge], computed once a node and once an edge, then gathered and added."""

    def __init__(self, hidden: int, extra: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, hidden, bias=False)
        self.own = nn.Linear(extra, hidden, bias=False)

    def forward(self, node: Tensor, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return torch.relu(self.inner(node)[source] + self.outer(node)[target] + self.own(edge))


class InteractionNet(nn.Module):
    """Scores edges between hits. Takes `node` (hits, 3), `edge` (edges, 4), `link` (edges, 2); one logit an edge.

    Each iteration updates every edge from itself and its two hits, then every hit from itself and the sums of its
    edges inwards and outwards; both are added to what was there, and normalised so that eight rounds do not grow.
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
            nothing = torch.zeros_like(node)
            arriving, leaving = nothing.index_add(0, target, edge), nothing.index_add(0, source, edge)
            node = self.node_norm(node + self.node(torch.cat([node, arriving, leaving], dim=1)))
        logits: Tensor = self.score(self.read(node, edge, source, target))
        return logits.squeeze(1)
