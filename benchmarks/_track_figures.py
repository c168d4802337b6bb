"""Counts of found and true tracks of whole events, by pT and eta: the same for a network and for a Kalman filter.

A particle counts if its pT is at least PT_MIN, it has HITS_MIN hits and |eta| < ETA_MAX. A found track counts if a
circle and a line fitted to its hits pass the same cuts; it may be of any particle. Definitions:

- found at 50 (75) %: a found track whose hits are, for at least 50 (75) %, hits of the particle, and that has at least
  this share of the hits of the particle (`matching.Match`);
- pure: a found track that matches a particle so, at 50 %;
- fake: less than half of the hits of a found track belong to one particle;
- impure: less than three quarters of them do;
- duplicate: the particle that most hits of a found track belong to has another found track, with more of its hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table
from clew.recipes.tracking import matching

PT_MIN, HITS_MIN, ETA_MAX, FIELD = 1.0, 6, 3.0, 2.0
PT_BINS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)
ETA_BINS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
RATES = ("efficiency_50", "efficiency_75", "purity", "fake", "impure", "duplicate")
PER_PARTICLE = RATES[:2]
Array = NDArray[Any]
Counts = dict[str, list[list[int]]]
"""By name of a rate and variable (`fake pt`): passed and all, for each bin."""


def count(events: Table, track: Array, hit: Array) -> Counts:
    """Counts of some events.

    Args:
        events: Hits with momenta (`whole_detector_hits`).
        track: Numbers of found tracks, one entry per track and hit, numbered through the table.
        hit: The hit of each entry, numbered through the table. No entry is repeated.
    """
    match = matching.match_lists(events, track, hit)
    particles = _selected(*matching.true_kinematics(events, match.true_of_hit), match.true_hits)
    fake, impure, duplicate = _fakes(match.true_of_hit[hit], track)
    found = _selected(*_fitted(events, track, hit), np.bincount(track, minlength=len(fake)))
    passed = {
        "efficiency_50": match.true_majority[0],
        "efficiency_75": match.true_majority[1],
        "purity": match.found_majority[0],
        "fake": fake,
        "impure": impure,
        "duplicate": duplicate,
    }
    counts: Counts = {}
    for rate, mask in passed.items():
        selected, variables = particles if rate in PER_PARTICLE else found
        for name, (values, bins) in variables.items():
            place = np.digitize(values[selected], bins) - 1
            pairs = [[int(mask[selected][place == b].sum()), int((place == b).sum())] for b in range(len(bins) - 1)]
            counts[f"{rate} {name}"] = pairs
    return counts


def add(counts: Sequence[Counts]) -> Counts:
    """The sum of the counts of several samples."""
    return {name: np.sum([each[name] for each in counts], axis=0).tolist() for name in counts[0]}


def rates(counts: Counts) -> dict[str, float]:
    """Rates over all bins."""
    totals = {rate: np.sum(counts[f"{rate} eta"], axis=0) for rate in RATES}
    return {rate: float(passed / max(every, 1)) for rate, (passed, every) in totals.items()}


def table(counts: Mapping[str, Counts], variable: str, shown: Sequence[str]) -> str:
    """A table in Markdown: one row per bin, one column per rate and finder, and the number of particles or tracks."""
    bins = PT_BINS if variable == "pt" else ETA_BINS
    columns = [(rate, finder) for rate in shown for finder in counts]
    unit = "pT, GeV" if variable == "pt" else "abs(eta)"
    lines = [f"| {unit} | " + " | ".join(f"{rate}, {finder}" for rate, finder in columns) + " |"]
    lines.append("| --- " * (len(columns) + 1) + "|")
    for row in range(len(bins) - 1):
        cells = [counts[finder][f"{rate} {variable}"][row] for rate, finder in columns]
        text = " | ".join(f"{passed / max(every, 1):.4f}" for passed, every in cells)
        lines.append(f"| {bins[row]:g} to {bins[row + 1]:g} | {text} |")
    return "\n".join(lines)


def _selected(pt: Array, theta: Array, hits: Array) -> tuple[Array, dict[str, tuple[Array, Sequence[float]]]]:
    with np.errstate(divide="ignore"):
        eta = np.abs(np.log(np.tan(np.radians(theta) / 2)))
    mask = (pt >= PT_MIN) & (hits >= HITS_MIN) & (eta < ETA_MAX)
    return mask, {"pt": (np.minimum(pt, PT_BINS[-1] - 1e-6), PT_BINS), "eta": (eta, ETA_BINS)}


def _fitted(events: Table, track: Array, hit: Array) -> tuple[Array, Array]:
    """pT and polar angle of found tracks, which may share hits, from their hits."""
    columns = {name: events.ragged(name).values[hit] for name in "xyz"}
    lengths = np.bincount(events.ragged("x").events[hit], minlength=len(events))
    order = np.argsort(events.ragged("x").events[hit], kind="stable")
    x = Ragged.from_lengths(columns["x"][order], lengths)
    hits = Table({"x": x, "y": x.share(columns["y"][order]), "z": x.share(columns["z"][order])})
    return matching.fitted_kinematics(hits, track[order], FIELD)


def _fakes(particle: Array, track: Array) -> tuple[Array, Array, Array]:
    """Which found tracks are fakes, which are impure, and which are duplicates."""
    size = np.bincount(track)
    known = particle >= 0
    rows, common = np.unique(np.stack([track[known], particle[known]], axis=1), axis=0, return_counts=True)
    order = np.lexsort((rows[:, 1], -common, rows[:, 0]))
    first = order[np.unique(rows[order, 0], return_index=True)[1]]
    owner, most = np.full(len(size), -1, dtype=np.int64), np.zeros(len(size), dtype=np.int64)
    owner[rows[first, 0]], most[rows[first, 0]] = rows[first, 1], common[first]
    fake = 2 * most < size
    real = np.flatnonzero(~fake)
    real = real[np.lexsort((real, -most[real], owner[real]))]
    again = np.append(False, np.diff(owner[real]) == 0)[: len(real)]
    duplicate = np.zeros(len(size), dtype=bool)
    duplicate[real[again]] = True
    return fake, 4 * most < 3 * size, duplicate
