"""The recipe `tracking`: segment graphs, the GraphNet, tracks, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clew import Loss, Table
from clew.recipes.tracking import segments, tracks
from clew.recipes.tracking.base import TrackFinder, hits_of, narrowed, sigmoid
from clew.recipes.tracking.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch


class Tracking(TrackFinder):
    """Track finding by classifying edges of segment graphs."""

    Config = Settings
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
        return narrowed(segments.build(hits_of(events), self.config.detector, self.config.segments))

    def model(self) -> nn.Module:
        from clew.recipes.tracking.network import GraphNet

        return GraphNet(hidden=self.config.model.hidden, iterations=self.config.model.iterations)

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """Weighted cross-entropy, a mean over the edges of the batch."""
        from clew.recipes.tracking.network import edge_loss

        settings = self.config.model
        return edge_loss(outputs, batch, settings.positive_weight, settings.negative_weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found`: the track each hit was given, counted from 0 in each event; `score`: that of each edge."""
        scores = sigmoid(outputs["output"])
        found = tracks.find(samples, scores, self.config.tracks.threshold, self.config.tracks.method)
        return Table(
            {"found": tracks.in_event(samples.ragged("x"), found), "score": samples.ragged("edge").share(scores)}
        )
