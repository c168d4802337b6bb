"""Hit graphs: nodes are hits, edges join hits of neighbouring stations that may belong to one track from the beam."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from clew import Ragged, Section, Table
from clew.recipes.tracking.geometry import Bools, Detector, Floats, HitCoordinates, Ints, Positive, hit_coordinates
from clew.recipes.tracking.pairs import PairCut, pairs_between
from clew.recipes.tracking.truth import TrueTracks

END_MARGIN = 20.0
"""Distance in mm from the end of a cylinder within which a track may have missed it."""


class EdgeCuts(Section):
    """Cuts of the hit graph. All are cuts on the straight line (in r-phi and r-z) through the two hits."""

    turn_cut: Positive = 0.005
    """Largest |dphi/dr| between cylinders, rad per mm."""
    bend_cut: Positive = 0.7
    """Largest |dx/dz| between planes."""
    slope_cut: Positive = 3.0
    """Largest |dz/dr| between cylinders, |dy/dz| between planes."""
    z0_cut: Positive = 80.0
    """Largest |z| at which the line crosses the beam, mm (cylinders)."""
    y0_cut: Positive = 25.0
    """Largest |y| of the line at the target, mm (planes)."""
    max_per_event: Annotated[int, Field(ge=1)] = 2_000_000
    """Largest number of edges between two stations in one event. More are an error."""


def build(events: Table, detector: Detector, cuts: EdgeCuts) -> Table:
    """Add the graph of every event to its hits.

    The new columns are `node` (hits, 3): w, u, v, scaled; `link` (edges, 2): inner and outer hit; `edge` (edges, 4):
    the features of each edge; `label` (edges): 1 if the outer hit is the next hit on the track of the inner one.

    Raises:
        DataError: A hit has an unknown station, or an event has more edges than `cuts.max_per_event`.
    """
    hits = hit_coordinates(events, detector)
    pairs = np.concatenate([linked_pairs(hits, link, detector, cuts) for link in detector.links()])
    pairs = pairs[np.argsort(hits.event[pairs[:, 0]], kind="stable")]
    label = TrueTracks.of(events).follows(pairs[:, 0], pairs[:, 1])
    return _columns(events, hits, detector, pairs, label)


def from_links(events: Table, detector: Detector) -> Table:
    """The same columns as `build`, from edges (`link`) and labels (`label`) of the file."""
    hits, link = hit_coordinates(events, detector, check=False), events.ragged("link")
    pairs = link.values.astype(np.int64) + events.ragged("x").offsets[link.events][:, None]
    return _columns(events, hits, detector, pairs, events.ragged("label").values > 0)


def linked_pairs(
    hits: HitCoordinates, link: tuple[int, int], detector: Detector, cuts: EdgeCuts, section: str = "edges"
) -> Ints:
    """Pairs of hits between two stations that pass the cuts.

    Args:
        hits: All hits.
        link: Inner and outer station.
        detector: The detector.
        cuts: The cuts.
        section: Name of the section of `cuts` in the settings, for error messages.

    Returns:
        Hit numbers (pairs, 2), inner and outer.

    Raises:
        DataError: An event has more than `cuts.max_per_event`.
    """
    u_name, v_name = ("bend_cut", "y0_cut") if detector.planar else ("turn_cut", "z0_cut")
    u_cut: float = getattr(cuts, u_name)
    v_cut: float = getattr(cuts, v_name)
    inner_stations = range(link[0] + 1, link[1]) if detector.half_lengths and not detector.planar else ()
    bridged = next(((detector.radii[station], detector.half_lengths[station]) for station in inner_stations), None)

    def near(a: Ints, b: Ints) -> Bools:
        dw = hits.delta_w(a, b)
        slope = (hits.v[b] - hits.v[a]) / dw
        beam = hits.v[a] - slope * hits.w[a]
        turn = np.abs(hits.delta_u(a, b)) < u_cut * np.abs(dw)
        missed = np.abs(beam + slope * bridged[0]) > bridged[1] - END_MARGIN if bridged else True
        return np.asarray(turn & (np.abs(slope) < cuts.slope_cut) & (np.abs(beam) < v_cut) & missed)

    inner, outer = (hits.w[hits.station == station] for station in link)
    max_depth = float(outer.max() - inner.min()) if len(inner) and len(outer) else 0.0
    window = u_cut * abs(max_depth)
    window = window if detector.planar else min(window, 3.14159)
    names = (f"{section}.{u_name}", f"{section}.{v_name}")
    return pairs_between(
        hits, link, PairCut(window, near, names, cuts.max_per_event, f"{section}.max_per_event", section)
    )


def feature_scales(detector: Detector) -> tuple[float, float, float]:
    """Factors that bring du/dw, dv/dw and the position at the beam to order 1."""
    w, _, v = detector.scales
    return (5.0 if detector.planar else 4 * w), 1.0, 8 / v


def features(hits: HitCoordinates, pairs: Ints, detector: Detector) -> Floats:
    """Features of each pair (pairs, 4), of order 1: du/dw, dv/dw, v at the beam, and the difference in depth."""
    a, b = pairs[:, 0], pairs[:, 1]
    dw = hits.delta_w(a, b)
    slope = (hits.v[b] - hits.v[a]) / dw
    turn = hits.delta_u(a, b) / dw
    of_turn, of_slope, of_beam = feature_scales(detector)
    beam = hits.v[a] - slope * hits.w[a]
    return np.stack([turn * of_turn, slope * of_slope, beam * of_beam, dw / detector.scales[0]], axis=1)


def _columns(events: Table, hits: HitCoordinates, detector: Detector, pairs: Ints, label: Bools) -> Table:
    w, u, v = detector.scales
    middle = (detector.positions[0] + detector.positions[-1]) / 2
    x, event = events.ragged("x"), hits.event[pairs[:, 0]]
    node = np.stack([(hits.w - middle) / w, hits.u / u, hits.v / v], axis=1).astype(np.float32)
    local = (pairs - x.offsets[event][:, None]).astype(np.int32)
    link = Ragged.from_lengths(local, np.bincount(event, minlength=len(events)))
    edge_features = features(hits, pairs, detector).astype(np.float32)
    return events.join(
        {
            "node": x.share(node),
            "link": link,
            "edge": link.share(edge_features),
            "label": link.share(label.astype(np.uint8)),
        },
        index_of={"link": "x"},
    )
