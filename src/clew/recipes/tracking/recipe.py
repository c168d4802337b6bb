"""The tracking recipe: segment graphs, the GraphNet, tracks, and how good they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clew import Loss, Recipe, Table, figure, readers, tally
from clew.recipes.tracking import display, segments, tracks
from clew.recipes.tracking.settings import Settings
from clew.recipes.tracking.simulate import simulate, write_text
from clew.transforms import Transform

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch

PT_BINS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
THETA_BINS = tuple(range(20, 161, 10))
EVENTS_A_FILE = 256


class Tracking(Recipe):
    """Track finding in a cylindrical tracker, by classifying edges of segment graphs."""

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

    def read(self, path: str) -> Iterable[Table]:
        """Text in the BES-III layout; other kinds of files by their ending, with the same columns."""
        return readers.read(path, layout="bes3") if readers.kind_of(path) == "text" else super().read(path)

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def prepare(self, events: Table) -> Table:
        graphs = segments.build(events, self.config.detector, self.config.segments)
        narrow = {"x": np.float32, "y": np.float32, "z": np.float32, "station": np.int8, "track": np.int32}
        columns = {name: graphs.ragged(name) for name in narrow}
        return graphs.join({name: column.share(column.values.astype(narrow[name])) for name, column in columns.items()})

    def generate(self, events: int, seed: int, folder: Path) -> Iterator[tuple[Path, int]]:
        for first in range(0, events, EVENTS_A_FILE):
            count = min(EVENTS_A_FILE, events - first)
            path = folder / f"synthetic-bes3-seed{seed}-{first // EVENTS_A_FILE:05d}.txt"
            write_text(path, simulate(count, seed, first))
            yield path, count

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
        scores = 1 / (1 + np.exp(-outputs["output"].astype(np.float64)))
        found = tracks.in_event(samples, tracks.find(samples, scores, self.config.tracks.threshold))
        return Table({"found": samples.ragged("x").share(found), "score": samples.ragged("edge").share(scores)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, tally.Tally]:
        scores, label = objects.ragged("score").values, samples.ragged("label").values > 0
        weights = samples.weights
        edge_weights = weights[samples.ragged("edge").events]
        match = tracks.match(samples, tracks.in_table(objects.ragged("found")))
        pt, theta = tracks.kinematics(samples, match.true_of_hit, self.config.detector.field)
        purity = tally.Ratio.of(match.found_true, weights[match.found_event])
        of_track = weights[match.true_event]

        def against(x: NDArray[np.float64], bins: Sequence[float], axis: str) -> tally.Tally:
            return tally.Binned.of(x, match.true_found, bins, axis=axis, label="efficiency", weights=of_track)

        missed = np.bincount(match.true_event[~match.true_found], minlength=len(samples))
        return {
            "efficiency": tally.Ratio.of(match.true_found, of_track),
            "purity": purity,
            "ghost_rate": tally.Ratio.of(~match.found_true, weights[match.found_event]),
            "event_ratio": tally.Ratio.of(missed == 0, weights),
            "f1": tally.F1.of(scores > 0.5, label, edge_weights),
            "edge_auc": tally.Roc.of(scores, label, edge_weights),
            "efficiency_pt": against(pt, PT_BINS, "pT from the hits [GeV]"),
            "efficiency_theta": against(theta, THETA_BINS, "polar angle [degrees]"),
        }

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        return display.events(samples, tracks.in_table(objects.ragged("found")), self.config.detector)
