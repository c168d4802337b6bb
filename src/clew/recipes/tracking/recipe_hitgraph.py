"""The recipe `hitgraph`: hit graphs, an interaction network, and tracks from its edge scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Table
from clew.recipes.tracking import hitgraph, overlaps, tracks
from clew.recipes.tracking.geometry import Floats, Ints, hit_coordinates
from clew.recipes.tracking.settings import HitGraphConfig
from clew.recipes.tracking.track_finder import TrackFinder, compact, hit_columns, sigmoid

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch


class HitGraph(TrackFinder):
    """Track finding: classifies the edges between hits."""

    Config = HitGraphConfig
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
        """Build hit graphs, or use the edges of the file if it has some. All samples of a `collision` share a split."""
        hits = hit_columns(events)
        if "link" in hits:
            graphs = hitgraph.from_links(hits, self.config.detector)
        else:
            graphs = hitgraph.build(hits, self.config.detector, self.config.edges)
        collision = {} if "collision" in graphs else {"collision": graphs.fixed("event")}
        return compact(graphs.join(collision))

    def model(self) -> nn.Module:
        from clew.recipes.tracking.interaction import InteractionNet

        return InteractionNet(hidden=self.config.model.hidden, iterations=self.config.model.iterations)

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """Weighted cross-entropy, averaged over the edges of the batch."""
        from clew.recipes.tracking.network import edge_loss

        settings = self.config.model
        return edge_loss(outputs, batch, settings.positive_weight, settings.negative_weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found_track`: the track of each hit, numbered from 0 in each event, -1 for none; `score` of each edge."""
        scores, link, x = sigmoid(outputs["output"]), samples.ragged("link"), samples.ragged("x")
        links = link.values.astype(np.int64) + x.offsets[link.events][:, None]
        same = self._merged(samples, links, scores) if self.config.tracks.overlaps else None
        found_tracks = tracks.from_links(links, scores, len(x.values), self.config.tracks, same)
        return Table({"found_track": tracks.number_in_events(x, found_tracks), "score": link.share(scores)})

    def _merged(self, samples: Table, links: Ints, scores: Floats) -> Ints:
        return overlaps.merge_overlaps(hit_coordinates(samples, self.config.detector), links, scores, self.config.edges)
