"""The recipe `tracknet`: seeds, a recurrent network that extends them, and a classifier that removes ghosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Table, metrics
from clew.recipes.tracking import hitgraph, sequences, tracks
from clew.recipes.tracking.geometry import TURN
from clew.recipes.tracking.settings import TrackNetConfig
from clew.recipes.tracking.track_finder import TrackFinder, compact, edge_metrics, hit_columns, sigmoid

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class TrackNet(TrackFinder):
    """Track finding: predicts where the next hit of a track is."""

    Config = TrackNetConfig
    defaults = {
        "train": {
            "epochs": 30,
            "batch_size": 32,
            "optimizer": {"lr": 3e-3, "lr_batch": 32},
            "schedule": {"name": "cosine"},
            "clip": 5.0,
            "best": {"metric": "track_f1", "direction": "maximize"},
        }
    }
    columns = ("place", "station", "prefix", "parent", "level", "step", "step_hit", "step_label")

    def prepare(self, events: Table) -> Table:
        return compact(sequences.build(hit_columns(events), self.config.detector, self.config.seeds))

    def model(self) -> nn.Module:
        from clew.recipes.tracking import tracknet

        detector, seeds, config = self.config.detector, self.config.seeds, self.config.tracks
        shape = tracknet.TrackNetShape(
            stations=detector.positions,
            period=0.0 if detector.planar else TURN,
            scales=hitgraph.feature_scales(detector),
            reach=seeds.reach(detector),
            bridge=detector.gaps == "bridge",
            widen=config.widen,
            threshold=config.threshold,
            branches=config.branches,
            beam=config.beam,
            max_per_event=seeds.max_per_event,
            min_hits=seeds.min_hits,
        )
        return tracknet.TrackNetwork(shape, self.config.model.hidden, self.config.model.layers)

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Loss]:
        """Two losses, each with its own optimiser: for the ellipse (true next hits) and for the classifier (all
        steps)."""
        from clew.recipes.tracking import tracknet

        outputs = self.forward(model, batch)
        return {
            "ellipse": tracknet.ellipse_loss(outputs, batch, self.config.model.alpha),
            "ghosts": tracknet.ghost_loss(outputs, batch),
        }

    def optimizers(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        parameters = dict(model.named_parameters())
        return {
            "ellipse": [parameter for name, parameter in parameters.items() if not name.startswith("ghosts.")],
            "ghosts": [parameter for name, parameter in parameters.items() if name.startswith("ghosts.")],
        }

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """The sum of both losses divided by the number of steps: one number for validation."""
        from clew.recipes.tracking import tracknet

        ellipse = tracknet.ellipse_loss(outputs, batch, self.config.model.alpha)
        ghosts = tracknet.ghost_loss(outputs, batch)
        return Loss(ellipse.total + ghosts.total, ghosts.weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found_track`: the track of each hit, numbered from 0 in each event, -1 for none; `score` of each step."""
        x = samples.ragged("x")
        members, length = outputs["members"].astype(np.int64), outputs["length"].astype(np.int64)
        hits = members + x.offsets[outputs["member_event"].astype(np.int64)]
        owner = np.repeat(np.arange(len(length)), length)
        found_tracks = tracks.from_candidates(hits, owner, outputs["score"].astype(np.float64), len(x.values))
        return Table(
            {
                "found_track": tracks.number_in_events(x, found_tracks),
                "score": samples.ragged("step").share(sigmoid(outputs["logit"])),
            }
        )

    def detail_metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> dict[str, metrics.Metric]:
        """`f1` and `edge_auc` of steps; the share of ellipses that contain the true hit, and their mean area."""
        label = samples.ragged("step_label")
        weights, true = samples.weights[label.events], label.values > 0
        step_metrics = edge_metrics(objects.ragged("score").values, true, weights)
        ellipse, residual = outputs["ellipse"][true].astype(np.float64), outputs["residual"][true]
        radii = ellipse[:, 2:] * self.config.tracks.widen
        inside = (((residual - ellipse[:, :2]) / radii) ** 2).sum(axis=1) <= 1
        area = np.pi * radii.prod(axis=1) * weights[true]
        return {
            **step_metrics,
            "in_ellipse": metrics.Ratio.of(inside, weights[true]),
            "ellipse_area": metrics.Mean(float(area.sum()), float(weights[true].sum())),
        }
