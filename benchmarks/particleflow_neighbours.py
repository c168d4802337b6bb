"""How much neighbours help to classify an element: boosted trees on a tower alone, or also on the tracks there.

The events are of Pythia with 200 pile-up. The type of a track gives its class (electrons and muons are marked), so only
towers are classified. In addition to the features of the tower, the second contestant gets number, momentum and
electrons of the tracks that leave the tracker in the cell of the tower. Accuracies are over all elements of unseen
events, as in `quality_particleflow.py`. The gain is an estimate of what a network over neighbours can reach.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from clew import Table
from clew.recipes.particleflow import generator
from clew.recipes.particleflow.columns import TRACK
from clew.recipes.particleflow.detector import FIRST_TOWER, tower_index
from clew.recipes.particleflow.generator import EVENTS_PER_FILE, ParticleFlowGeneratorConfig

OWN = 5
"""Features of the tower itself: the first."""
Array = NDArray[Any]


def towers(table: Table) -> tuple[Array, Array, int]:
    """Features and classes of all towers, and how many tracks there are."""
    each = [_event(*pair) for pair in zip(table.ragged("elements"), table.ragged("targets"), strict=True)]
    features, classes, tracks = zip(*each, strict=True)
    return np.concatenate(features), np.concatenate(classes), sum(tracks)


def _event(x: Array, y: Array) -> tuple[Array, Array, int]:
    track = x[:, 0] == TRACK
    tower, other = x[~track], x[track]
    here = tower_index(tower[:, 2], np.arctan2(tower[:, 3], tower[:, 4]))
    there = tower_index(other[:, 6], np.arctan2(other[:, 7], other[:, 8]))
    counts, momentum, electrons = (
        np.bincount(there, weight, minlength=FIRST_TOWER[-1])[here]
        for weight in (np.ones(len(other)), other[:, 5], other[:, 5] * other[:, 11])
    )
    left = (tower[:, 5] - momentum, tower[:, 6] - electrons, tower[:, 7] - momentum + electrons)
    return (
        np.column_stack([tower[:, [1, 2, 5, 6, 7]], counts, momentum, electrons, *left]),
        y[~track, 0],
        int(track.sum()),
    )


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    files = 2 if arguments.quick else 4
    tables = [
        generator.make_events(EVENTS_PER_FILE, 1, file, ParticleFlowGeneratorConfig()) for file in range(files + 1)
    ]
    learned = [towers(each) for each in tables[:-1]]
    x, y = (np.concatenate([each[place] for each in learned]) for place in (0, 1))
    features, true, tracks = towers(tables[-1])
    results = {}
    for name, columns in (("a tower alone", slice(0, OWN)), ("with the tracks at its place", slice(None))):
        trees = HistGradientBoostingClassifier(max_iter=150, learning_rate=0.15, random_state=1).fit(x[:, columns], y)
        right = int((trees.predict(features[:, columns]) == true).sum())
        results[name] = (right + tracks) / (len(true) + tracks)
        sheet.state(f"{name}: accuracy over elements", 100 * results[name], "%")
        sheet.state(f"{name}: of towers", 100 * right / len(true), "%")
    alone, more = results.values()
    sheet.state("gain by neighbours", 100 * (more - alone), "%")
    return {"events": {"learned": files * EVENTS_PER_FILE, "asked": EVENTS_PER_FILE}, "accuracy": results}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
