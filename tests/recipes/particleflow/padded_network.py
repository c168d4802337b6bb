"""The graph network in its usual form: events padded to a common length, and automatic differentiation.

It is the reference of the packed network in tests and in benchmarks. It uses the parameters of a `GraphFlow`, so both
are the same network.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.particleflow.convolution import DECAY, EPSILON
from clew.recipes.particleflow.decoding import HEAD_OF, add_input_momentum, encode
from clew.recipes.particleflow.graph_network import STACKS, GraphFlow, GraphLayer


def padded_forward(
    network: GraphFlow, elements: Tensor, orders: list[Tensor] | None = None
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the outputs, and the order (stacks, events, length) in which each layer filled its bins.

    Args:
        network: The network, whose parameters are used.
        elements: (events, length, 12), of type 0 where an event has no element. `length` is a multiple of the bin size.
        orders: The orders to use. Default: by hash code.
    """
    mask, inputs = elements[..., 0] != 0, encode(elements)
    stacks, used = [], []
    for stack in range(STACKS):
        state, states = inputs, [inputs]
        for place, layer in enumerate(network.layers):
            assert isinstance(layer, GraphLayer)
            order = None if orders is None else orders[place][stack]
            state, used_order = _layer(layer, stack, network.bin_size, state, mask, order)
            states.append(state)
            used.append(used_order)
        stacks.append(states)
    depth = len(network.layers)
    return _decode(network, stacks), [torch.stack([used[place], used[depth + place]]) for place in range(depth)]


def _layer(
    layer: GraphLayer, stack: int, size: int, state: Tensor, mask: Tensor, order: Tensor | None
) -> tuple[Tensor, Tensor]:
    events, length, _ = state.shape
    to_inner, to_message, to_gate, to_around = torch.split(layer.project[stack], layer.widths, dim=-1)
    distance = f.elu(state @ to_inner + layer.inner_bias[stack]) @ layer.outer[stack]
    if order is None:
        order = _order(distance, mask, layer.codebook[stack])

    def binned(values: Tensor) -> Tensor:
        rows = order.unsqueeze(-1).expand(-1, -1, values.shape[-1])
        return values.gather(1, rows).view(events, length // size, size, values.shape[-1])

    x, state, present = binned(distance), binned(state), binned(mask.unsqueeze(-1).to(state.dtype))
    square = (x * x).sum(dim=-1, keepdim=True)
    apart = torch.sqrt((square + square.mT - 2 * (x @ x.mT)).clamp(min=EPSILON))
    near = torch.exp(-DECAY * apart).clamp(0, 1) * present * present.mT
    norm = (near.sum(dim=-1, keepdim=True) + EPSILON) ** -0.5 * present
    arrived = norm * (near @ (norm * (state @ to_message)))
    gate = torch.sigmoid(state @ to_gate + layer.gate_bias[stack])
    mixed = f.elu(gate * arrived + (1 - gate) * (state @ to_around)) * present
    flat = mixed.view(events, length, -1)
    return torch.zeros_like(flat).scatter(1, order.unsqueeze(-1).expand_as(flat), flat), order


def _order(distance: Tensor, mask: Tensor, codebook: Tensor) -> Tensor:
    """Return the order by hash code, with padding last."""
    along = distance.detach().to(codebook.dtype) @ codebook
    code = torch.cat([along, -along], dim=-1).argmax(dim=-1)
    return torch.sort(torch.where(mask, code, 2 * codebook.shape[-1]), dim=-1, stable=True).indices


def _decode(network: GraphFlow, stacks: list[list[Tensor]]) -> dict[str, Tensor]:
    decoder, inputs = network.decoder, stacks[0][0]
    features = decoder.identity_norm(torch.cat(stacks[0], dim=-1))
    first, second = f.elu(decoder.identity(features)).chunk(2, dim=-1)
    for layer in list(decoder.classes)[:-1]:
        first = f.elu(layer(first))
    logits = decoder.classes[-1](first)
    charge = decoder.charge[1](f.elu(decoder.charge[0](second)))
    features = decoder.momentum_norm(torch.cat([*stacks[1], logits.detach()], dim=-1))
    heads = []
    for layers, state in zip(decoder.hidden, f.elu(decoder.momentum(features)).chunk(4, dim=-1), strict=True):
        for layer in layers:  # type: ignore[attr-defined]
            state = f.elu(layer(state))
        heads.append(state)
    momentum = torch.cat([layer(heads[head]) for layer, head in zip(decoder.component, HEAD_OF, strict=True)], dim=-1)
    return {"class": logits, "charge": charge.squeeze(-1), "momentum": add_input_momentum(momentum, inputs)}
