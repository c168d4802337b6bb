"""The recipe `tracking`: segment graphs, the GraphNet, and tracks from its edge scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Table
from clew.recipes.tracking import segments, tracks
from clew.recipes.tracking.settings import TrackingConfig
from clew.recipes.tracking.track_finder import TrackFinder, compact, hit_columns, sigmoid

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from clew import Batch


class Tracking(TrackFinder):
    """Track finding: classifies the edges of segment graphs."""

    Config = TrackingConfig
    defaults = {
        "train": {
            "epochs": 30,
            "batch_size": 32,
            "optimizer": {"lr": 2e-3, "lr_batch": 32},
            "schedule": {"name": "cosine"},
        }
    }
    columns = ("node", "edge", "label")

    def prepare(self, events: Table) -> Table:
        return compact(segments.build(hit_columns(events), self.config.detector, self.config.segments))

    def model(self) -> nn.Module:
        from clew.recipes.tracking.network import GraphNet

        return GraphNet(hidden=self.config.model.hidden, iterations=self.config.model.iterations)

    def sample_costs(self, lengths: Mapping[str, NDArray[np.integer]]) -> NDArray[np.floating]:
        """A node costs as much time as four edges, from a fit to the times of single steps."""
        return np.asarray(1.0 + 4.0 * lengths["node"] + lengths["edge"])

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """Weighted cross-entropy, averaged over the edges of the batch."""
        from clew.recipes.tracking.network import edge_loss

        settings = self.config.model
        return edge_loss(outputs, batch, settings.positive_weight, settings.negative_weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found_track`: the track of each hit, numbered from 0 in each event, -1 for none; `score` of each edge."""
        scores = sigmoid(outputs["output"])
        found_tracks = tracks.from_edges(samples, scores, self.config.tracks.threshold, self.config.tracks.method)
        return Table(
            {
                "found_track": tracks.number_in_events(samples.ragged("x"), found_tracks),
                "score": samples.ragged("edge").share(scores),
            }
        )
