"""ACTS events in the recipes: settings of the detector, files, graphs, tracks where modules overlap."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from clew import Table, concat
from clew.core.config import Document
from clew.errors import ConfigError
from clew.recipes.tracking import HitGraph, HitGraphConfig, acts_baseline, overlaps
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.geometry import Detector, hit_coordinates
from clew.recipes.tracking.hitgraph import EdgeCuts
from clew.settings import load_settings, settings_from_document
from tests.recipes.tracking import at, to_table

NAMED = "detector.name=acts"
BARREL = Detector(name="acts")
needs_acts = pytest.mark.skipif(importlib.util.find_spec("acts") is None, reason="pyacts is not installed")


def test_the_detector_brings_its_cuts_and_what_is_to_be_found() -> None:
    config = load_settings("hitgraph", [NAMED]).recipe.config
    assert config.transforms == ()
    assert (config.metrics.pt_min, config.metrics.hits_min, config.metrics.plot_match) == (1.0, 6, "75")
    assert (config.edges.turn_cut, config.tracks.overlaps, config.detector.gaps) == (0.0006, True, "bridge")


def test_what_is_declared_goes_before_the_name() -> None:
    settings = [NAMED, "edges.turn_cut=0.001", "metrics.pt_min=0", "tracks.overlaps=false"]
    loaded = load_settings("hitgraph", settings)
    config = loaded.recipe.config
    assert (config.edges.turn_cut, config.edges.z0_cut) == (0.001, 200.0)
    assert (config.metrics.pt_min, config.metrics.hits_min, config.tracks.overlaps) == (0.0, 6, False)
    assert loaded.recipe.config == settings_from_document(Document(loaded.data, {}, "again")).recipe.config


@pytest.mark.parametrize(
    "setting", ["edges.turn_cut", "edges.z0_cut", "tracks.threshold", "detector.field", "detector.gaps", "transforms"]
)
def test_a_value_that_is_set_stays_even_if_it_equals_the_default(setting: str) -> None:
    section, _, key = setting.partition(".")
    default = load_settings("hitgraph").data[section]
    value = default[key] if key else default
    loaded = load_settings("hitgraph", [NAMED, f"{setting}={json.dumps(value)}"])
    assert (loaded.data[section][key] if key else loaded.data[section]) == value
    assert load_settings("hitgraph", [NAMED]).data[section] != default
    assert settings_from_document(Document(loaded.data, {}, "again")).data == loaded.data


def test_a_section_built_in_python_keeps_its_explicit_values() -> None:
    default = EdgeCuts().turn_cut
    config = HitGraphConfig(detector=Detector(name="acts"), edges=EdgeCuts(turn_cut=default))
    assert (config.edges.turn_cut, config.edges.z0_cut) == (default, 200.0)


def test_other_detectors_keep_theirs() -> None:
    config = load_settings("hitgraph", ["detector.name=bmn"]).recipe.config
    assert len(config.transforms) == 3 and config.metrics.pt_min is None and not config.tracks.overlaps


def overlapping(phi: float, z: float) -> Table:
    """A straight track from the beam through three stations, and a second hit on the middle one."""
    hits = [at(r, 0.3, r, s, 0) for s, r in enumerate((32.0, 72.0, 116.0))]
    return to_table([[*hits, at(74.0, 0.3 + phi, 74.0 + z, 1, 0)]])


@pytest.mark.parametrize(
    ("phi", "z", "score", "one"),
    [(0.0005, 0.1, 0.9, True), (0.05, 0.1, 0.9, False), (0.0005, 50.0, 0.9, False), (0.0005, 0.1, 0.4, False)],
)
def test_hits_of_overlapping_modules_are_one_place(phi: float, z: float, score: float, one: bool) -> None:
    events = overlapping(phi, z)
    links, scores = np.array([[0, 1], [0, 3], [1, 2]]), np.array([0.9, score, 0.9])
    same = overlaps.merge_overlaps(
        hit_coordinates(events, BARREL), links, scores, EdgeCuts(turn_cut=0.0006, z0_cut=200.0)
    )
    assert (same[1] == same[3]) == one
    assert len(set(same[:3])) == 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    for settings in ([], ["gun.particles=ttbar-like"], ["gun.multiplicity=[3, 5]"]):
        recipe = load_settings("hitgraph", [NAMED, *settings]).recipe
        assert sum(count for _, count in recipe.generate(4, 1, folder)) == 4
    return folder


@needs_acts
def test_files_are_named_by_kind_multiplicity_and_seed(files: Path) -> None:
    assert sorted(path.name for path in files.iterdir()) == [
        "synthetic-acts-muons-3to5-seed1-00000.h5",
        "synthetic-acts-muons-50to200-seed1-00000.h5",
        "synthetic-acts-ttbar-like-70to230-seed1-00000.h5",
    ]


@needs_acts
def test_perfect_scores_find_nearly_every_selected_track_whole(files: Path) -> None:
    recipe = load_settings("hitgraph", [NAMED]).recipe
    assert isinstance(recipe, HitGraph)
    events = concat([table for path in sorted(files.iterdir()) for table in recipe.read(str(path))])
    assert set(events.ragged("station").values) == set(range(10))
    samples = recipe.prepare(events)
    outputs = {"output": np.where(samples.ragged("label").values > 0, 12.0, -12.0)}
    figures = recipe.metrics(samples, outputs, recipe.reconstruct(samples, outputs))
    assert figures["efficiency_75"].value > 0.98 and figures["efficiency"].value > 0.95
    assert figures["purity_75"].value > 0.85


@needs_acts
def test_the_filter_is_evaluated_in_the_barrel_too() -> None:
    events = simulate_acts(3, seed=1)
    everywhere, barrel = acts_baseline.measure_filter(events), acts_baseline.measure_filter(events, barrel=True)
    assert barrel["efficiency_75"] > 0.97 and barrel["purity_75"] > 0.95
    assert everywhere["efficiency_75"] != barrel["efficiency_75"]


def test_a_detector_without_a_generator_names_those_that_have_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are bes3, bmn, acts"):
        list(load_settings("tracking", ["detector.name=trackml"]).recipe.generate(1, 1, tmp_path))
