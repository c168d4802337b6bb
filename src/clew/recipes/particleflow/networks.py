"""The networks by `model.kind`."""

from __future__ import annotations

from torch import Tensor, nn

from clew.recipes.particleflow.attention import AttentionFlow
from clew.recipes.particleflow.decoding import ENCODED, Decoder, encoded
from clew.recipes.particleflow.network import GraphFlow
from clew.recipes.particleflow.settings import Network


class ElementFlow(nn.Module):
    """The decoder alone, which sees nothing of an element's neighbours: what others are to be better than."""

    def __init__(self, settings: Network) -> None:
        super().__init__()
        self.decoder = Decoder(ENCODED, settings)

    def forward(self, elements: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        made: dict[str, Tensor] = self.decoder(encoded(elements), [])
        return made


KINDS: dict[str, type[GraphFlow | AttentionFlow | ElementFlow]] = {
    "graph": GraphFlow,
    "attention": AttentionFlow,
    "element": ElementFlow,
}
