"""The attention network: attention over all elements of an event, with the stacks and decoder of the graph network.

Events are not padded, and elements of different events do not interact. On a GPU in half precision, one kernel
processes all events of a batch from their offsets. Elsewhere attention runs event by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.particleflow.decoding import ENCODED_WIDTH, Decoder, encode
from clew.recipes.particleflow.graph_network import STACKS
from clew.recipes.particleflow.settings import ParticleFlowNetworkConfig

HALF_PRECISION = (torch.float16, torch.bfloat16)


def attend(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, bounds: Sequence[int]) -> Tensor:
    """Compute attention within events.

    Args:
        query: (elements, heads, width).
        key: (elements, heads, width).
        value: (elements, heads, width).
        offsets: (events + 1,), where each event starts.
        bounds: The offsets as Python integers.

    Returns:
        (elements, heads, width).
    """
    if query.is_cuda and query.dtype in HALF_PRECISION:
        from torch.nn.attention.varlen import varlen_attn

        longest, starts = max(b - a for a, b in pairwise(bounds)), offsets.to(torch.int32)
        attended = varlen_attn(query, key, value, starts, starts, longest, longest)
        assert isinstance(attended, Tensor)
        return attended
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
    events = [f.scaled_dot_product_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b]) for a, b in pairwise(bounds)]
    return torch.cat(events, dim=2).squeeze(0).transpose(0, 1)


class AttentionLayer(nn.Module):
    """Attention followed by a SwiGLU, each with an RMS norm before it and a residual connection."""

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
        result: Tensor = state + self.contract(f.silu(gate) * grown)
        return result


class AttentionFlow(nn.Module):
    """Attention network: elements of packed events in, class logits, charge and momentum of each element out."""

    def __init__(self, settings: ParticleFlowNetworkConfig, inputs: int = ENCODED_WIDTH) -> None:
        super().__init__()
        width = settings.width
        self.embed = nn.ModuleList(nn.Linear(inputs, width) for _ in range(STACKS))
        self.stacks = nn.ModuleList(
            nn.ModuleList(AttentionLayer(width, settings.heads) for _ in range(settings.layers)) for _ in range(STACKS)
        )
        self.decoder = Decoder(inputs + settings.layers * width, settings)

    def forward(self, elements: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        inputs, bounds = encode(elements), offsets.tolist()
        stacks: list[list[Tensor]] = []
        for embed, layers in zip(self.embed, self.stacks, strict=True):
            state, states = embed(inputs).to(inputs.dtype), []  # residual sums stay in single precision
            for layer in layers:  # type: ignore[attr-defined]
                state = layer(state, offsets, bounds)
                states.append(state)
            stacks.append(states)
        outputs: dict[str, Tensor] = self.decoder(inputs, list(zip(*stacks, strict=True)))
        return outputs
