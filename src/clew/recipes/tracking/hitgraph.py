"""Hit graphs: nodes are hits, edges join hits of neighbouring stations that a track from the beam could link."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from clew import Ragged, Section, Table
from clew.recipes.tracking.geometry import Bools, Detector, Floats, Ints, Places, Positive, places
from clew.recipes.tracking.pairs import Cut, between
from clew.recipes.tracking.truth import Truth

EDGE = 20.0
"""mm from the end of a cylinder within which a track may have missed it."""


class Edges(Section):
    """Cuts of the hit graph, all on the straight line (in r-phi and r-z) through the two hits."""

    turn_cut: Positive = 0.005
    """rad per mm: largest |dphi/dr| between cylinders."""
    bend_cut: Positive = 0.7
    """Largest |dx/dz| between planes."""
    slope_cut: Positive = 3.0
    """Largest |dz/dr| between cylinders, |dy/dz| between planes."""
    z0_cut: Positive = 80.0
    """mm: how far from the origin the line may meet the beam, for cylinders."""
    y0_cut: Positive = 25.0
    """mm: how far from the beam the line may meet the target, for planes."""
    most: Annotated[int, Field(ge=1)] = 2_000_000
    """Edges between two stations that one event may have: an error beyond."""


def build(events: Table, detector: Detector, cuts: Edges) -> Table:
    """The graph of every event, beside its hits.

    Adds `node` (hits, 3): depth, bending and straight coordinate, scaled; `link` (edges, 2): inner and outer hit;
    `edge` (edges, 4): what the network sees of each; `label` (edges): 1 where the outer hit is the next of the inner
    one's track.

    Raises:
        DataError: a station that the detector does not have, or more edges than `cuts.most`.
    """
    hits = places(events, detector)
    pairs = np.concatenate([linked(hits, link, detector, cuts) for link in detector.links()])
    pairs = pairs[np.argsort(hits.event[pairs[:, 0]], kind="stable")]
    label = Truth.of(events).follows(pairs[:, 0], pairs[:, 1])
    return _columns(events, hits, detector, pairs, label)


def given(events: Table, detector: Detector) -> Table:
    """The same columns where the file brings its own edges (`link`) and their truth (`label`)."""
    hits, link = places(events, detector, check=False), events.ragged("link")
    pairs = link.values.astype(np.int64) + events.ragged("x").offsets[link.events][:, None]
    return _columns(events, hits, detector, pairs, events.ragged("label").values > 0)


def linked(hits: Places, link: tuple[int, int], detector: Detector, cuts: Edges, section: str = "edges") -> Ints:
    """Hit numbers (pairs, 2) between two stations that pass the cuts; `section` is what they are called in settings.

    Raises:
        DataError: more than `cuts.most` in one event.
    """
    u_name, v_name = ("bend_cut", "y0_cut") if detector.planar else ("turn_cut", "z0_cut")
    u_cut: float = getattr(cuts, u_name)
    v_cut: float = getattr(cuts, v_name)
    between_them = range(link[0] + 1, link[1]) if detector.half_lengths and not detector.planar else ()
    jumped = next(((detector.radii[station], detector.half_lengths[station]) for station in between_them), None)

    def near(a: Ints, b: Ints) -> Bools:
        dw = hits.deeper(a, b)
        slope = (hits.v[b] - hits.v[a]) / dw
        beam = hits.v[a] - slope * hits.w[a]
        turn = np.abs(hits.across(a, b)) < u_cut * np.abs(dw)
        missed = np.abs(beam + slope * jumped[0]) > jumped[1] - EDGE if jumped else True
        return np.asarray(turn & (np.abs(slope) < cuts.slope_cut) & (np.abs(beam) < v_cut) & missed)

    inner, outer = (hits.w[hits.station == station] for station in link)
    deepest = float(outer.max() - inner.min()) if len(inner) and len(outer) else 0.0
    window = u_cut * abs(deepest)
    window = window if detector.planar else min(window, 3.14159)
    names = (f"{section}.{u_name}", f"{section}.{v_name}")
    return between(hits, link, Cut(window, near, names, cuts.most, f"{section}.most", section))


def gains(detector: Detector) -> tuple[float, float, float]:
    """What brings turn, slope and place at the beam to order 1."""
    w, _, v = detector.scales
    return (5.0 if detector.planar else 4 * w), 1.0, 8 / v


def features(hits: Places, pairs: Ints, detector: Detector) -> Floats:
    """Of each pair: how it turns, its slope, where it meets the beam, how long it is; all of order 1."""
    a, b = pairs[:, 0], pairs[:, 1]
    dw = hits.deeper(a, b)
    slope = (hits.v[b] - hits.v[a]) / dw
    turn = hits.across(a, b) / dw
    of_turn, of_slope, of_beam = gains(detector)
    beam = hits.v[a] - slope * hits.w[a]
    return np.stack([turn * of_turn, slope * of_slope, beam * of_beam, dw / detector.scales[0]], axis=1)


def _columns(events: Table, hits: Places, detector: Detector, pairs: Ints, label: Bools) -> Table:
    w, u, v = detector.scales
    middle = (detector.positions[0] + detector.positions[-1]) / 2
    like, event = events.ragged("x"), hits.event[pairs[:, 0]]
    node = np.stack([(hits.w - middle) / w, hits.u / u, hits.v / v], axis=1).astype(np.float32)
    local = (pairs - like.offsets[event][:, None]).astype(np.int32)
    link = Ragged.from_lengths(local, np.bincount(event, minlength=len(events)))
    seen = features(hits, pairs, detector).astype(np.float32)
    return events.join(
        {
            "node": like.share(node),
            "link": link,
            "edge": link.share(seen),
            "label": link.share(label.astype(np.uint8)),
        },
        index_of={"link": "x"},
    )
