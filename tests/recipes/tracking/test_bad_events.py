"""Faults of real files: duplicate hits, missing stations, very large events."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

from clew import Ragged, Recipe, Table
from clew.errors import DataError
from clew.recipes.tracking import HitGraph, Tracking, TrackNet
from clew.settings import load_settings
from tests.recipes.tracking import CYLINDERS, at, to_table

RECIPES = [Tracking, HitGraph, TrackNet]
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
TRACK = [at(r, 0.1, 3.0 * s, s, track=4) for s, r in enumerate(CYLINDERS.radii)]


def outputs(recipe: Recipe, samples: Table) -> dict[str, Any]:
    """The outputs of an untrained network."""
    from clew.data.dataset.batch import to_batch

    model = recipe.model().eval()
    output = model(to_batch(samples, recipe.columns))
    named = output if isinstance(output, dict) else {"output": output}
    return {name: value.detach().float().numpy() for name, value in named.items()}


def evaluated(recipe: Recipe, events: Table) -> dict[str, Any]:
    samples = recipe.prepare(events)
    network_outputs = outputs(recipe, samples)
    objects = recipe.reconstruct(samples, network_outputs)
    assert recipe.display(samples, network_outputs, objects)
    return dict(recipe.metrics(samples, network_outputs, objects))


@each_recipe
@pytest.mark.parametrize("station", [-1, 3, 100_000])
def test_a_station_out_of_the_geometry_is_named(recipe: type[Recipe], station: int) -> None:
    events = to_table([TRACK])
    wrong = events.join({"station": events.ragged("x").share(np.array([0, 1, station]))})
    with pytest.raises(DataError, match=f"a hit has station {station}, the detector has 0 to 2"):
        recipe().prepare(wrong)


@each_recipe
def test_duplicate_hits_are_separate_hits(recipe: type[Recipe]) -> None:
    once, twice = recipe().prepare(to_table([TRACK])), recipe().prepare(to_table([[*TRACK, *TRACK]]))
    label = "step_label" if recipe is TrackNet else "label"
    assert once.ragged(label).values.sum() >= 1
    assert len(twice.ragged(label).values) > len(once.ragged(label).values)
    assert evaluated(recipe(), to_table([[*TRACK, *TRACK]]))["efficiency"].total == 1


@each_recipe
def test_events_without_a_true_track_are_evaluated(recipe: type[Recipe]) -> None:
    noise = [hit._replace(track=-1) for hit in TRACK]
    figures = evaluated(recipe(), to_table([noise, [], noise]))
    assert np.isnan(figures["efficiency"].value)
    assert figures["event_ratio"].value == 1


@each_recipe
def test_events_without_hits_are_evaluated(recipe: type[Recipe]) -> None:
    assert evaluated(recipe(), to_table([[], []]))["efficiency"].total == 0


def monster(hits: int) -> Table:
    """One event, hits all over the detector, no track."""
    rng = np.random.default_rng(1)
    station = rng.integers(0, 3, hits)
    radius, phi = np.array(CYLINDERS.radii)[station], rng.uniform(-np.pi, np.pi, hits)
    x = Ragged.from_lengths(radius * np.cos(phi), [hits])
    rest = {"y": radius * np.sin(phi), "z": rng.uniform(-266, 266, hits), "station": station}
    return Table(
        {
            "event": [7],
            "x": x,
            **{name: x.share(values) for name, values in rest.items()},
            "track": x.share(np.full(hits, -1)),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cut"),
    [("tracking", "segments.z_cut"), ("hitgraph", "edges.z0_cut"), ("tracknet", "seeds.z0_cut")],
)
def test_100_000_hits_in_an_event_that_explode_name_the_cut(name: str, cut: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=rf"event 7: 100,000 hits give more than 2,000,000 .*; tighten {cut}, which"):
        load_settings(name).recipe.prepare(monster(100_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kB


@pytest.mark.parametrize(
    ("name", "settings", "items"),
    [
        ("tracking", ["segments.phi_cut=0.002", "segments.z_cut=30"], "node"),
        ("hitgraph", ["edges.turn_cut=0.0001", "edges.z0_cut=20"], "link"),
        (
            "tracknet",
            ["seeds.turn_cut=0.0001", "seeds.z0_cut=20", "seeds.reach_phi=0.001", "seeds.reach_z=1"],
            "prefix",
        ),
    ],
)
def test_100_000_hits_in_an_event_pass_tight_cuts(name: str, settings: list[str], items: str) -> None:
    samples = load_settings(name, settings).recipe.prepare(monster(100_000))
    assert 10_000 < len(samples.ragged(items).values) < 2_000_000


def test_a_window_of_a_whole_turn_gives_up_at_once() -> None:
    with pytest.raises(DataError, match=r"tighten segments\.phi_cut"):
        load_settings("tracking", ["segments.phi_cut=3.1"]).recipe.prepare(monster(100_000))
