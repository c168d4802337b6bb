"""The published networks of jet tagging, as weaver-core has them, in small sizes and as recipes of clew.

Each reads the inputs of the recipe `jets` and, behind them, the four momenta of constituents (px, py, pz, energy),
which the Particle Transformer needs. Everything else (jets, batches, optimiser, schedule, loss) is that of `jets`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clew.recipes.jets import Jets

MOMENTA = ("part_px", "part_py", "part_pz", "part_energy")


class ParticleNetTagger(nn.Module):
    """ParticleNet-Lite: two edge convolutions with 7 neighbours."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        from weaver.nn.model.ParticleNet import ParticleNet  # type: ignore[import-untyped]

        layers = [(7, (32, 32, 32)), (7, (64, 64, 64))]
        self.network = ParticleNet(inputs, classes, conv_params=layers, fc_params=[(128, 0.1)], use_fusion=False)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        features = values[:, :, : -len(MOMENTA)].transpose(1, 2)
        logits: Tensor = self.network(features[:, :2], features.requires_grad_(torch.is_grad_enabled()), mask[:, None])
        return logits


class ParticleTransformerTagger(nn.Module):
    """The Particle Transformer with two layers and one layer of class attention."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        from weaver.nn.model.ParticleTransformer import ParticleTransformer  # type: ignore[import-untyped]

        narrow: dict[str, Any] = {"block_params": {"ffn_ratio": 2}, "cls_block_params": {"ffn_ratio": 2}}
        size: dict[str, Any] = {"embed_dims": (24, 48, 32), "pair_embed_dims": (16, 16), "num_heads": 4}
        self.network = ParticleTransformer(inputs, classes, **size, num_layers=2, num_cls_layers=1, **narrow)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        parts = values.transpose(1, 2)
        features, momenta = parts[:, : -len(MOMENTA)], parts[:, -len(MOMENTA) :]
        logits: Tensor = self.network(features.requires_grad_(torch.is_grad_enabled()), momenta, mask[:, None])
        return logits


class PublishedParticleNet(Jets):
    """The recipe `jets` with ParticleNet of weaver-core."""

    def model(self) -> nn.Module:
        return ParticleNetTagger(len(self.config.constituents.inputs) - len(MOMENTA), len(self.config.data.classes))


class PublishedParticleTransformer(Jets):
    """The recipe `jets` with the Particle Transformer of weaver-core."""

    def model(self) -> nn.Module:
        inputs = len(self.config.constituents.inputs) - len(MOMENTA)
        return ParticleTransformerTagger(inputs, len(self.config.data.classes))
