"""Attention within events, with every implementation."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from clew.recipes.particleflow.attention_network import AttentionFlow, attend

from . import SMALL, flow_events, tensors


def test_attention_is_that_of_each_event_alone() -> None:
    query, key, value = torch.randn(3, 90, 2, 8, dtype=torch.float64)
    bounds = [0, 40, 41, 90]
    attended = attend(query, key, value, torch.tensor(bounds), bounds)
    event = torch.bucketize(torch.arange(90), torch.tensor(bounds[1:]), right=True)
    q, k, v = (each.transpose(0, 1) for each in (query, key, value))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=event[:, None] == event)
    torch.testing.assert_close(attended, expected.transpose(0, 1))


def test_events_do_not_see_each_other() -> None:
    network = AttentionFlow(SMALL).double()
    elements, _, offsets = tensors(flow_events(3, mean=30))
    together = network(elements, offsets)
    for a, b in pairwise(offsets.tolist()):
        for name, value in network(elements[a:b], torch.tensor([0, b - a])).items():
            torch.testing.assert_close(together[name][a:b], value)


def test_the_order_of_elements_does_not_matter() -> None:
    network = AttentionFlow(SMALL).double()
    elements, _, offsets = tensors(flow_events(1, mean=30))
    turned = network(elements.flip(0), offsets)
    for name, value in network(elements, offsets).items():
        torch.testing.assert_close(turned[name].flip(0), value)
