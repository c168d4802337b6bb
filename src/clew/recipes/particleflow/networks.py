"""The networks of the recipe, by `model.kind`."""

from __future__ import annotations

from torch import Tensor, nn

from clew.recipes.particleflow.attention_network import AttentionFlow
from clew.recipes.particleflow.decoding import ENCODED_WIDTH, Decoder, encode
from clew.recipes.particleflow.graph_network import GraphFlow
from clew.recipes.particleflow.settings import ParticleFlowNetworkConfig


class ElementFlow(nn.Module):
    """The decoder alone, without the neighbours of an element: the baseline of the other networks."""

    def __init__(self, settings: ParticleFlowNetworkConfig, inputs: int = ENCODED_WIDTH) -> None:
        super().__init__()
        self.decoder = Decoder(inputs, settings)

    def forward(self, elements: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.decoder(encode(elements), [])
        return outputs


NETWORKS: dict[str, type[GraphFlow | AttentionFlow | ElementFlow]] = {
    "graph": GraphFlow,
    "attention": AttentionFlow,
    "element": ElementFlow,
}
