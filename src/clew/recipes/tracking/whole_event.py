"""Tracks of whole events whose graphs are made and scored sector by sector: memory grows with a sector only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time

import numpy as np

from clew import Ragged, Table
from clew.recipes.tracking import chains, triplets
from clew.recipes.tracking.geometry import Floats, Ints
from clew.recipes.tracking.recipe_triplets import Triplets
from clew.recipes.tracking.sectors import sector_masks
from clew.recipes.tracking.track_finder import compact, hit_columns

Score = Callable[[Table], Floats]
"""Returns the logits of the triplets of samples."""


@dataclass
class StepTimes:
    """CPU seconds of the steps, and the largest numbers of pairs and triplets of a sample."""

    graphs: float = 0.0
    network: float = 0.0
    tracks: float = 0.0
    pairs: list[int] = field(default_factory=list)
    triplets: list[int] = field(default_factory=list)


def find_tracks(recipe: Triplets, score: Score, events: Table, times: StepTimes | None = None) -> Ragged:
    """Find the tracks of whole events, in `recipe.config.sectors` sectors.

    A triplet is scored in the sector in whose core its middle hit is. Tracks are then built from all triplets of an
    event, so a track may cross any number of sectors.

    Args:
        recipe: The recipe.
        score: The network.
        events: Hits of whole events, with `station` (see `recipe_triplets.whole_detector_hits`).
        times: Is added to, if it is set.

    Returns:
        The track of each hit, numbered from 0 in each event, -1 for none.
    """
    times = times or StepTimes()
    found = [_event_tracks(recipe, score, events.slice(number, number + 1), times) for number in range(len(events))]
    return events.ragged("x").share(np.concatenate([np.empty(0, dtype=np.int64), *found]))


def _event_tracks(recipe: Triplets, score: Score, event: Table, times: StepTimes) -> Ints:
    phi = np.arctan2(event.ragged("y").values, event.ragged("x").values).astype(np.float64)
    triples, logits = [np.empty((0, 3), dtype=np.int64)], [np.empty(0)]
    hits = hit_columns(event)
    for sector in range(recipe.config.sectors.number):
        core, near = sector_masks(phi, sector, recipe.config.sectors)
        start = process_time()
        samples = compact(triplets.build(hits.select("x", near), recipe.config.triplets))
        built = process_time()
        output = np.asarray(score(samples), dtype=np.float64)
        scored = process_time()
        times.graphs, times.network = times.graphs + built - start, times.network + scored - built
        times.pairs.append(len(samples.ragged("node").values))
        times.triplets.append(len(output))
        rows = np.flatnonzero(near)[triplets.triplet_hits(samples)]
        inside = core[rows[:, 1]]
        triples.append(rows[inside])
        logits.append(output[inside])
    start = process_time()
    found = chains.from_triplets(
        chains.HitPlaces.of(hits), np.concatenate(triples), np.concatenate(logits), recipe.config.tracks
    )
    times.tracks += process_time() - start
    return found
