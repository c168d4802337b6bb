"""The published network over packed events: LSH graph layers in two stacks, and decoders over all of them.

3,288,432 parameters: graph layers 1,043,200 (in each stack 29,312 for the first layer and 246,144 for the others),
class head 399,366, charge head 266,497, heads of momenta 1,576,229, norms 3,140.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.binning import Layout, codes, order
from clew.recipes.particleflow.convolution import convolve, gathered, spread
from clew.recipes.particleflow.decoding import ENCODED, Decoder, encoded
from clew.recipes.particleflow.settings import Network

STACKS = 2
"""Identity and momentum: the same layers with weights of their own."""


class GraphLayer(nn.Module):
    """One combined layer of both stacks: distances, bins, a gated convolution.

    All that is made of the input in one matrix: inner distance features, messages, gate, shortcut. The outer distance
    features have no bias: a common shift changes no distance, and its gradient would be rounding, which Adam makes
    large and which then moves elements between bins.
    """

    def __init__(self, inputs: int, settings: Network) -> None:
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

    def forward(self, state: Tensor, layout: Layout, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States (stacks, elements, f) after the layer, and the order (stacks, elements) that bins were filled in."""
        inner, messages, gate, around = torch.split(torch.bmm(state, self.project), self.widths, dim=-1)
        distance = torch.bmm(f.elu(inner + self.inner_bias, inplace=True), self.outer)
        if given is None:
            given = order(codes(distance, self.codebook), layout.event, 2 * self.codebook.shape[-1])
        made = convolve(gathered(distance, given, layout), gathered(messages, given, layout), layout)
        arrived = spread(made, given, layout)
        share = torch.sigmoid(gate + self.gate_bias).to(around.dtype)  # under autocast the bias is wider
        mixed = torch.lerp(around, arrived, share)
        return f.elu(mixed, inplace=True), given


def fits(settings: Network) -> bool:
    """Whether the Triton kernels can do such a network."""
    powers = all(each & (each - 1) == 0 and each >= 16 for each in (settings.width, settings.distance))
    return powers and settings.bin_size % 64 == 0 and settings.codes < 16 and bool(importlib.util.find_spec("triton"))


class GraphFlow(nn.Module):
    """Elements of packed events in, class logits, charge and momentum of each out."""

    def __init__(self, settings: Network) -> None:
        super().__init__()
        self.bin_size = settings.bin_size
        self._fits = fits(settings)
        widths = [ENCODED, *[settings.width] * (settings.layers - 1)]
        self.layers = nn.ModuleList(GraphLayer(inputs, settings) for inputs in widths)
        self.decoder = Decoder(ENCODED + settings.layers * settings.width, settings)

    def forward(self, elements: Tensor, offsets: Tensor, bins: int | None = None) -> dict[str, Tensor]:
        """`bins`: as many as there is room for, where elements behind the last offset mean nothing (by kernels)."""
        if elements.is_cuda and torch.is_autocast_enabled("cuda") and self._fits:
            from clew.recipes.particleflow.kernels import whole

            dtype = torch.get_autocast_dtype("cuda")
            with torch.autocast("cuda", enabled=False):
                return whole.forward(self, elements, offsets, dtype, bins)
        return self.traced(elements, offsets)[0]

    @torch.no_grad()
    def bins(self, elements: Tensor, offsets: Tensor) -> Tensor:
        """(layers, stacks, elements): the bin of every element in every layer, counted through the batch."""
        layout = Layout.of(offsets, self.bin_size)
        return torch.stack([layout.bin_of(each) for each in self.traced(elements, offsets)[1]])

    def traced(
        self, elements: Tensor, offsets: Tensor, orders: list[Tensor] | None = None
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The outputs, and the orders that each layer filled its bins in; with `orders` given, in those."""
        layout, inputs = Layout.of(offsets, self.bin_size), encoded(elements)
        state, states, used = inputs.expand(STACKS, *inputs.shape), [], []
        for place, layer in enumerate(self.layers):
            state, own = layer(state, layout, None if orders is None else orders[place])
            states.append(state)
            used.append(own)
        return self.decoder(inputs, states), used
