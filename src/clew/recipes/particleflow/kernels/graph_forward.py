"""The forward pass of a `GraphFlow` with these kernels: in half precision, all events of a batch in bins."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.binning import event_of_items
from clew.recipes.particleflow.decoding import HEAD_OF, Decoder, add_input_momentum, encode
from clew.recipes.particleflow.graph_network import STACKS, GraphFlow, GraphLayer
from clew.recipes.particleflow.kernels.dense import dense
from clew.recipes.particleflow.kernels.layer import flow_layer
from clew.recipes.particleflow.kernels.products import product
from clew.recipes.particleflow.kernels.sorting import KEYS

ALIGNMENT = 8
"""Columns of matrices are padded with zeros to a multiple of this number, for the tensor cores."""


class ForwardInBins(Protocol):
    """What computes outputs per row; see `forward_in_bins`."""

    def __call__(
        self, network: GraphFlow, rows: Tensor, fill: Tensor, first: Tensor, dtype: torch.dtype, /
    ) -> dict[str, Tensor]:
        """Return the outputs per row."""


def forward(
    network: GraphFlow,
    elements: Tensor,
    offsets: Tensor,
    dtype: torch.dtype,
    bins: int | None = None,
    in_bins: ForwardInBins | None = None,
) -> dict[str, Tensor]:
    """Compute the outputs of `GraphFlow.forward` with the kernels.

    Args:
        network: See `GraphFlow.forward`, as for the other arguments.
        elements: See there.
        offsets: See there.
        dtype: Precision of the computation.
        bins: See there.
        in_bins: `CompiledBins`. Default: `forward_in_bins`.
    """
    size = network.bin_size
    if bins is None:
        bins = int(bins_per_event(offsets, size).sum())  # waits for the device
    slot, fill, first = bin_rows(offsets, len(elements), bins, size)
    rows = elements.new_zeros(bins * size + 1, elements.shape[-1]).index_copy_(0, slot, elements)
    outputs = (in_bins or forward_in_bins)(network, rows[:-1], fill, first, dtype)
    within = slot.clamp(max=bins * size - 1)
    return {name: value.index_select(0, within) for name, value in outputs.items()}


def bins_per_event(offsets: Tensor, size: int) -> Tensor:
    """Return the number of bins of every event."""
    return (offsets.diff() + size - 1) // size


def bin_rows(offsets: Tensor, elements: int, bins: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row of every element, the elements in every bin, and the first bin of every event.

    Nothing is copied from the device. There may be more elements and bins than the events have. Extra elements get the
    row after all others. Extra bins belong to an additional last event without elements.
    """
    lengths, first = offsets.diff(), f.pad(bins_per_event(offsets, size).cumsum(0), (1, 0))
    number, place = (torch.arange(count, device=offsets.device) for count in (elements, bins))
    event = event_of_items(offsets, elements)
    shift = f.pad(first[:-1] * size - offsets[:-1], (0, 1))
    slot = torch.where(event < len(lengths), number + shift[event], bins * size)
    owner = event_of_items(first, bins)
    fill = (f.pad(lengths, (0, 1))[owner] - (place - first[owner]) * size).clamp(0, size)
    return slot, fill.to(torch.int32), torch.cat([first, first.new_full((1,), bins)]).to(torch.int32)


def forward_in_bins(
    network: GraphFlow,
    rows: Tensor,
    fill: Tensor,
    first: Tensor,
    dtype: torch.dtype,
    indices: list[Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return the outputs per row. All sizes follow from the shapes of tensors.

    Args:
        network: The network, whose parameters are used.
        rows: (bins * size, 12), zeros where a row is empty.
        fill: Elements in each bin.
        first: The first bin of every event, and the number of bins.
        dtype: Precision of the computation.
        indices: A list to which the `index` of every layer is appended (see `sorting`).
    """
    inputs = encode(rows)
    state = _pad_columns(inputs, 16).to(dtype).expand(STACKS, -1, -1)
    states = []
    for layer in network.layers:
        assert isinstance(layer, GraphLayer)
        project = f.pad(layer.project, (0, 0, 0, state.shape[-1] - layer.project.shape[1]))
        half = layer.codebook.shape[-1]
        book = f.pad(layer.codebook, (0, KEYS - half))
        parts = (layer.inner_bias, layer.outer, layer.gate_bias)
        outputs = flow_layer(state, project, *parts, book, fill, first, half)
        if indices is not None:
            indices.append(outputs[5])
        state = outputs[0]
        states.append(state)
    return _decode(network.decoder, inputs, states, dtype)


class CompiledBins:
    """`forward_in_bins`, compiled by torch. One program serves any number of bins and events.

    Args:
        *arguments: Of `torch.compile`.
        **options: Of `torch.compile`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._program = torch.compile(_forward_whole_bins, *arguments, **options)

    def __call__(
        self, network: GraphFlow, rows: Tensor, fill: Tensor, first: Tensor, dtype: torch.dtype, /
    ) -> dict[str, Tensor]:
        """Return the outputs of `forward_in_bins`."""
        whole = rows.unflatten(0, (len(fill), -1))
        for each in (whole, fill, first):
            torch._dynamo.maybe_mark_dynamic(each, 0)
        return self._program(network, whole, fill, first, dtype)


def _forward_whole_bins(
    network: GraphFlow, bins: Tensor, fill: Tensor, first: Tensor, dtype: torch.dtype
) -> dict[str, Tensor]:
    """`forward_in_bins` for rows of shape (bins, size, 12): so the compiler knows that the size is a constant."""
    return forward_in_bins(network, bins.flatten(0, 1), fill, first, dtype)


def _decode(decoder: Decoder, inputs: Tensor, states: list[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    near = inputs.to(dtype)
    features = _layer_norm(torch.cat([near, *(each[0] for each in states)], dim=-1), decoder.identity_norm, dtype)
    class_state, charge_state = _linear(features, decoder.identity).chunk(2, dim=-1)
    for layer in list(decoder.classes)[:-1]:
        class_state = _linear(class_state, layer)
    logits = _linear(class_state, decoder.classes[-1], active=False)
    charge = _linear(_linear(charge_state, decoder.charge[0]), decoder.charge[1], active=False)
    features = torch.cat([near, *(each[1] for each in states), logits.detach().to(dtype)], dim=-1)
    heads = _linear(_layer_norm(features, decoder.momentum_norm, dtype), decoder.momentum)
    state = heads.unflatten(-1, (len(decoder.hidden), -1)).transpose(0, 1)
    for depth in range(2):
        layers = [each[depth] for each in decoder.hidden]  # type: ignore[index]
        weight, bias = torch.stack([each.weight.t() for each in layers]), torch.stack([each.bias for each in layers])
        state = dense(state, weight, bias)
    momentum = add_input_momentum(_components(decoder, state), inputs, pt=decoder.correct_pt)
    return {"class": logits, "charge": charge.squeeze(-1), "momentum": momentum}


def _components(decoder: Decoder, state: Tensor) -> Tensor:
    """Return the momentum components (rows, 5) from the states (heads, rows, f), with one product per head."""
    layers = [each for each in decoder.component if isinstance(each, nn.Linear)]
    weights = [each.weight for each in layers]
    order = [[place for place, head in enumerate(HEAD_OF) if head == columns] for columns in range(len(state))]
    blocks = [
        f.pad(torch.cat([weights[k] for k in columns]), (0, 0, 0, ALIGNMENT - len(columns))).t() for columns in order
    ]
    products = product(state, torch.stack(blocks)).float()
    components = [products[head, :, order[head].index(place)] for place, head in enumerate(HEAD_OF)]
    return torch.stack(components, dim=-1) + torch.cat([each.bias for each in layers])


def _layer_norm(state: Tensor, norm: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    normed = f.layer_norm(state.to(norm.weight.dtype), norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return _pad_columns(normed, ALIGNMENT).to(dtype)


def _linear(state: Tensor, layer: nn.Module, *, active: bool = True) -> Tensor:
    assert isinstance(layer, nn.Linear)
    weight = _pad_columns(_pad_columns(layer.weight, ALIGNMENT).t(), ALIGNMENT).unsqueeze(0)
    if active:
        bias = _pad_columns(layer.bias, ALIGNMENT).unsqueeze(0)
        shaped: Tensor = dense(state.unsqueeze(0), weight, bias)
        return shaped.squeeze(0)[:, : layer.out_features]
    result = product(state.unsqueeze(0), weight).squeeze(0)[:, : layer.out_features]
    return result.to(layer.bias.dtype) + layer.bias


def _pad_columns(values: Tensor, to: int) -> Tensor:
    return f.pad(values, (0, -values.shape[-1] % to))
