"""Triplet graphs of the whole detector: nodes are pairs of hits, edges are triplets that may belong to one track.

Pairs are found on linked layers (`layers.py`). A triplet joins two pairs that share a hit, have the same sign and size
of curvature and the same dz/ds within the errors of positions and multiple scattering. Only pairs and triplets on a
chain of `min_hits` hits remain. All this is far cheaper than a network, and removes most false pairs.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from clew import Ragged, Section, Table
from clew.errors import DataError
from clew.recipes.tracking import layers
from clew.recipes.tracking.acts_chain import FIELD, RESOLUTION
from clew.recipes.tracking.geometry import Floats, Ints, Positive
from clew.recipes.tracking.truth import TrueTracks

CURVATURE_GEV = 0.299792458e-3 * FIELD
"""pT (GeV) times curvature (1/mm)."""
SCATTER = 4.0
"""rad per 1/mm: the angle of multiple scattering in a layer of 0.03 radiation lengths, times pT / CURVATURE_GEV."""
DISC_ACROSS = 0.04
"""rad by which the long axis of a strip in a disc may differ from the radial direction."""

PULL_UNIT = 2.0
"""Standard deviations that are scaled to 1 in features."""
NODE_FEATURES = 13
EDGE_FEATURES = 9


class TripletCuts(Section):
    """Cuts of the triplet graph."""

    pt_min: Positive = 0.7
    """Smallest pT of a pair, GeV: of the circle through the beam line and the two hits."""
    z0_cut: Positive = 250.0
    """Largest |z| at which the line through the two hits crosses the beam, mm. Vertices spread by 50 mm."""
    pull_cut: Positive = 5.0
    """Largest change of curvature and dz/ds (both in quadrature) at the middle hit of a triplet, in standard
    deviations."""
    min_hits: Annotated[int, Field(ge=3)] = 5
    """Smallest number of hits, each on another layer, of a chain of triplets. Pairs that are on no such chain are
    removed."""
    gaps: Literal["skip", "bridge"] = "skip"
    """Which layers are linked: `skip` links those that follow each other on a track, `bridge` also those with one
    between them, for detectors that lose hits."""
    max_per_event: Annotated[int, Field(ge=1)] = 4_000_000
    """Largest number of pairs, and of triplets, in one event. More are an error."""


class EventGraph(NamedTuple):
    """The graph of one event. Hits are numbered in the event, pairs in the graph."""

    pairs: Ints
    """Inner and outer hit (pairs, 2)."""
    shape: Floats
    """Curvature, dz/ds, z at the beam line, chord of each pair (pairs, 4)."""
    triplets: Ints
    """Inner and outer pair (triplets, 2)."""
    pulls: Floats
    """Changes of curvature and of dz/ds in standard deviations (triplets, 2)."""
    before: Ints
    """Pairs of the longest chain that ends with each pair."""
    after: Ints
    """Pairs of the longest chain that starts with each pair."""


def hit_errors(station: Ints, radius: Floats) -> Floats:
    """Errors of each hit (hits, 3): across the track (mm), of z (mm), and of z per unit of dz/ds (mm)."""
    volumes = np.array([RESOLUTION[volume] for volume, _ in layers.STATIONS])
    short, long = volumes[station].T
    barrel = layers.IN_BARREL[station]
    across = np.where(barrel, short, np.hypot(short, DISC_ACROSS * long))
    return np.stack([across, np.where(barrel, long, 0.0), np.where(barrel, 0.0, long)], axis=1)


def build(events: Table, cuts: TripletCuts) -> Table:
    """Add the graph of every event to its hits.

    The new columns are `node` (pairs, NODE_FEATURES) and `node_hits` (pairs, 2): features and the two hits; `link`
    (triplets, 2): the two pairs; `edge` (triplets, EDGE_FEATURES): their features; `label` (triplets): 1 if the three
    hits follow each other on one track.

    Args:
        events: Hits with the columns x, y, z and `station` (a number of `layers.STATIONS`).
        cuts: The cuts.

    Raises:
        DataError: An event has more pairs or triplets than `cuts.max_per_event`, or an unknown station.
    """
    graphs = [event_graph(*_event_hits(events, number), cuts) for number in range(len(events))]
    sizes = [len(graph.pairs) for graph in graphs]
    node_hits = Ragged.from_lengths(np.concatenate([graph.pairs for graph in graphs]).astype(np.int32), sizes)
    links = np.concatenate([graph.triplets for graph in graphs]).astype(np.int32)
    link = Ragged.from_lengths(links, [len(graph.triplets) for graph in graphs])
    columns = {
        "node_hits": node_hits,
        "node": node_hits.share(_node_features(events, graphs, node_hits)),
        "link": link,
        "edge": link.share(np.concatenate([_edge_features(graph) for graph in graphs])),
    }
    samples = events.join(columns, index_of={"node_hits": "x", "link": "node_hits"})
    triples = triplet_hits(samples)
    truth = TrueTracks.of(events)
    label = truth.follows(triples[:, 0], triples[:, 1]) & truth.follows(triples[:, 1], triples[:, 2])
    return samples.join({"label": link.share(label.astype(np.uint8))})


def triplet_hits(samples: Table) -> Ints:
    """The three hits of each triplet, numbered through the table (triplets, 3)."""
    link, node_hits = samples.ragged("link"), samples.ragged("node_hits")
    pairs = node_hits.values.astype(np.int64) + samples.ragged("x").offsets[node_hits.events][:, None]
    rows = link.values.astype(np.int64) + node_hits.offsets[link.events][:, None]
    return np.concatenate([pairs[rows[:, 0]], pairs[rows[:, 1], 1:]], axis=1)


def _event_hits(events: Table, number: int) -> tuple[Floats, Ints, int]:
    x, y, z = (events.ragged(name)[number].astype(np.float64) for name in "xyz")
    station = events.ragged("station")[number].astype(np.int64)
    name = int(events.fixed("event")[number]) if "event" in events else number
    if len(station) and not (station.min() >= 0 and station.max() < len(layers.STATIONS)):
        raise DataError(f"event {name}: a hit has a station that the GenericDetector does not have")
    return np.stack([np.arctan2(y, x), np.hypot(x, y), z], axis=1), station, name


def event_graph(places: Floats, station: Ints, name: int, cuts: TripletCuts) -> EventGraph:
    """The graph of one event.

    Args:
        places: phi (rad), r and z (mm) of each hit (hits, 3).
        station: The station of each hit.
        name: Number of the event, for error messages.
        cuts: The cuts.
    """
    from clew.recipes.tracking import triplet_kernels  # numba is imported where it is needed

    order = np.lexsort((places[:, 0], station))
    hits, ordered = np.ascontiguousarray(places[order]), station[order]
    pairs, shape = _pairs(hits, ordered, name, cuts)
    triplets, pulls = _triplets(pairs, shape, hits, ordered, name, cuts)
    before, after = np.ones(len(pairs), dtype=np.int64), np.ones(len(pairs), dtype=np.int64)
    rank = np.argsort(ordered[pairs[triplets[:, 0], 1]], kind="stable")
    triplet_kernels.chain_lengths(triplets, rank, before, after)
    long_enough = before[triplets[:, 0]] + after[triplets[:, 1]] >= cuts.min_hits - 1
    triplets, pulls = triplets[long_enough], pulls[long_enough]
    used, number = np.unique(triplets, return_inverse=True)
    return EventGraph(order[pairs[used]], shape[used], number.reshape(-1, 2), pulls, before[used], after[used])


def _pairs(hits: Floats, station: Ints, name: int, cuts: TripletCuts) -> tuple[Ints, Floats]:
    from clew.recipes.tracking import triplet_kernels  # numba is imported where it is needed

    links = layers.layer_links(bridged=cuts.gaps == "bridge")
    first = np.searchsorted(station, np.arange(len(layers.STATIONS) + 1))
    limits = np.array([CURVATURE_GEV / cuts.pt_min, cuts.z0_cut])
    pairs, shape = np.empty((cuts.max_per_event, 2), np.int64), np.empty((cuts.max_per_event, 4))
    count = triplet_kernels.find_pairs(
        hits, first, links.stations, links.slopes, layers.IN_BARREL, limits, pairs, shape
    )
    _check_count(count, "pairs", "pt_min or z0_cut", len(hits), name, cuts)
    return pairs[:count].copy(), shape[:count].copy()


def _triplets(
    pairs: Ints, shape: Floats, hits: Floats, station: Ints, name: int, cuts: TripletCuts
) -> tuple[Ints, Floats]:
    from clew.recipes.tracking import triplet_kernels  # numba is imported where it is needed

    order = np.argsort(pairs[:, 0], kind="stable")
    begin = np.searchsorted(pairs[order, 0], np.arange(len(hits) + 1))
    triplets, pulls = np.empty((cuts.max_per_event, 2), np.int64), np.empty((cuts.max_per_event, 2))
    errors = hit_errors(station, hits[:, 1])
    count = triplet_kernels.find_triplets(
        pairs, shape, begin, order, hits, errors, SCATTER, cuts.pull_cut**2, triplets, pulls
    )
    _check_count(count, "triplets", "pull_cut", len(hits), name, cuts)
    return triplets[:count].copy(), pulls[:count].copy()


def _check_count(count: int, items: str, setting: str, hits: int, name: int, cuts: TripletCuts) -> None:
    if count > cuts.max_per_event:
        raise DataError(
            f"event {name}: {hits:,} hits give {count:,} {items}, more than {cuts.max_per_event:,}; "
            f"tighten triplets.{setting}, split it into sectors, or raise triplets.max_per_event"
        )


def _node_features(events: Table, graphs: list[EventGraph], node_hits: Ragged) -> Floats:
    """Features of pairs, of order 1: shape, positions of both hits, kinds of layers, lengths of chains."""
    rows = node_hits.values.astype(np.int64) + events.ragged("x").offsets[node_hits.events][:, None]
    x, y, z = (events.ragged(name).values.astype(np.float64) for name in "xyz")
    radius, station = np.hypot(x, y)[rows], events.ragged("station").values.astype(np.int64)[rows]
    curvature, slope, z0, chord = np.concatenate([graph.shape for graph in graphs]).T
    before, after = (np.concatenate([getattr(graph, name) for graph in graphs]) for name in ("before", "after"))
    barrel = layers.IN_BARREL[station]
    features = [
        curvature * 1e3,
        np.abs(curvature) * 1e3,
        np.arcsinh(slope) / 2,
        np.abs(np.arcsinh(slope)) / 2,
        z0 / 100,
        np.log(chord / 100),
        radius[:, 0] / 500 - 1,
        radius[:, 1] / 500 - 1,
        np.abs(z[rows[:, 1]]) / 1500,
        barrel[:, 0],
        barrel[:, 1],
        before / 5 - 1,
        after / 5 - 1,
    ]
    return np.stack(features, axis=1).astype(np.float32)


def _edge_features(graph: EventGraph) -> Floats:
    """Features of triplets, of order 1: pulls, unscaled changes of the shape, and lengths of chains."""
    inner, outer = graph.triplets[:, 0], graph.triplets[:, 1]
    change = graph.shape[outer] - graph.shape[inner]
    pulls = graph.pulls / PULL_UNIT
    features = [
        pulls[:, 0],
        pulls[:, 1],
        np.abs(pulls[:, 0]),
        np.abs(pulls[:, 1]),
        change[:, 0] * 1e4,
        np.arcsinh(change[:, 1] * 30),
        np.arcsinh(change[:, 2] / 3),
        (graph.before[inner] + graph.after[outer]) / 5 - 2,
        np.sign(graph.shape[inner, 0] * graph.shape[outer, 0]),
    ]
    return np.stack(features, axis=1).astype(np.float32)
