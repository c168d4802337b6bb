"""The network treats graphs separately in any batch; its loss follows the published formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from clew import Batch, Ragged, Table
from clew.data.dataset.batch import to_batch
from clew.recipes.tracking.network import GraphNet, edge_loss


def graphs(nodes: list[int], edges: list[int], dtype: type = np.float32) -> Table:
    """Random graphs of these sizes; edges join any two nodes of a graph."""
    rng = np.random.default_rng(7)
    joined = np.concatenate([rng.integers(0, max(n, 1), (e, 2)) for n, e in zip(nodes, edges, strict=True)])
    node = Ragged.from_lengths(rng.normal(size=(sum(nodes), 5)).astype(dtype), nodes)
    edge = Ragged.from_lengths(joined.astype(np.int32), edges)
    label = edge.share(rng.integers(0, 2, sum(edges)).astype(np.uint8))
    return Table({"node": node, "edge": edge, "label": label}, index_of={"edge": "node"})


def net(hidden: int = 6, iterations: int = 1) -> GraphNet:
    torch.manual_seed(0)
    return GraphNet(hidden=hidden, iterations=iterations)


def by_loops(net: GraphNet, batch: Batch) -> Tensor:
    """The published network, one edge at a time, with plain concatenation."""
    features, edges = batch["node"], batch["edge"].tolist()
    state = torch.cat([net.embed(features), features], dim=1)

    def score(a: int, b: int) -> Tensor:
        logit: Tensor = net.edge_score(torch.tanh(net.edge_hidden(torch.cat([state[a], state[b]]))))
        return logit

    for _ in range(net.iterations):
        arriving, leaving = torch.zeros_like(state), torch.zeros_like(state)
        for a, b in edges:
            arriving[b] += torch.sigmoid(score(a, b)) * state[a]
            leaving[a] += torch.sigmoid(score(a, b)) * state[b]
        state = torch.cat([net.node(torch.cat([arriving, leaving, state], dim=1)), features], dim=1)
    return torch.cat([score(a, b) for a, b in edges])


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_published_network_has_its_number_of_parameters(iterations: int) -> None:
    assert sum(parameter.numel() for parameter in GraphNet(iterations=iterations).parameters()) == 102_785


@pytest.mark.parametrize("iterations", [1, 2])
def test_the_factorised_network_is_the_plain_one(iterations: int) -> None:
    model = net(iterations=iterations).double()
    batch = to_batch(graphs([4, 6], [5, 9], np.float64))
    with torch.no_grad():
        torch.testing.assert_close(model(batch), by_loops(model, batch), rtol=0, atol=1e-12)


def test_a_graph_is_scored_the_same_in_any_company() -> None:
    table = graphs([12, 7, 20], [30, 9, 55])
    model = net(hidden=128)
    with torch.no_grad():
        together = model(to_batch(table))
        alone = torch.cat([model(to_batch(table.slice(event, event + 1))) for event in range(3)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_empty_graphs_give_no_scores_and_disturb_none() -> None:
    table = graphs([0, 5, 3, 0], [0, 8, 0, 0])
    with torch.no_grad():
        together, alone = net()(to_batch(table)), net()(to_batch(table.slice(1, 2)))
        nothing = net()(to_batch(table.slice(2)))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert nothing.shape == (0,)


def test_a_batch_without_edges_can_be_learned_from() -> None:
    model, batch = net(), to_batch(graphs([3, 0], [0, 0]))
    loss = edge_loss(model(batch), batch, 2.3, 0.555)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert loss.weight == 0
    assert float(loss.total.detach()) == 0


@pytest.mark.parametrize("weights", [None, [2.0, 1.0, -0.5]])
def test_the_loss_is_the_weighted_cross_entropy(weights: list[float] | None) -> None:
    table = graphs([3, 4, 2], [4, 5, 3])
    batch = to_batch(table if weights is None else table.join({"weight": weights}))
    logits = torch.linspace(-3, 3, 12)
    expected = 0.0
    for logit, label, event in zip(logits.tolist(), batch["label"].tolist(), [0] * 4 + [1] * 5 + [2] * 3, strict=True):
        chance = 1 / (1 + math.exp(-logit))
        term = -2.3 * math.log(chance) if label else -0.555 * math.log(1 - chance)
        expected += term * (weights[event] if weights else 1.0)
    loss = edge_loss(logits, batch, 2.3, 0.555)
    assert float(loss.total) == pytest.approx(expected, rel=1e-5)
    assert loss.weight == 12


def test_gradients_are_those_of_finite_differences() -> None:
    model = net(hidden=3, iterations=2).double()
    batch = to_batch(graphs([3, 4], [4, 6], np.float64).join({"weight": [1.0, -2.0]}))
    edge_loss(model(batch), batch, 2.3, 0.555).total.backward()  # type: ignore[no-untyped-call]
    torch.manual_seed(1)
    for parameter in model.parameters():
        direction = torch.randn_like(parameter)
        values = []
        for step in (1e-5, -2e-5):
            parameter.data += step * direction
            values.append(float(edge_loss(model(batch), batch, 2.3, 0.555).total.detach()))
        parameter.data += 1e-5 * direction
        assert parameter.grad is not None
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float((parameter.grad * direction).sum()), abs=1e-6)
