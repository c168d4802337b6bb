"""Run by `test_kernels.py` with Triton's interpreter: the kernels against the packed network in double precision."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.debugging import aot_eager

from clew.data.dataset.batch import Batch, RaggedTensor
from clew.recipes.particleflow import ParticleFlow, ParticleFlowConfig
from clew.recipes.particleflow.binning import BinLayout
from clew.recipes.particleflow.graph_network import GraphFlow
from clew.recipes.particleflow.kernels import graph_forward, sorting
from clew.recipes.particleflow.loss import element_losses
from clew.recipes.particleflow.settings import ParticleFlowLossConfig, ParticleFlowNetworkConfig
from tests.recipes.particleflow import flow_events, tensors

SETTINGS = ParticleFlowNetworkConfig(
    width=32, distance=16, bin_size=64, codes=6, layers=2, identity_width=24, momentum_width=24
)
LENGTHS = (101, 3, 64)
"""Elements per event: two bins, a few elements, one whole bin."""


def sort_is_stable() -> None:
    torch.manual_seed(1)
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
    layout, spare = BinLayout.of(offsets, 64), 2
    _, fill, first = graph_forward.bin_rows(offsets, int(offsets[-1]), layout.bins + spare, 64)
    occupied = torch.cat([layout.mask.flatten(), torch.zeros(64 * spare, dtype=torch.bool)])
    x, book = torch.randn(2, len(occupied), 16), torch.randn(2, 16, 16)
    index, square = sorting.sort_by_hash(x, book, fill, first, 64, 3)
    along = (x @ book)[..., :3]
    code = torch.cat([along, -along], dim=-1).argmax(-1)
    code = torch.where(occupied, code, 6)
    event = torch.repeat_interleave(first.diff().long() * 64)
    expected = torch.sort(event * 7 + code, dim=-1, stable=True).indices + torch.tensor([[0], [len(event)]])
    assert torch.equal(index.view(2, -1).long(), expected)
    torch.testing.assert_close(square.view(2, -1), (x**2).sum(-1))


def long_events_too() -> None:
    """More blocks than are counted together."""
    torch.manual_seed(3)
    x, book = torch.randn(1, 64 * (2 * sorting.BLOCKS_PER_EVENT + 3), 16), torch.randn(1, 16, 16)
    bins = x.shape[1] // 64
    _, fill, first = graph_forward.bin_rows(torch.tensor([0, x.shape[1] - 7]), x.shape[1] - 7, bins, 64)
    index, _ = sorting.sort_by_hash(x, book, fill, first, 64, 3)
    along = (x @ book)[..., :3]
    code = torch.cat([along, -along], dim=-1).argmax(-1)
    code[0, -7:] = 6
    assert torch.equal(index.long(), torch.sort(code[0], stable=True).indices)


def room_changes_nothing() -> None:
    """With more capacity than elements: the same losses and gradients."""
    torch.manual_seed(4)
    recipe = ParticleFlow(ParticleFlowConfig(model=SETTINGS))
    network = GraphFlow(SETTINGS)
    elements, targets, _ = tensors(flow_events(6, mean=40), torch.float32)
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
    plain = Batch(
        len(LENGTHS),
        {n: RaggedTensor(v[: offsets[-1]], offsets) for n, v in zip(recipe.columns, (elements, targets), strict=True)},
    )
    plain.weights = torch.tensor([1.0, 0.5, 2.0])
    plain.capacity = recipe.graph_capacity(plain, "bf16")
    assert plain.capacity == {"elements": 4 * 64, "targets": 4 * 64}
    plain.capacity = {"elements": 7 * 64, "targets": 7 * 64}
    roomy = plain.empty_with_capacity()
    roomy.fill(plain)
    results = []
    for batch in (plain, roomy):
        bins = len(batch[recipe.columns[0]]) // 64 if batch.has_capacity else None
        outputs = graph_forward.forward(network, batch[recipe.columns[0]], offsets, torch.float32, bins)
        total, weight = recipe.loss(outputs, batch)
        assert float(weight) == sum(LENGTHS)
        results.append((total, *torch.autograd.grad(total, list(network.parameters()))))
    for one, other in zip(*results, strict=True):
        _near("with room", one, other.double(), 1e-5)


def outputs_and_gradients() -> None:
    torch.manual_seed(2)
    network = GraphFlow(SETTINGS)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    elements, targets, _ = tensors(flow_events(6, mean=40), torch.float32)
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
    elements, targets = elements[: offsets[-1]], targets[: offsets[-1]]
    indices: list[torch.Tensor] = []
    outputs = graph_forward.forward(
        network, elements, offsets, torch.float32, None, partial(graph_forward.forward_in_bins, indices=indices)
    )
    element_losses(outputs, targets, ParticleFlowLossConfig()).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.double() for name, p in network.named_parameters() if p.grad is not None}
    wide = GraphFlow(SETTINGS).double()
    wide.load_state_dict({name: value.double() for name, value in network.state_dict().items()})
    layout = BinLayout.of(offsets, 64)
    row = torch.full((layout.mask.numel(),), -1).index_copy_(0, layout.slot, torch.arange(len(layout.slot)))
    orders = []
    for index in indices:  # places in bins back to elements, empty ones left out
        places = index.view(2, -1).long() - torch.tensor([[0], [layout.mask.numel()]])
        orders.append(torch.stack([row[stack_places][row[stack_places] >= 0] for stack_places in places]))
    expected, _ = wide.traced(elements.double(), offsets, orders)
    element_losses(expected, targets.double(), ParticleFlowLossConfig()).sum().backward()  # type: ignore[no-untyped-call]
    for name, value in expected.items():
        _near(name, outputs[name], value, 2e-5)
    for name, parameter in wide.named_parameters():
        assert parameter.grad is not None
        _near(name, gradients[name], parameter.grad, 2e-4)


def one_program_serves_any_number_of_bins() -> None:
    """`train.compile`: outputs and gradients as without, and nothing is compiled for another number of bins."""
    torch.manual_seed(5)
    network, programs = GraphFlow(SETTINGS), list[object]()

    def backend(program: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        programs.append(program)
        return aot_eager(program, inputs)

    compiled = graph_forward.CompiledBins(backend=backend)
    elements, _, _ = tensors(flow_events(6, mean=40), torch.float32)
    for lengths, bins in ((LENGTHS, 4), (LENGTHS[:2], 6)):
        offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
        results = []
        for in_bins in (None, compiled):
            outputs = graph_forward.forward(network, elements, offsets, torch.float32, bins, in_bins)
            total = torch.stack([(value[: offsets[-1]].float() ** 2).mean() for value in outputs.values()]).sum()
            results.append((total, *torch.autograd.grad(total, list(network.parameters()))))
        for one, other in zip(*results, strict=True):
            _near("compiled", one, other.double(), 1e-5)
    assert len(programs) == 1


def _near(name: str, value: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    error = ((value.double() - expected).norm() / expected.norm().clamp(min=1e-12)).item()
    assert error < limit, f"{name}: {error:.1e}"


if __name__ == "__main__":
    if sys.argv[1:] == ["compiled"]:
        one_program_serves_any_number_of_bins()
    else:
        sort_is_stable()
        long_events_too()
        room_changes_nothing()
        outputs_and_gradients()
    print("ok")
