"""The networks of the jet recipes. Their input are plain tensors, their output is one logit per class.

Padding never changes the logits of a jet: it is masked in every sum, and comes after all constituents in a GRU.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.jets.edge_convolution import EdgeConvolution
from clew.recipes.jets.particlenet import ParticleNet
from clew.recipes.jets.settings import JetFeaturesNetworkConfig, JetImagesNetworkConfig, JetsNetworkConfig


class RaggedColumn(Protocol):
    """A ragged column of a batch."""

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """A padded tensor, and a mask of the real items."""


def padded(items: RaggedColumn) -> tuple[Tensor, Tensor]:
    """Constituents (jets, longest, inputs) and a mask (jets, longest). The second dimension is at least 1.

    With buckets of similar lengths a GRU on a CPU takes half the time that it takes with packed sequences.
    """
    values, mask = items.padded()
    if mask.shape[1]:
        return values, mask
    return values.new_zeros((len(mask), 1, values.shape[2])), mask.new_zeros((len(mask), 1))


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the constituents of (jets, constituents, width); 0 for a jet without constituents."""
    real = mask.unsqueeze(2).to(values.dtype)
    return (values * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _head(width: int, classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, classes))


class Recurrent(nn.Module):
    """A GRU over the constituents. The classifier uses its last state, and the mean of all states."""

    def __init__(self, inputs: int, classes: int, settings: JetsNetworkConfig) -> None:
        super().__init__()
        between = settings.dropout if settings.layers > 1 else 0.0
        self.gru = nn.GRU(inputs, settings.width, settings.layers, batch_first=True, dropout=between)
        self.head = _head(2 * settings.width, classes, settings.dropout)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        states, _ = self.gru(values)
        last = (mask.sum(dim=1) - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        state = torch.cat([states.gather(1, last).squeeze(1), _mean(states, mask)], dim=1)
        logits: Tensor = self.head(state * mask.any(dim=1, keepdim=True))
        return logits


class Convolution(nn.Module):
    """Residual 1-D convolutions over the sequence, then the mean over constituents."""

    def __init__(self, inputs: int, classes: int, settings: JetsNetworkConfig) -> None:
        super().__init__()
        width, kernel = settings.width, settings.kernel
        self.embed = nn.Linear(inputs, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(settings.layers))
        self.layers = nn.ModuleList(nn.Conv1d(width, width, kernel, padding="same") for _ in range(settings.layers))
        self.head = _head(width, classes, settings.dropout)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(2).to(values.dtype)
        state = self.embed(values)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            inputs = (norm(state) * real).transpose(1, 2)  # without the mask the convolution would see the padding
            state = state + f.relu(layer(inputs)).transpose(1, 2)
        logits: Tensor = self.head(_mean(state, mask))
        return logits


class Attention(nn.Module):
    """One layer of a transformer, with normalisation before attention and before the feed-forward part."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, state: Tensor, mask: Tensor) -> Tensor:
        jets, places, width = state.shape
        parts = self.project(self.before(state)).view(jets, places, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = f.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        together = torch.cat(mixed.unbind(1), dim=2)  # an exported transpose and reshape would need certain strides
        state = state + self.dropout(self.join(together))
        grown: Tensor = state + self.dropout(self.expand(self.between(state)))
        return grown


class Pairs(nn.Module):
    """A term of attention for every pair of constituents: a network of their distance and of the smaller and the larger
    pT, in logarithms. The relative transverse momentum, the share and the mass of a pair are functions of these."""

    def __init__(self, settings: JetsNetworkConfig) -> None:
        super().__init__()
        self.coordinates, self.momentum = list(settings.coordinates), settings.momentum
        self.embed = nn.Sequential(
            nn.Linear(3, settings.pairs),
            nn.GELU(),
            nn.Linear(settings.pairs, settings.pairs),
            nn.GELU(),
            nn.Linear(settings.pairs, settings.heads),
        )

    def forward(self, values: Tensor) -> Tensor:
        """(jets, constituents, inputs) to (jets, heads, constituents, constituents)."""
        points, momentum = values[:, :, self.coordinates], values[:, :, self.momentum]
        apart = ((points.unsqueeze(2) - points.unsqueeze(1)) ** 2).sum(dim=3)
        one, other = momentum.unsqueeze(2).expand_as(apart), momentum.unsqueeze(1).expand_as(apart)
        features = [0.25 * torch.log(apart + 1e-5) + 1, torch.minimum(one, other), torch.maximum(one, other)]
        terms: Tensor = self.embed(torch.stack(features, dim=3))
        return terms.permute(0, 3, 1, 2)


class Transformer(nn.Module):
    """A transformer without positions (the order does not matter), then the mean over constituents."""

    def __init__(self, inputs: int, classes: int, settings: JetsNetworkConfig) -> None:
        super().__init__()
        width = settings.width
        self.embed = nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
        self.pairs = Pairs(settings) if settings.pairs else None
        self.layers = nn.ModuleList(Attention(width, settings.heads, settings.dropout) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = _head(width, classes, settings.dropout)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        attention_mask = (
            (mask | ~mask.any(dim=1, keepdim=True)).unsqueeze(1).unsqueeze(1)
        )  # attention over nothing would be NaN
        if self.pairs is not None:
            terms = self.pairs(values * mask.unsqueeze(2))
            attention_mask = terms.masked_fill(~attention_mask, -torch.inf)
        state = self.embed(values)
        for layer in self.layers:
            state = layer(state, attention_mask)
        logits: Tensor = self.head(_mean(self.norm(state), mask))
        return logits


SEQUENCE_NETWORKS: dict[str, Any] = {
    "gru": Recurrent,
    "conv": Convolution,
    "transformer": Transformer,
    "edgeconv": EdgeConvolution,
    "particlenet": ParticleNet,
}
"""Networks by `model.kind`."""


class Perceptron(nn.Module):
    """Fully connected layers."""

    def __init__(self, inputs: int, classes: int, settings: JetFeaturesNetworkConfig) -> None:
        super().__init__()
        widths = [inputs, *[settings.width] * settings.layers]
        layers = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(settings.dropout))
            for a, b in itertools.pairwise(widths)
        ]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features)
        return logits


class ImageNet(nn.Module):
    """Convolutions over an image, given as logarithms and as shares of its sum; then mean and maximum over positions.

    The sum and the number of filled pixels are not visible in shares. They go directly to the classifier.
    """

    def __init__(self, classes: int, settings: JetImagesNetworkConfig) -> None:
        super().__init__()
        width, dropout, self.augment = settings.width, settings.dropout, settings.augment
        self.layers = nn.Sequential(
            _block(3, width, 0.0, stride=2),
            _block(width, 2 * width, dropout),
            nn.MaxPool2d(2),
            _block(2 * width, 4 * width, dropout),
            _block(4 * width, 4 * width, dropout),
        )
        self.head = _head(8 * width + 2, classes, dropout)

    def forward(self, image: Tensor) -> Tensor:
        if self.training and self.augment:
            image = random_flips(image)
        total = image.sum(dim=(1, 2)).clamp(min=1e-6)
        share = image / total.view(-1, 1, 1)
        channels = torch.stack([torch.log1p(image) / 3, share.sqrt() * 3, share * 10], dim=1)
        features = self.layers(channels)
        filled = (image > 0).to(image.dtype).sum(dim=(1, 2))
        totals = torch.stack([torch.log(total) - 6, torch.log1p(filled) - 4], dim=1)
        logits: Tensor = self.head(torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3)), totals], dim=1))
        return logits


def random_flips(image: Tensor) -> Tensor:
    """Images mirrored at random along both axes, and transposed at random if they are square."""
    kinds = 3 if image.shape[1] == image.shape[2] else 2
    chosen = torch.rand((kinds, len(image), 1, 1), device=image.device) < 0.5
    image = torch.where(chosen[0], image.flip(1), image)
    image = torch.where(chosen[1], image.flip(2), image)
    return torch.where(chosen[2], image.transpose(1, 2), image) if kinds == 3 else image


def _block(inputs: int, outputs: int, dropout: float, *, stride: int = 1) -> nn.Sequential:
    kernel = 5 if stride > 1 else 3
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU(), nn.Dropout2d(dropout))
