"""The packed networks against their references: the padded network, and attention event by event."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from clew.recipes.particleflow.binning import BinLayout, changed_bin_fraction, hash_codes, sort_by_code
from clew.recipes.particleflow.graph_network import GraphFlow
from clew.recipes.particleflow.loss import element_losses
from clew.recipes.particleflow.networks import NETWORKS
from clew.recipes.particleflow.settings import ParticleFlowLossConfig, ParticleFlowNetworkConfig
from tests.recipes.particleflow.padded_network import padded_forward

from . import SMALL, flow_events, tensors


def _padded(values: Tensor, offsets: Tensor, length: int) -> Tensor:
    return torch.stack(
        [torch.cat([values[a:b], values.new_zeros(length - (b - a), values.shape[1])]) for a, b in pairwise(offsets)]
    )


def _network() -> GraphFlow:
    torch.manual_seed(3)
    network = GraphFlow(SMALL).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases too
    return network


def test_the_published_network_has_the_published_size() -> None:
    network = GraphFlow(ParticleFlowNetworkConfig())
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in network.named_children()}
    assert counts == {"layers": 1_043_200, "decoder": 2_245_232}
    assert sum(counts.values()) == 3_288_432


@pytest.mark.slow
def test_a_packed_event_gives_what_a_padded_one_does() -> None:
    network = _network()
    elements, targets, offsets = tensors(flow_events(4, mean=100))
    length = 160
    wide = _padded(elements, offsets, length)
    expected, wide_orders = padded_forward(network, wide)
    outputs, orders = network.traced(elements, offsets)
    real = wide[..., 0] != 0
    for name, value in outputs.items():
        torch.testing.assert_close(value, expected[name][real], rtol=1e-9, atol=1e-9)
    for packed_order, padded_order in zip(orders, wide_orders, strict=True):
        for event, (a, b) in enumerate(pairwise(offsets.tolist())):
            assert torch.equal(packed_order[:, a:b] - a, padded_order[:, event, : b - a]), (
                "the same elements in the same bins"
            )
    element_losses(outputs, targets, ParticleFlowLossConfig()).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    losses = element_losses(expected, _padded(targets, offsets, length), ParticleFlowLossConfig())
    losses[real].sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-7, atol=1e-8, msg=name)


@pytest.mark.slow
def test_events_do_not_see_each_other() -> None:
    network = _network()
    elements, _, offsets = tensors(flow_events(3, mean=70))
    batched = network(elements, offsets)
    for a, b in pairwise(offsets.tolist()):
        alone = network(elements[a:b], torch.tensor([0, b - a]))
        for name, value in alone.items():
            torch.testing.assert_close(batched[name][a:b], value, rtol=1e-9, atol=1e-9)


def test_padding_does_not_leak() -> None:
    """The content of empty places, even NaN, affects no output and no gradient."""
    from clew.recipes.particleflow.convolution import convolve, gather_bins, scatter_bins

    layout = BinLayout.of(torch.tensor([0, 40]), 32)
    distance = torch.randn(2, 40, 4, dtype=torch.float64, requires_grad=True)
    random_order = torch.stack([torch.randperm(40), torch.randperm(40)])
    bins = gather_bins(distance, random_order, layout)
    torch.testing.assert_close(scatter_bins(bins, random_order, layout), distance)
    empty = ~layout.mask.repeat(2, 1)
    results = []
    for fill in (0.0, float("nan")):
        spoilt = bins.masked_fill(empty.unsqueeze(-1), fill)
        results.append(scatter_bins(convolve(spoilt, spoilt, layout), random_order, layout))
    assert torch.equal(*results)
    (gradient,) = torch.autograd.grad(results[1].sum(), distance)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("batched", [False, True])
def test_the_written_gradient_is_that_of_the_convolution(batched: bool) -> None:
    from clew.recipes.particleflow.convolution import convolve

    layout = BinLayout.of(torch.tensor([0, 7, 12]), 4)
    x = torch.randn(layout.bins, 4, 3, dtype=torch.float64, requires_grad=True)
    v = torch.randn(layout.bins, 4, 5, dtype=torch.float64, requires_grad=True)
    mask = layout.mask.unsqueeze(-1)
    assert torch.autograd.gradcheck(lambda x, v: convolve(x, v, layout, batched=batched) * mask, (x, v))


def test_bins_are_filled_in_a_stable_order() -> None:
    layout = BinLayout.of(torch.tensor([0, 5, 5, 8]), 4)
    assert layout.filled == (4, 1, 3) and layout.slot.tolist() == [0, 1, 2, 3, 4, 8, 9, 10]
    sorted_order = sort_by_code(torch.tensor([[1, 0, 1, 0, 1, 2, 0, 0]]), layout.event, 3)
    assert sorted_order.tolist() == [[1, 3, 0, 2, 4, 6, 7, 5]]
    assert layout.bin_of(sorted_order).tolist() == [[0, 0, 0, 0, 1, 2, 2, 2]]


def test_equal_projections_have_the_code_of_the_first() -> None:
    assert hash_codes(torch.zeros(1, 3, 2), torch.ones(1, 2, 4)).tolist() == [[0, 0, 0]]


def test_elements_that_change_their_bin_are_counted() -> None:
    layout = BinLayout.of(torch.tensor([0, 8]), 4)
    one, other = torch.arange(8)[None], torch.tensor([[4, 1, 2, 3, 0, 5, 6, 7]])
    assert changed_bin_fraction(one, one, layout) == 0
    assert changed_bin_fraction(one, other, layout) == pytest.approx(2 / 8)


@pytest.mark.slow
def test_the_same_batch_gives_the_same_bits() -> None:
    elements, targets, offsets = tensors(flow_events(3, mean=70), torch.float32)
    repetitions = []
    for _ in range(2):
        torch.manual_seed(5)
        network = GraphFlow(SMALL)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = element_losses(network(elements, offsets), targets, ParticleFlowLossConfig()).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        repetitions.append((losses, network.bins(elements, offsets)))
    assert repetitions[0][0] == repetitions[1][0] and torch.equal(repetitions[0][1], repetitions[1][1])


@pytest.mark.parametrize("kind", ["graph", "attention", "element"])
def test_half_precision_is_near(kind: str) -> None:
    torch.manual_seed(5)
    network = NETWORKS[kind](SMALL)
    elements, targets, offsets = tensors(flow_events(3, mean=70), torch.float32)
    expected = network(elements, offsets)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(elements, offsets)
    element_losses(outputs, targets, ParticleFlowLossConfig()).sum().backward()  # type: ignore[no-untyped-call]
    for name, value in expected.items():
        assert (outputs[name].float() - value).norm() < 0.05 * value.norm(), name
