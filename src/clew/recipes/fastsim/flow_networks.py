"""Networks of the flow: velocities of latents on the way from noise to data.

The way is x(a) = cos(a) noise + sin(a) data, for an angle a from 0 to pi / 2. For independent standard normal latents
the velocity is 0, so a network that has learned nothing already gives the right marginal distributions.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention, silu

Shape = tuple[int, int, int]
WAVES = 64
"""Number of features of an angle or an energy."""
LAYER_FEATURES = 4
"""Features of a layer: latents of its energy and hits, logarithms of both."""
PARTICLE = 3
"""Features of a particle: scaled logarithm of its energy, and slopes of its direction in x and y."""


class ShowerConditions(NamedTuple):
    """What the shape of a shower depends on."""

    particle: Tensor
    """Features of the particle, (n, PARTICLE)."""
    layers: Tensor
    """Features of layers, (n, layers, LAYER_FEATURES)."""
    edges: Tensor
    """Latent that separates empty from lit voxels, (n, layers, rings)."""


def wave_features(values: Tensor) -> Tensor:
    """Return cosines and sines of values (n) with growing frequencies: (n, WAVES)."""
    steps = torch.arange(WAVES // 2, device=values.device) / (WAVES // 2)
    phase = values[:, None] * torch.exp(steps * math.log(60.0))
    return torch.cat([phase.cos(), phase.sin()], 1)


class LayerFlow(nn.Module):
    """Velocity of the latents of layers, given the particle.

    Args:
        size: Number of latents.
        width: Width of the hidden layers.
        depth: Number of residual blocks.
        dropout: Share of hidden numbers that are set to 0 in training.
    """

    def __init__(self, size: int, width: int = 384, depth: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.enter, self.dropout = nn.Linear(size, width), nn.Dropout(dropout)
        self.condition = nn.Sequential(
            nn.Linear(2 * WAVES + PARTICLE, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.modulate = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.first = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.leave = nn.Linear(width, size)
        for layer in (self.leave, *self.second):
            _set_zero(layer)

    def forward(self, latent: Tensor, angle: Tensor, particle: Tensor) -> Tensor:
        """Return the velocity of latents (n, size) at angles (n), for particles (n, PARTICLE).

        It is computed in single precision: energies of layers are known better than bf16 can tell, and the network is
        small.
        """
        with _without_autocast(latent):
            return self._velocity(latent.float(), angle.float(), particle.float())

    def _velocity(self, latent: Tensor, angle: Tensor, particle: Tensor) -> Tensor:
        condition = self.condition(torch.cat([wave_features(angle), wave_features(particle[:, 0]), particle], 1))
        hidden = self.enter(latent)
        for modulate, first, second in zip(self.modulate, self.first, self.second, strict=True):
            scale, shift = modulate(condition).chunk(2, 1)
            hidden = hidden + second(self.dropout(silu(first(_normed(hidden) * (1 + scale) + shift))))
        velocity: Tensor = self.leave(_normed(hidden))
        return velocity


class AttentionBlock(nn.Module):
    """One block of the transformer. Scale, shift and gate depend on the conditions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.table = nn.Parameter(torch.zeros(6, width))
        self.key_scale = nn.Parameter(torch.ones(2, width // heads))
        for layer in (self.out, self.down):
            _set_zero(layer)

    def forward(self, hidden: Tensor, modulation: Tensor) -> Tensor:
        """Return the next hidden state (n, tokens, width), for a modulation (n, 6, width)."""
        count, tokens, width = hidden.shape
        scale, shift, gate, scale2, shift2, gate2 = (
            (modulation + self.table).to(modulation.dtype).unsqueeze(2).unbind(1)
        )
        mixed = self.qkv(_modulated(hidden, scale, shift))
        query, key, value = mixed.view(count, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key = _scaled_norm(query, self.key_scale[0]), _scaled_norm(key, self.key_scale[1])
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(count, tokens, width)
        hidden = torch.addcmul(hidden, 1 + gate, self.out(attended))
        change = self.down(silu(self.up(_modulated(hidden, scale2, shift2))))
        return torch.addcmul(hidden, 1 + gate2, change)


class ShapeFlow(nn.Module):
    """Velocity of the latents of voxels: a transformer over tokens of `patch` layers of one ring, with all angles.

    Args:
        shape: Layers, angles and rings. `patch` must divide the number of layers.
        width: Width of the transformer.
        depth: Number of blocks.
        heads: Attention heads.
        patch: Layers per token.
    """

    def __init__(self, shape: Shape, width: int = 384, depth: int = 7, heads: int = 6, patch: int = 3) -> None:
        super().__init__()
        layers, angles, rings = shape
        self.shape, self.patch = shape, patch
        self.enter = nn.Linear(patch * (angles + LAYER_FEATURES + 1), width)
        self.position = nn.Parameter(0.02 * torch.randn(layers // patch * rings, width))
        inputs = 3 * WAVES + PARTICLE + LAYER_FEATURES * layers
        self.condition = nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.modulate = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(depth))
        self.finish = nn.Linear(width, 2 * width)
        self.leave = nn.Linear(width, patch * angles)
        for layer in (self.leave, self.modulate, self.finish):
            _set_zero(layer)

    def forward(self, latent: Tensor, start: Tensor, stop: Tensor, conditions: ShowerConditions) -> Tensor:
        """Return the mean velocity of latents (n, layers, angles, rings) between two angles (n).

        If both angles are equal, it is the velocity there.
        """
        count = latent.shape[0]
        groups, rings = self.shape[0] // self.patch, self.shape[2]
        local = conditions.layers.reshape(count, groups, 1, -1).expand(-1, -1, rings, -1)
        edges = conditions.edges.view(count, groups, self.patch, rings).transpose(2, 3)
        tokens = torch.cat([self._to_tokens(latent), local.flatten(1, 2), edges.flatten(1, 2)], -1)
        particle = conditions.particle
        waves = [wave_features(each) for each in (start, stop - start, particle[:, 0])]
        condition = self.condition(torch.cat([*waves, particle, conditions.layers.flatten(1)], 1))
        hidden = self.enter(tokens)
        hidden = hidden + self.position.to(hidden.dtype)
        if self.training:
            hidden = hidden.float()  # sums of many small changes; to generate, the precision of the layers is enough
        modulation = self.modulate(condition).view(count, 6, -1)
        for block in self.blocks:
            hidden = block(hidden, modulation)
        scale, shift = self.finish(condition).unsqueeze(1).chunk(2, -1)
        return self._from_tokens(self.leave(_modulated(hidden, scale, shift)))

    def _to_tokens(self, latent: Tensor) -> Tensor:
        layers, angles, rings = self.shape
        grouped = latent.view(-1, layers // self.patch, self.patch, angles, rings).permute(0, 1, 4, 2, 3)
        return grouped.reshape(latent.shape[0], -1, self.patch * angles)

    def _from_tokens(self, tokens: Tensor) -> Tensor:
        layers, angles, rings = self.shape
        grouped = tokens.view(-1, layers // self.patch, rings, self.patch, angles).permute(0, 1, 3, 4, 2)
        return grouped.reshape(tokens.shape[0], layers, angles, rings)


def _without_autocast(like: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operations keep the type of their inputs."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()


def _normed(hidden: Tensor) -> Tensor:
    return layer_norm(hidden, hidden.shape[-1:])


def _modulated(hidden: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return normalised numbers with a scale and a shift, in the type of these. Few passes over memory."""
    with _without_autocast(hidden):
        return torch.addcmul(shift, _normed(hidden).to(scale.dtype), 1 + scale)


def _scaled_norm(values: Tensor, scale: Tensor) -> Tensor:
    """Return values over their root mean square, times a scale, in the type of the values."""
    with _without_autocast(values):
        return rms_norm(values, values.shape[-1:], scale.to(values.dtype))


def _set_zero(layer: nn.Module) -> None:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
