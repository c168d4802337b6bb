"""The published graph network on packed events: two stacks of hashed graph layers, and a decoder of all layers.

It has 3,288,432 parameters: graph layers 1,043,200 (in each stack 29,312 for the first layer and 246,144 for each of
the others), class head 399,366, charge head 266,497, momentum heads 1,576,229, norms 3,140.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.binning import BinLayout, hash_codes, sort_by_code
from clew.recipes.particleflow.convolution import convolve, gather_bins, scatter_bins
from clew.recipes.particleflow.decoding import ENCODED_WIDTH, Decoder, encode
from clew.recipes.particleflow.settings import ParticleFlowNetworkConfig

STACKS = 2
"""One stack for the class and charge, one for the momentum: equal layers with separate weights."""


class GraphLayer(nn.Module):
    """One layer of both stacks: distances, bins, a gated convolution.

    One matrix product makes the inner distance features, the messages, the gate and the shortcut. The outer distance
    features have no bias, because a common shift does not change any distance. The gradient of such a bias would be
    rounding noise, which Adam would amplify and which would then move elements between bins.
    """

    def __init__(self, inputs: int, settings: ParticleFlowNetworkConfig) -> None:
        super().__init__()
        self.widths = [settings.distance, settings.width, settings.width, settings.width]
        self.project = nn.Parameter(torch.empty(STACKS, inputs, sum(self.widths)))
        self.inner_bias = nn.Parameter(torch.zeros(STACKS, 1, settings.distance))
        self.outer = nn.Parameter(torch.empty(STACKS, settings.distance, settings.distance))
        self.gate_bias = nn.Parameter(torch.zeros(STACKS, 1, settings.width))
        self.codebook: Tensor
        self.register_buffer("codebook", torch.randn(STACKS, settings.distance, settings.codes // 2))
        for weight in (self.project, self.outer):
            bound = (3 / weight.shape[1]) ** 0.5
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, state: Tensor, layout: BinLayout, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Apply the layer.

        Args:
            state: (stacks, elements, inputs).
            layout: The bins of the batch.
            order: (stacks, elements), the order in which bins are filled. Default: by hash code.

        Returns:
            The new state (stacks, elements, width), and the order (stacks, elements).
        """
        inner, messages, gate, shortcut = torch.split(torch.bmm(state, self.project), self.widths, dim=-1)
        distance = torch.bmm(f.elu(inner + self.inner_bias, inplace=True), self.outer)
        if order is None:
            order = sort_by_code(hash_codes(distance, self.codebook), layout.event, 2 * self.codebook.shape[-1])
        convolved = convolve(gather_bins(distance, order, layout), gather_bins(messages, order, layout), layout)
        arrived = scatter_bins(convolved, order, layout)
        mixing = torch.sigmoid(gate + self.gate_bias).to(shortcut.dtype)  # under autocast the bias is wider
        mixed = torch.lerp(shortcut, arrived, mixing)
        return f.elu(mixed, inplace=True), order


def kernels_support(settings: ParticleFlowNetworkConfig) -> bool:
    """Return whether the Triton kernels support this network."""
    powers_of_two = all(width & (width - 1) == 0 and width >= 16 for width in (settings.width, settings.distance))
    return (
        powers_of_two
        and settings.bin_size % 64 == 0
        and settings.codes < 16
        and bool(importlib.util.find_spec("triton"))
    )


class GraphFlow(nn.Module):
    """Graph network: elements of packed events in, class logits, charge and momentum of each element out."""

    def __init__(self, settings: ParticleFlowNetworkConfig, inputs: int = ENCODED_WIDTH) -> None:
        super().__init__()
        self.bin_size = settings.bin_size
        self._fits = kernels_support(settings)
        widths = [inputs, *[settings.width] * (settings.layers - 1)]
        self.layers = nn.ModuleList(GraphLayer(width, settings) for width in widths)
        self.decoder = Decoder(inputs + settings.layers * settings.width, settings)
        self._compiled_bins: Any = None

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile training steps (`train.compile`).

        With the kernels of a GPU only what works on whole bins is compiled, once for any number of them.
        """
        if self._fits and next(self.parameters()).is_cuda:
            from clew.recipes.particleflow.kernels.graph_forward import CompiledBins

            self._compiled_bins = CompiledBins(*arguments, **options)
        else:
            super().compile(*arguments, **options)

    def forward(self, elements: Tensor, offsets: Tensor, bins: int | None = None) -> dict[str, Tensor]:
        """Return `class` (elements, 6), `charge` (elements,) and `momentum` (elements, 5).

        Args:
            elements: (elements, 12).
            offsets: (events + 1,), where each event starts. The kernels ignore elements after the last offset.
            bins: Capacity in bins, for the kernels. Default: the number of bins of these events.
        """
        if elements.is_cuda and torch.is_autocast_enabled("cuda") and self._fits:
            from clew.recipes.particleflow.kernels import graph_forward

            dtype = torch.get_autocast_dtype("cuda")
            with torch.autocast("cuda", enabled=False):
                in_bins = self._compiled_bins if self.training else None
                return graph_forward.forward(self, elements, offsets, dtype, bins, in_bins)
        return self.traced(elements, offsets)[0]

    @torch.no_grad()
    def bins(self, elements: Tensor, offsets: Tensor) -> Tensor:
        """Return the bin of every element in every layer (layers, stacks, elements), counted over the batch."""
        layout = BinLayout.of(offsets, self.bin_size)
        return torch.stack([layout.bin_of(order) for order in self.traced(elements, offsets)[1]])

    def traced(
        self, elements: Tensor, offsets: Tensor, orders: list[Tensor] | None = None
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the outputs, and the order in which each layer filled its bins. `orders` sets these orders."""
        layout, inputs = BinLayout.of(offsets, self.bin_size), encode(elements)
        state, states, used_orders = inputs.expand(STACKS, *inputs.shape), [], []
        for depth, layer in enumerate(self.layers):
            state, layer_order = layer(state, layout, None if orders is None else orders[depth])
            states.append(state)
            used_orders.append(layer_order)
        return self.decoder(inputs, states), used_orders
