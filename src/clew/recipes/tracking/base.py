"""What the three tracking recipes share: reading, generating, judging by tracks, event displays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clew import Recipe, Table, figure, readers
from clew.data.transforms import Transform
from clew.errors import ConfigError
from clew.metrics import F1, Metric, Roc
from clew.recipes.tracking import acts, display, graphfile, matching, simulate, simulate_bmn, trackml, tracks
from clew.recipes.tracking import metrics as judging
from clew.recipes.tracking.geometry import Ints, in_mm
from clew.recipes.tracking.settings import Finder
from clew.recipes.tracking.truth import number

EVENTS_A_FILE = 256
LAYOUTS = {"bmn": "bmn"}
"""How a detector's text is laid out, where it is not as that of BES-III."""
NARROW = {
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
"""The columns of hits that samples keep, and how small."""


class TrackFinder(Recipe):
    """Hits in, tracks out. A subclass says how hits become samples, and what each hit was given."""

    Config = Finder

    def read(self, path: str) -> Iterable[Table]:
        """Text in the layout of the detector, TrackML and ACTS events, TrackML graphs; others with the same columns."""
        kind = readers.kind_of(path)
        if kind == "text":
            return readers.read(path, layout=LAYOUTS.get(self.config.detector.name, "bes3"))
        if kind == "trackml" or (kind == "hdf5" and self.config.detector.name == "acts"):
            return trackml.read(path, kind)
        return graphfile.read(path) if graphfile.holds_graphs(path) else super().read(path)

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Events of the detector that `detector.name` names: text, or HDF5 from ACTS.

        Raises:
            ConfigError: it has no generator.
            RecipeError: ACTS events, and pyacts is not installed.
        """
        name = self.config.detector.name
        if name == "acts":
            yield from acts.write_acts(events, seed, folder, first=first, gun=self.config.gun)
            return
        if name not in GENERATORS:
            raise ConfigError(f"no generator for the detector '{name}'; there are {', '.join(GENERATORS)}, acts")
        for start in range(first, first + events, EVENTS_A_FILE):
            count = min(EVENTS_A_FILE, first + events - start)
            path = folder / f"synthetic-{name}-seed{seed}-{start // EVENTS_A_FILE:05d}.txt"
            GENERATORS[name](path, count, seed, start)
            yield path, count

    def found(self, samples: Table, objects: Table) -> Ints:
        """The track each hit was given, counted through the table; -1 for none."""
        return tracks.in_table(objects.ragged("found"))

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        own, match = self.details(samples, outputs, objects), matching.match(samples, self.found(samples, objects))
        return judging.tallies(samples, match, self.config.detector, self.config.judging, own)

    def details(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> dict[str, Metric]:
        """Figures of what tracks are made of: of edges at `score` against `label`."""
        label = samples.ragged("label")
        return edge_tallies(objects.ragged("score").values, label.values > 0, samples.weights[label.events])

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        found, detector, wanted = self.found(samples, objects), self.config.detector, self.config.judging
        match = matching.match(samples, found)
        mask = judging.choose(samples, match, detector, wanted).mask
        return display.events(samples, found, match.shown(wanted.shown or "exact"), detector, mask)


def hits_of(events: Table) -> Table:
    """The events with coordinates in mm, without the columns of hits that no sample needs."""
    unused = [name for name in UNUSED if name in events]
    return in_mm(events.drop(*unused) if unused else events)


def narrowed(samples: Table) -> Table:
    """Hits in as few bytes as their precision needs; builders have used the wide ones.

    Particle ids too long for 32 bits (TrackML's) are replaced by numbers within the event.
    """
    columns = {name: samples.ragged(name) for name in NARROW if name in samples}
    track = columns["track"]
    if np.abs(track.values).max(initial=0) >= 1 << 31:
        columns["track"] = track.share(number(samples))
    return samples.join({name: column.share(column.values.astype(NARROW[name])) for name, column in columns.items()})


def edge_tallies(scores: Any, label: Any, weights: Any) -> dict[str, Metric]:
    """How well edges are told apart: `f1` at a score of 0.5, and the ROC curve."""
    return {"f1": F1.of(scores > 0.5, label, weights), "edge_auc": Roc.of(scores, label, weights)}


def sigmoid(logits: Any) -> Any:
    """Scores from logits, without overflow."""
    return 0.5 * (1 + np.tanh(np.asarray(logits, dtype=np.float64) / 2))


def _write_bes3(path: Path, count: int, seed: int, first: int) -> None:
    simulate.write_text(path, simulate.simulate(count, seed, first))


def _write_bmn(path: Path, count: int, seed: int, first: int) -> None:
    simulate_bmn.write_text(path, simulate_bmn.simulate(count, seed, first))


GENERATORS = {"bes3": _write_bes3, "bmn": _write_bmn}
UNUSED = ("det", "vx", "vy", "vz", "hit_id", "volume_id", "layer_id", "module_id", "tx", "ty", "tz")
