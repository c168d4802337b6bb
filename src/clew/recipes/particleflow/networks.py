"""The networks by `model.kind`."""

from __future__ import annotations

from clew.recipes.particleflow.attention import AttentionFlow
from clew.recipes.particleflow.network import GraphFlow

KINDS: dict[str, type[GraphFlow] | type[AttentionFlow]] = {"graph": GraphFlow, "attention": AttentionFlow}
