"""The whole network of a `GraphFlow` by these kernels: half precision, all events of a batch in bins."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.binning import owners
from clew.recipes.particleflow.decoding import HEAD_OF, Decoder, corrected, encoded
from clew.recipes.particleflow.kernels.dense import dense
from clew.recipes.particleflow.kernels.layer import flow_layer
from clew.recipes.particleflow.kernels.products import product
from clew.recipes.particleflow.kernels.sorting import KEYS
from clew.recipes.particleflow.network import STACKS, GraphFlow, GraphLayer

ALIGNED = 8
"""Columns of matrices are padded with zeros to a multiple of this, which tensor cores want."""


def forward(
    network: GraphFlow,
    elements: Tensor,
    offsets: Tensor,
    dtype: torch.dtype,
    bins: int | None = None,
    kept: list[Tensor] | None = None,
) -> dict[str, Tensor]:
    """As `GraphFlow.forward`; `kept` as in `in_bins`."""
    size = network.bin_size
    if bins is None:
        bins = int(bins_of(offsets, size).sum())  # waits for the device
    slot, fill, first = places(offsets, len(elements), bins, size)
    rows = elements.new_zeros(bins * size + 1, elements.shape[-1]).index_copy_(0, slot, elements)
    made = in_bins(network, rows[:-1], fill, first, dtype, kept)
    within = slot.clamp(max=bins * size - 1)
    return {name: value.index_select(0, within) for name, value in made.items()}


def bins_of(offsets: Tensor, size: int) -> Tensor:
    """Bins of every event."""
    return (offsets.diff() + size - 1) // size


def places(offsets: Tensor, elements: int, bins: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row of every element, elements in every bin, and the first bin of every event: nothing leaves the device.

    There may be more elements and bins than events have: such elements are given the row behind all others, such bins
    are those of an event without elements, the last.
    """
    lengths, first = offsets.diff(), f.pad(bins_of(offsets, size).cumsum(0), (1, 0))
    number, place = (torch.arange(many, device=offsets.device) for many in (elements, bins))
    event = owners(offsets, elements)
    shift = f.pad(first[:-1] * size - offsets[:-1], (0, 1))
    slot = torch.where(event < len(lengths), number + shift[event], bins * size)
    owner = owners(first, bins)
    fill = (f.pad(lengths, (0, 1))[owner] - (place - first[owner]) * size).clamp(0, size)
    return slot, fill.to(torch.int32), torch.cat([first, first.new_full((1,), bins)]).to(torch.int32)


def in_bins(
    network: GraphFlow,
    rows: Tensor,
    fill: Tensor,
    first: Tensor,
    dtype: torch.dtype,
    kept: list[Tensor] | None = None,
) -> dict[str, Tensor]:
    """Outputs by row, of rows (bins * size, 12) of which some are empty (zeros). Sizes are those of tensors alone.

    Into `kept` goes the `index` of every layer (see `sorting`).
    """
    inputs = encoded(rows)
    state = _aligned(inputs, 16).to(dtype).expand(STACKS, -1, -1)
    states = []
    for layer in network.layers:
        assert isinstance(layer, GraphLayer)
        project = f.pad(layer.project, (0, 0, 0, state.shape[-1] - layer.project.shape[1]))
        half = layer.codebook.shape[-1]
        book = f.pad(layer.codebook, (0, KEYS - half))
        parts = (layer.inner_bias, layer.outer, layer.gate_bias)
        made = flow_layer(state, project, *parts, book, fill, first, half)
        if kept is not None:
            kept.append(made[5])
        state = made[0]
        states.append(state)
    return _decoded(network.decoder, inputs, states, dtype)


def _decoded(decoder: Decoder, inputs: Tensor, states: list[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    near = inputs.to(dtype)
    seen = _normed(torch.cat([near, *(each[0] for each in states)], dim=-1), decoder.identity_norm, dtype)
    first, second = _linear(seen, decoder.identity).chunk(2, dim=-1)
    for layer in list(decoder.classes)[:-1]:
        first = _linear(first, layer)
    logits = _linear(first, decoder.classes[-1], active=False)
    charge = _linear(_linear(second, decoder.charge[0]), decoder.charge[1], active=False)
    seen = torch.cat([near, *(each[1] for each in states), logits.detach().to(dtype)], dim=-1)
    heads = _linear(_normed(seen, decoder.momentum_norm, dtype), decoder.momentum)
    state = heads.view(len(heads), len(decoder.hidden), -1).transpose(0, 1)
    for depth in range(2):
        own = [each[depth] for each in decoder.hidden]  # type: ignore[index]
        weight, bias = torch.stack([each.weight.t() for each in own]), torch.stack([each.bias for each in own])
        state = dense(state, weight, bias)
    made = corrected(_components(decoder, state), inputs)
    return {"class": logits, "charge": charge.squeeze(-1), "momentum": made}


def _components(decoder: Decoder, state: Tensor) -> Tensor:
    """(rows, 5) of the states (heads, rows, f): each head's product with all its components at once."""
    layers = [each for each in decoder.component if isinstance(each, nn.Linear)]
    weights = [each.weight for each in layers]
    order = [[place for place, head in enumerate(HEAD_OF) if head == own] for own in range(len(state))]
    blocks = [f.pad(torch.cat([weights[k] for k in own]), (0, 0, 0, ALIGNED - len(own))).t() for own in order]
    made = product(state, torch.stack(blocks)).float()
    found = [made[head, :, order[head].index(place)] for place, head in enumerate(HEAD_OF)]
    return torch.stack(found, dim=-1) + torch.cat([each.bias for each in layers])


def _normed(state: Tensor, norm: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    found = f.layer_norm(state.to(norm.weight.dtype), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return _aligned(found, ALIGNED).to(dtype)


def _linear(state: Tensor, layer: nn.Module, *, active: bool = True) -> Tensor:
    assert isinstance(layer, nn.Linear)
    weight = _aligned(_aligned(layer.weight, ALIGNED).t(), ALIGNED).unsqueeze(0)
    if active:
        bias = _aligned(layer.bias, ALIGNED).unsqueeze(0)
        shaped: Tensor = dense(state.unsqueeze(0), weight, bias)
        return shaped.squeeze(0)[:, : layer.out_features]
    made = product(state.unsqueeze(0), weight).squeeze(0)[:, : layer.out_features]
    return made.to(layer.bias.dtype) + layer.bias


def _aligned(values: Tensor, to: int) -> Tensor:
    return f.pad(values, (0, -values.shape[-1] % to))
