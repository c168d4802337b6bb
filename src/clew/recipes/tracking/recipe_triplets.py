"""The recipe `triplets`: triplet graphs of the whole detector, an interaction network, and tracks from its scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Table, readers
from clew.recipes.tracking import chains, layers, trackml, tracks, triplets
from clew.recipes.tracking.sectors import split_events
from clew.recipes.tracking.settings import TripletsConfig
from clew.recipes.tracking.track_finder import TrackFinder, compact, hit_columns, sigmoid

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from clew import Batch


class Triplets(TrackFinder):
    """Track finding in the whole detector at pile-up: classifies triplets of hits."""

    Config = TripletsConfig
    defaults = {
        "prepare": {"split_by": "collision"},
        "train": {
            "epochs": 12,
            "batch_size": 4,
            "optimizer": {"lr": 2e-3, "lr_batch": 4},
            "schedule": {"name": "cosine"},
            "clip": 1.0,
        },
    }
    columns = ("node", "edge", "link", "label")
    inference_batch_size = 1

    def read(self, path: str) -> Iterable[Table]:
        """Read ACTS or TrackML events with all layers, cut into sectors if `sectors.number` is more than 1."""
        return self._sectors(path)

    def _sectors(self, path: str) -> Iterator[Table]:
        kind = readers.kind_of(path)
        for events in readers.read(path, kind):
            hits = whole_detector_hits(events)
            for number in range(len(hits)):
                yield from split_events(hits.slice(number, number + 1), self.config.sectors)

    def prepare(self, events: Table) -> Table:
        """Build triplet graphs. All sectors of a `collision` share a split."""
        graphs = triplets.build(hit_columns(events), self.config.triplets)
        collision = {} if "collision" in graphs else {"collision": graphs.fixed("event")}
        return compact(graphs.join(collision))

    def model(self) -> nn.Module:
        from clew.recipes.tracking.interaction import InteractionNet

        config = self.config.model
        return InteractionNet(triplets.NODE_FEATURES, triplets.EDGE_FEATURES, config.hidden, config.iterations)

    def sample_costs(self, lengths: Mapping[str, NDArray[np.integer]]) -> NDArray[np.floating]:
        """The time of a sample is proportional to its pairs and triplets."""
        return np.asarray(1.0 + lengths["node"] + lengths["edge"])

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """Weighted cross-entropy, averaged over the triplets of the batch."""
        from clew.recipes.tracking.network import edge_loss

        settings = self.config.model
        return edge_loss(outputs, batch, settings.positive_weight, settings.negative_weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found_track`: the track of each hit, numbered from 0 in each event, -1 for none; `score` of each triplet."""
        logits, x = np.asarray(outputs["output"], dtype=np.float64), samples.ragged("x")
        hits, triples = chains.HitPlaces.of(samples), triplets.triplet_hits(samples)
        found_tracks = chains.from_triplets(hits, triples, logits, self.config.tracks)
        score = samples.ragged("link").share(sigmoid(logits))
        return Table({"found_track": tracks.number_in_events(x, found_tracks), "score": score})


def whole_detector_hits(events: Table) -> Table:
    """`trackml.hit_table` with the `station` of each hit in the whole detector; other hits are removed."""
    station = layers.stations_of(events)
    return trackml.hit_table(events).join({"station": events.ragged("x").share(station)}).select("x", station >= 0)
