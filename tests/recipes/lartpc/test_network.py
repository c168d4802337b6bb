"""The network: the number of parameters of the study, and the results of plain torch with every implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from clew.data.dataset.batch import to_batch
from clew.recipes.lartpc.network import WireImageNet, dense_images

from .events import SIDE, Pixels, particles


def _pixels(count: int = 2) -> Pixels:
    batch = to_batch(particles(count))
    return batch["index"], batch["charge"].double(), batch.ragged("index").offsets


def _gradients(network: WireImageNet, logits: Tensor) -> tuple[Tensor, ...]:
    loss = f.cross_entropy(logits, torch.tensor([1, 3]))
    return torch.autograd.grad(loss, tuple(network.parameters()))


def test_it_has_the_parameters_of_the_study() -> None:
    assert sum(each.numel() for each in WireImageNet(3600, 3600).parameters()) == 1_245_705


@pytest.mark.slow
def test_it_computes_what_plain_torch_does() -> None:
    torch.manual_seed(0)
    network, pixels = WireImageNet(SIDE, SIDE).double(), _pixels()
    cells, plain = network(*pixels), network.dense(dense_images(*pixels, SIDE, SIDE))
    torch.testing.assert_close(cells, plain, rtol=1e-10, atol=1e-12)
    pairs = zip(_gradients(network, cells), _gradients(network, plain), strict=True)
    for compiled_value, plain_value in pairs:
        torch.testing.assert_close(compiled_value, plain_value, rtol=1e-8, atol=1e-12)


def test_autocast_leaves_the_blocks_alone() -> None:
    network, (index, charge, offsets) = WireImageNet(SIDE, SIDE), _pixels()
    plain = network(index, charge.float(), offsets)
    with torch.autocast("cpu", torch.bfloat16):
        cells = network(index, charge.float(), offsets)
    torch.testing.assert_close(cells.float(), plain, rtol=0.05, atol=0.02)


@pytest.mark.slow
def test_it_is_captured_whole() -> None:
    network, (index, charge, offsets) = WireImageNet(SIDE, SIDE), _pixels()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    compiled_value, plain = (each(index, charge.float(), offsets) for each in (compiled, network))
    torch.testing.assert_close(compiled_value, plain)
    for one, two in zip(_gradients(network, compiled_value), _gradients(network, plain), strict=True):
        torch.testing.assert_close(one, two)
