"""The newer kind of network: attention over all elements of an event, in the same two stacks and decoders.

Events are never padded, nor do they see each other: on a GPU in half precision one kernel takes all events of a batch
with where they begin, elsewhere attention runs event by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.decoding import ENCODED, Decoder, encoded
from clew.recipes.particleflow.network import STACKS
from clew.recipes.particleflow.settings import Network

HALVES = (torch.float16, torch.bfloat16)


def attend(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, bounds: Sequence[int]) -> Tensor:
    """Attention (elements, heads, width) within events; `bounds` are the offsets as numbers."""
    if query.is_cuda and query.dtype in HALVES:
        from torch.nn.attention.varlen import varlen_attn

        longest, starts = max(b - a for a, b in pairwise(bounds)), offsets.to(torch.int32)
        whole = varlen_attn(query, key, value, starts, starts, longest, longest)
        assert isinstance(whole, Tensor)
        return whole
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
    found = [f.scaled_dot_product_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b]) for a, b in pairwise(bounds)]
    return torch.cat(found, dim=2).squeeze(0).transpose(0, 1)


class AttentionLayer(nn.Module):
    """Attention and a SwiGLU, each behind an RMS norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.project, self.join = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.expand, self.contract = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, state: Tensor, offsets: Tensor, bounds: Sequence[int]) -> Tensor:
        parts = self.project(self.before(state)).view(len(state), 3, self.heads, -1)
        query, key, value = parts.unbind(1)
        state = state + self.join(attend(query, key, value, offsets, bounds).flatten(1))
        gate, grown = self.expand(self.between(state)).chunk(2, dim=-1)
        made: Tensor = state + self.contract(f.silu(gate) * grown)
        return made


class AttentionFlow(nn.Module):
    """Elements of packed events in, class logits, charge and momentum of each out."""

    def __init__(self, settings: Network) -> None:
        super().__init__()
        width = settings.width
        self.embed = nn.ModuleList(nn.Linear(ENCODED, width) for _ in range(STACKS))
        self.stacks = nn.ModuleList(
            nn.ModuleList(AttentionLayer(width, settings.heads) for _ in range(settings.layers)) for _ in range(STACKS)
        )
        self.decoder = Decoder(ENCODED + settings.layers * width, settings)

    def forward(self, elements: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        inputs, bounds = encoded(elements), offsets.tolist()
        stacks: list[list[Tensor]] = []
        for embed, layers in zip(self.embed, self.stacks, strict=True):
            state, states = embed(inputs).to(inputs.dtype), []  # sums of shortcuts stay in single precision
            for layer in layers:  # type: ignore[attr-defined]
                state = layer(state, offsets, bounds)
                states.append(state)
            stacks.append(states)
        made: dict[str, Tensor] = self.decoder(inputs, list(zip(*stacks, strict=True)))
        return made
