"""The recipe `tracknet`: seeds, a recurrent network that extends them, and a classifier that removes ghosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Loss, Table, metrics
from clew.recipes.tracking import hitgraph, sequences, tracks
from clew.recipes.tracking.base import TrackFinder, edge_tallies, hits_of, narrowed, sigmoid
from clew.recipes.tracking.geometry import TURN
from clew.recipes.tracking.settings import SequenceSettings

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class TrackNet(TrackFinder):
    """Track finding by predicting where the next hit is."""

    Config = SequenceSettings
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
        return narrowed(sequences.build(hits_of(events), self.config.detector, self.config.seeds))

    def model(self) -> nn.Module:
        from clew.recipes.tracking import tracknet

        detector, seeds, chosen = self.config.detector, self.config.seeds, self.config.tracks
        shape = tracknet.Shape(
            stations=detector.positions,
            period=0.0 if detector.planar else TURN,
            scales=hitgraph.gains(detector),
            reach=seeds.reach(detector),
            bridge=detector.gaps == "bridge",
            widen=chosen.widen,
            threshold=chosen.threshold,
            branches=chosen.branches,
            beam=chosen.beam,
            most=seeds.most,
            shortest=seeds.shortest,
        )
        return tracknet.TrackNet(shape, self.config.model.hidden, self.config.model.layers)

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Loss]:
        """Two losses, each with its own optimiser: the ellipse around true next hits, and ghosts among all steps."""
        from clew.recipes.tracking import tracknet

        outputs = self.forward(model, batch)
        return {
            "ellipse": tracknet.ellipse_loss(outputs, batch, self.config.model.alpha),
            "ghosts": tracknet.ghost_loss(outputs, batch),
        }

    def optimizers(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        own = dict(model.named_parameters())
        return {
            "ellipse": [each for name, each in own.items() if not name.startswith("ghosts.")],
            "ghosts": [each for name, each in own.items() if name.startswith("ghosts.")],
        }

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """Both sums over the number of steps: one figure to follow in validation."""
        from clew.recipes.tracking import tracknet

        ellipse = tracknet.ellipse_loss(outputs, batch, self.config.model.alpha)
        ghosts = tracknet.ghost_loss(outputs, batch)
        return Loss(ellipse.total + ghosts.total, ghosts.weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`found`: the track each hit was given, counted from 0 in each event; `score`: that of each step."""
        like = samples.ragged("x")
        members, length = outputs["members"].astype(np.int64), outputs["length"].astype(np.int64)
        hits = members + like.offsets[outputs["member_event"].astype(np.int64)]
        owner = np.repeat(np.arange(len(length)), length)
        found = tracks.from_candidates(hits, owner, outputs["score"].astype(np.float64), len(like.values))
        return Table(
            {"found": tracks.in_event(like, found), "score": samples.ragged("step").share(sigmoid(outputs["logit"]))}
        )

    def details(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> dict[str, metrics.Metric]:
        """Of steps `f1` and `edge_auc`; of ellipses how many hold the true hit, and their area."""
        label = samples.ragged("step_label")
        weights, true = samples.weights[label.events], label.values > 0
        of_steps = edge_tallies(objects.ragged("score").values, true, weights)
        ellipse, off = outputs["ellipse"][true].astype(np.float64), outputs["off"][true]
        radii = ellipse[:, 2:] * self.config.tracks.widen
        inside = (((off - ellipse[:, :2]) / radii) ** 2).sum(axis=1) <= 1
        area = np.pi * radii.prod(axis=1) * weights[true]
        return {
            **of_steps,
            "in_ellipse": metrics.Ratio.of(inside, weights[true]),
            "ellipse_area": metrics.Mean(float(area.sum()), float(weights[true].sum())),
        }
