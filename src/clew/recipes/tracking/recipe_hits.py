"""The recipe `hitgraph`: hit graphs, an interaction network, tracks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Table
from clew.recipes.tracking import hitgraph, overlaps, tracks
from clew.recipes.tracking.base import TrackFinder, hits_of, narrowed, sigmoid
from clew.recipes.tracking.geometry import Floats, Ints, places
from clew.recipes.tracking.settings import HitSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch


class HitGraph(TrackFinder):
    """Track finding by classifying edges between hits."""

    Config = HitSettings
    defaults = {
        "prepare": {"split_by": "collision"},
        "train": {
            "epochs": 12,
            "batch_size": 16,
            "optimizer": {"lr": 2e-3, "lr_batch": 16},
            "schedule": {"name": "cosine"},
            "clip": 1.0,
        },
    }
    columns = ("node", "edge", "link", "label")

    def prepare(self, events: Table) -> Table:
        """Hit graphs; a file that brings edges of its own keeps them. `collision` is what a split keeps together."""
        hits = hits_of(events)
        if "link" in hits:
            graphs = hitgraph.given(hits, self.config.detector)
        else:
            graphs = hitgraph.build(hits, self.config.detector, self.config.edges)
        collision = {} if "collision" in graphs else {"collision": graphs.fixed("event")}
        return narrowed(graphs.join(collision))

    def model(self) -> nn.Module:
        from clew.recipes.tracking.interaction import InteractionNet

        return InteractionNet(hidden=self.config.model.hidden, iterations=self.config.model.iterations)

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """Weighted cross-entropy, a mean over the edges of the batch."""
        from clew.recipes.tracking.network import edge_loss

        settings = self.config.model
        return edge_loss(outputs, batch, settings.positive_weight, settings.negative_weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found`: the track each hit was given, counted from 0 in each event; `score`: that of each edge."""
        scores, link, like = sigmoid(outputs["output"]), samples.ragged("link"), samples.ragged("x")
        links = link.values.astype(np.int64) + like.offsets[link.events][:, None]
        same = self._merged(samples, links, scores) if self.config.tracks.overlaps else None
        found = tracks.from_links(links, scores, len(like.values), self.config.tracks, same)
        return Table({"found": tracks.in_event(like, found), "score": link.share(scores)})

    def _merged(self, samples: Table, links: Ints, scores: Floats) -> Ints:
        return overlaps.merged(places(samples, self.config.detector), links, scores, self.config.edges)
