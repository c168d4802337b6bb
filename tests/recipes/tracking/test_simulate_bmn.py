"""Generated fixed-target events: nine planes, bent tracks, fakes where strips cross; the same seed, the same events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clew import Ragged, Table, concat, settings
from clew.errors import ConfigError
from clew.recipes.tracking import HitGraph, Tracking, TrackNet
from clew.recipes.tracking.simulate_bmn import FIELD, PLANES, Columns, plane_crossing, simulate
from tests.cli import done

BMN = ["detector.name=bmn"]


@pytest.fixture(scope="module")
def hits() -> Columns:
    return simulate(200, seed=3)


def chosen(hits: Columns, first: int, count: int) -> Columns:
    inside = (hits["event"] >= first) & (hits["event"] < first + count)
    return {name: values[inside] for name, values in hits.items()}


@pytest.mark.parametrize(("first", "count"), [(0, 200), (0, 10), (60, 20), (64, 64), (130, 1), (5, 0)])
def test_any_range_of_events_is_a_part_of_the_same_sample(hits: Columns, first: int, count: int) -> None:
    simulated, expected = simulate(count, 3, first), chosen(hits, first, count)
    for name in expected:
        np.testing.assert_array_equal(simulated[name], expected[name])


def test_another_seed_gives_other_events(hits: Columns) -> None:
    assert len(simulate(200, seed=4)["x"]) != len(hits["x"])
    with pytest.raises(ConfigError, match="must be 0 or more"):
        simulate(1, -1)


def test_hits_lie_on_nine_planes_and_some_are_fakes(hits: Columns) -> None:
    np.testing.assert_array_equal(hits["z"], np.array(PLANES)[hits["station"].astype(int)])
    assert (PLANES[0], PLANES[-1], len(PLANES)) == (123.44, 1836.68, 9)
    assert 0.1 < (hits["track"] < 0).mean() < 0.9
    assert np.unique(hits["event"]).tolist() == list(range(200))


def test_a_particle_bends_by_its_momentum_and_charge() -> None:
    one = {"px": 0.0, "py": 0.1, "pz": 2.0, "charge": 1.0, "vx": 0.0, "vy": 0.0, "vz": 0.0}
    p = {name: np.array([value, value]) for name, value in one.items()}
    p["charge"] = np.array([1.0, -1.0])
    x, y = plane_crossing(p, 1000.0)
    radius = 2.0 / (0.299792458e-3 * FIELD)
    assert x[0] == -x[1] == pytest.approx(radius - np.sqrt(radius**2 - 1000.0**2))
    assert y[0] == pytest.approx(0.05 * radius * np.arcsin(1000 / radius))


def test_a_particle_that_the_field_turns_back_is_not_seen() -> None:
    one = {"px": 0.0, "py": 0.0, "pz": 0.1, "charge": 1.0, "vx": 0.0, "vy": 0.0, "vz": 0.0}
    assert np.isnan(plane_crossing({name: np.array([value]) for name, value in one.items()}, 1800.0)[0]).all()


def test_files_are_read_back_in_mm_with_stations_counted_through(tmp_path: Path, hits: Columns) -> None:
    recipe = settings.load_settings("hitgraph", BMN).recipe
    (path, count) = next(iter(recipe.generate(20, 3, tmp_path)))
    assert (count, path.name) == (20, "synthetic-bmn-seed3-00000.txt")
    events = concat(list(recipe.read(str(path))))
    expected = chosen(hits, 0, 20)
    np.testing.assert_array_equal(events.ragged("station").values, expected["station"])
    np.testing.assert_array_equal(events.ragged("track").values, expected["track"])
    samples = recipe.prepare(events)
    np.testing.assert_allclose(samples.ragged("x").values, expected["x"], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(samples.ragged("pz").values, expected["pz"], rtol=1e-5)
    assert "vx" not in samples


def transformed(name: str, count: int) -> Table:
    recipe = settings.load_settings(name, BMN).recipe
    simulated = simulate(count, 1)
    x = Ragged.from_lengths(simulated["x"], np.bincount(simulated["event"].astype(int), minlength=count))
    whole = {n: x.share(simulated[n].astype(np.int64)) for n in ("station", "track")}
    rest = {n: x.share(simulated[n]) for n in ("y", "z", "px", "py", "pz")}
    events = Table({"event": np.arange(count), "x": x, **rest, **whole})
    for transform in recipe.transforms():
        events = transform(events)
    return recipe.prepare(events)


@pytest.mark.parametrize("name", ["tracking", "hitgraph", "tracknet"])
def test_every_recipe_builds_samples_that_hold_the_tracks(name: str) -> None:
    samples = transformed(name, 20)
    track = samples.ragged("track")
    key = (track.events * 1000 + track.values)[track.values >= 0]
    sizes = np.unique(key, return_counts=True)[1]
    links = {"tracking": (sizes - 2).sum(), "hitgraph": (sizes - 1).sum(), "tracknet": (sizes - 2).sum()}[name]
    label = samples.ragged("step_label" if name == "tracknet" else "label").values
    assert label.sum() > 0.9 * links


def test_a_detector_without_a_generator_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no generator for the detector 'trackml'; there are bes3, bmn"):
        next(iter(settings.load_settings("hitgraph", ["detector.name=trackml"]).recipe.generate(1, 1, tmp_path)))


@pytest.mark.parametrize("words", [["--detector", "bmn"], ["--set", "detector.name=bmn"]])
def test_the_command_line_makes_them(tmp_path: Path, words: list[str]) -> None:
    done("data", "generate", "tracknet", *words, "--events", "300", "--seed", "2", "--output", tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"synthetic-bmn-seed2-0000{n}.txt" for n in range(2)]
    done("data", "generate", "tracking", "--detector", "bes3", "--events", "3", "--output", tmp_path)
    assert (tmp_path / "synthetic-bes3-seed0-00000.txt").is_file()


def test_the_classes_are_those_that_are_shipped() -> None:
    classes = {name: type(settings.load_settings(name).recipe) for name in ("tracking", "hitgraph", "tracknet")}
    assert classes == {"tracking": Tracking, "hitgraph": HitGraph, "tracknet": TrackNet}
