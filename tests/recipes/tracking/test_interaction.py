"""The interaction network treats graphs separately in any batch, and has one set of weights."""

from __future__ import annotations

import numpy as np
import torch

from clew import Ragged, Table
from clew.data.dataset.batch import to_batch
from clew.recipes.tracking.interaction import InteractionNet
from clew.recipes.tracking.network import edge_loss


def graphs(hits: list[int], edges: list[int]) -> Table:
    rng = np.random.default_rng(7)
    joined = np.concatenate([rng.integers(0, max(n, 1), (e, 2)) for n, e in zip(hits, edges, strict=True)])
    node = Ragged.from_lengths(rng.normal(size=(sum(hits), 3)).astype(np.float32), hits)
    link = Ragged.from_lengths(joined.astype(np.int32), edges)
    edge_features = link.share(rng.normal(size=(sum(edges), 4)).astype(np.float32))
    label = link.share(rng.integers(0, 2, sum(edges)).astype(np.uint8))
    return Table({"node": node, "link": link, "edge": edge_features, "label": label}, index_of={"link": "node"})


def net(iterations: int = 8) -> InteractionNet:
    torch.manual_seed(0)
    return InteractionNet(hidden=16, iterations=iterations)


def test_iterations_share_their_weights() -> None:
    one, eight = (sum(p.numel() for p in net(count).parameters()) for count in (1, 8))
    assert one == eight


def test_a_graph_is_scored_the_same_in_any_company() -> None:
    table, model = graphs([12, 0, 7, 20], [30, 0, 9, 55]), net()
    with torch.no_grad():
        together = model(to_batch(table))
        alone = torch.cat([model(to_batch(table.slice(event, event + 1))) for event in range(4)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_the_order_of_edges_does_not_matter() -> None:
    table, model = graphs([9], [20]), net()
    order = np.random.default_rng(1).permutation(20)
    link = Ragged.from_lengths(table.ragged("link").values[order], [20])
    mixed = table.join({"link": link, "edge": link.share(table.ragged("edge").values[order])})
    with torch.no_grad():
        torch.testing.assert_close(
            model(to_batch(mixed.drop("label"))), model(to_batch(table))[order], rtol=0, atol=1e-5
        )


def test_news_travels_as_many_edges_as_there_are_iterations() -> None:
    path = np.stack([np.arange(5), np.arange(1, 6)], axis=1).astype(np.int32)
    table = graphs([6], [5])
    link = Ragged.from_lengths(path, [5])
    table = table.join({"link": link, "edge": link.share(table.ragged("edge").values)}).drop("label")
    moved = table.ragged("node").values.copy()
    moved[0] += 9
    other = table.join({"node": Ragged.from_lengths(moved, [6])})
    with torch.no_grad():
        changed = [(net(count)(to_batch(table)) - net(count)(to_batch(other))).abs() > 1e-7 for count in (2, 8)]
    assert changed[0].tolist() == [True, True, True, False, False]
    assert changed[1].all()


def test_a_batch_without_edges_can_be_learned_from() -> None:
    model, batch = net(), to_batch(graphs([3, 0], [0, 0]))
    loss = edge_loss(model(batch), batch, 1.0, 1.0)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert float(loss.total.detach()) == loss.weight == 0
