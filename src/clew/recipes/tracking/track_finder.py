"""The base class of the three tracking recipes: reading, generation, metrics of tracks, event displays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clew import Recipe, Table, figure, readers
from clew.data.transforms import Transform
from clew.errors import ConfigError
from clew.metrics import F1, Metric, Roc
from clew.recipes.tracking import acts, display, graphfile, matching, simulate_bes3, simulate_bmn, trackml, tracks
from clew.recipes.tracking import metrics as track_metrics
from clew.recipes.tracking.geometry import Ints, in_mm
from clew.recipes.tracking.settings import TrackFinderConfig
from clew.recipes.tracking.truth import true_track_numbers

EVENTS_PER_FILE = 256
LAYOUTS = {"bmn": "bmn"}
"""Layout of text files by detector, for detectors whose layout is not that of BES-III."""
COMPACT_TYPES = {
    "x": np.float32,
    "y": np.float32,
    "z": np.float32,
    "station": np.int16,
    "track": np.int32,
    "px": np.float32,
    "py": np.float32,
    "pz": np.float32,
    "hit_weight": np.float32,
}
"""The columns of hits that samples keep, and their types on disk."""


class TrackFinder(Recipe):
    """Base of recipes that find tracks. A subclass turns hits into samples, and outputs into the track of each hit."""

    Config = TrackFinderConfig

    def read(self, path: str) -> Iterable[Table]:
        """Read text in the layout of the detector, TrackML and ACTS events, TrackML graphs, or tables with such
        columns."""
        kind = readers.kind_of(path)
        if kind == "text":
            return readers.read(path, layout=LAYOUTS.get(self.config.detector.name, "bes3"))
        if kind == "trackml" or (kind == "hdf5" and self.config.detector.name == "acts"):
            return trackml.read(path, kind)
        return graphfile.read(path) if graphfile.holds_graphs(path) else super().read(path)

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Write events of the detector `detector.name`: text files, or HDF5 files for ACTS.

        Raises:
            ConfigError: The detector has no generator.
            RecipeError: ACTS events need pyacts, which is not installed.
        """
        name = self.config.detector.name
        if name == "acts":
            yield from acts.write_acts(events, seed, folder, first=first, gun=self.config.gun)
            return
        if name not in GENERATORS:
            raise ConfigError(f"no generator for the detector '{name}'; there are {', '.join(GENERATORS)}, acts")
        for start in range(first, first + events, EVENTS_PER_FILE):
            count = min(EVENTS_PER_FILE, first + events - start)
            path = folder / f"synthetic-{name}-seed{seed}-{start // EVENTS_PER_FILE:05d}.txt"
            GENERATORS[name](path, count, seed, start)
            yield path, count

    def found_tracks(self, samples: Table, objects: Table) -> Ints:
        """The found track of each hit, numbered through the table; -1 for none."""
        return tracks.number_in_table(objects.ragged("found_track"))

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        details, match = (
            self.detail_metrics(samples, outputs, objects),
            matching.match(samples, self.found_tracks(samples, objects)),
        )
        return track_metrics.make_metrics(samples, match, self.config.detector, self.config.metrics, details)

    def detail_metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> dict[str, Metric]:
        """Metrics of the parts that tracks are built from. The default: edges, by `score` and `label`."""
        label = samples.ragged("label")
        return edge_metrics(objects.ragged("score").values, label.values > 0, samples.weights[label.events])

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        found_tracks, detector, config = self.found_tracks(samples, objects), self.config.detector, self.config.metrics
        match = matching.match(samples, found_tracks)
        mask = track_metrics.select_tracks(samples, match, detector, config).mask
        return display.events(samples, found_tracks, match.by_criterion(config.plot_match or "exact"), detector, mask)


def hit_columns(events: Table) -> Table:
    """Events with coordinates in mm, without the columns of hits that no sample needs."""
    unused = [name for name in UNUSED_COLUMNS if name in events]
    return in_mm(events.drop(*unused) if unused else events)


def compact(samples: Table) -> Table:
    """Samples with hits in compact types. Call it last: graphs are built from hits in full precision.

    Particle ids that do not fit into 32 bits (TrackML) are replaced by numbers.
    """
    columns = {name: samples.ragged(name) for name in COMPACT_TYPES if name in samples}
    track = columns["track"]
    if np.abs(track.values).max(initial=0) >= 1 << 31:
        columns["track"] = track.share(true_track_numbers(samples))
    return samples.join(
        {name: column.share(column.values.astype(COMPACT_TYPES[name])) for name, column in columns.items()}
    )


def edge_metrics(scores: Any, label: Any, weights: Any) -> dict[str, Metric]:
    """How well true and false edges are separated: `f1` at a score of 0.5, and the ROC curve."""
    return {"f1": F1.of(scores > 0.5, label, weights), "edge_auc": Roc.of(scores, label, weights)}


def sigmoid(logits: Any) -> Any:
    """Scores from logits, without overflow."""
    return 0.5 * (1 + np.tanh(np.asarray(logits, dtype=np.float64) / 2))


def _write_bes3(path: Path, count: int, seed: int, first: int) -> None:
    simulate_bes3.write_text(path, simulate_bes3.simulate(count, seed, first))


def _write_bmn(path: Path, count: int, seed: int, first: int) -> None:
    simulate_bmn.write_text(path, simulate_bmn.simulate(count, seed, first))


GENERATORS = {"bes3": _write_bes3, "bmn": _write_bmn}
UNUSED_COLUMNS = ("det", "vx", "vy", "vz", "hit_id", "volume_id", "layer_id", "module_id", "tx", "ty", "tz")
