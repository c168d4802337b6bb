"""Run by `test_kernels.py` with Triton's interpreter: the kernels against the packed network in double precision."""

from __future__ import annotations

import torch

from clew.recipes.particleflow.binning import Layout
from clew.recipes.particleflow.kernels import sorting, whole
from clew.recipes.particleflow.loss import element_losses
from clew.recipes.particleflow.network import GraphFlow
from clew.recipes.particleflow.settings import Losses, Network
from tests.recipes.particleflow import flow_events, tensors

SETTINGS = Network(width=32, distance=16, bin_size=64, codes=6, layers=2, identity_width=24, momentum_width=24)
LENGTHS = (101, 3, 64)
"""Of events: two bins, a few elements, one whole bin."""


def sort_is_stable() -> None:
    torch.manual_seed(1)
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
    layout = Layout.of(offsets, 64)
    fill, first, most = whole.bins(layout, offsets)
    x, book = torch.randn(2, layout.mask.numel(), 16), torch.randn(2, 16, 16)
    index, square = sorting.hashed(x, book, fill, first, 64, 3, most)
    along = (x @ book)[..., :3]
    code = torch.cat([along, -along], dim=-1).argmax(-1)
    code = torch.where(layout.mask.flatten(), code, 6)
    event = torch.repeat_interleave(first.diff().long() * 64)
    expected = torch.sort(event * 7 + code, dim=-1, stable=True).indices + torch.tensor([[0], [len(event)]])
    assert torch.equal(index.view(2, -1).long(), expected)
    torch.testing.assert_close(square.view(2, -1), (x**2).sum(-1))


def outputs_and_gradients() -> None:
    torch.manual_seed(2)
    network = GraphFlow(SETTINGS)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    elements, targets, _ = tensors(flow_events(6, mean=40), torch.float32)
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
    elements, targets = elements[: offsets[-1]], targets[: offsets[-1]]
    kept: list[torch.Tensor] = []
    found = whole.forward(network, elements, offsets, torch.float32, kept)
    element_losses(found, targets, Losses()).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.double() for name, p in network.named_parameters() if p.grad is not None}
    wide = GraphFlow(SETTINGS).double()
    wide.load_state_dict({name: value.double() for name, value in network.state_dict().items()})
    layout = Layout.of(offsets, 64)
    row = torch.full((layout.mask.numel(),), -1).index_copy_(0, layout.slot, torch.arange(len(layout.slot)))
    orders = []
    for index in kept:  # places in bins back to elements, empty ones left out
        places = index.view(2, -1).long() - torch.tensor([[0], [layout.mask.numel()]])
        orders.append(torch.stack([row[own][row[own] >= 0] for own in places]))
    expected, _ = wide.traced(elements.double(), offsets, orders)
    element_losses(expected, targets.double(), Losses()).sum().backward()  # type: ignore[no-untyped-call]
    for name, value in expected.items():
        _near(name, found[name], value, 2e-5)
    for name, parameter in wide.named_parameters():
        assert parameter.grad is not None
        _near(name, gradients[name], parameter.grad, 2e-4)


def _near(name: str, found: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    error = ((found.double() - expected).norm() / expected.norm().clamp(min=1e-12)).item()
    assert error < limit, f"{name}: {error:.1e}"


if __name__ == "__main__":
    sort_is_stable()
    outputs_and_gradients()
    print("ok")
