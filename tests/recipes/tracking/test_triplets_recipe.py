"""The recipe `triplets`: files, sectors, tracks from scores, a training; on real ACTS events."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import clew
from clew import Table, concat
from clew.errors import ConfigError
from clew.recipes.tracking import acts_baseline, chains, sectors, triplets, whole_event
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.chains import ChainConfig
from clew.recipes.tracking.particle_gun import ParticleGun
from clew.recipes.tracking.recipe_triplets import Triplets, whole_detector_hits
from clew.recipes.tracking.sectors import SectorConfig
from clew.settings import load_settings

pytestmark = pytest.mark.skipif(importlib.util.find_spec("acts") is None, reason="pyacts is not installed")
RECIPE = "clew.recipes.tracking:Triplets"
GUN = ParticleGun(particles="ttbar-like", pileup=5)


@pytest.fixture(scope="module")
def raw() -> Table:
    return simulate_acts(2, seed=4, gun=GUN)


@pytest.fixture(scope="module")
def events(raw: Table) -> Table:
    return whole_detector_hits(raw)


def perfect(samples: Table) -> NDArray[Any]:
    return np.where(samples.ragged("label").values > 0, 6.0, -6.0)


def recipe_with(*settings: str) -> Triplets:
    recipe = load_settings(RECIPE, settings).recipe
    assert isinstance(recipe, Triplets)
    return recipe


def test_only_detectors_with_known_layers_are_accepted() -> None:
    assert recipe_with().config == Triplets().config
    assert recipe_with("detector.name=trackml").config.metrics.pt_min == 1.0
    with pytest.raises(ConfigError, match="must be acts or trackml"):
        recipe_with("detector.name=bmn")


def test_perfect_scores_find_nearly_all_particles_above_1_gev(events: Table) -> None:
    recipe = recipe_with()
    samples = recipe.prepare(events)
    objects = recipe.reconstruct(samples, {"output": perfect(samples)})
    figures = recipe.metrics(samples, {}, objects)
    assert figures["efficiency_50"].value > 0.98 and figures["efficiency_75"].value > 0.96
    assert figures["purity_50"].value > 0.97


def test_bridges_find_tracks_that_lost_hits_whole() -> None:
    gun = ParticleGun(particles="ttbar-like", pileup=5, lost_hits=0.05)
    events = whole_detector_hits(simulate_acts(2, seed=4, gun=gun))
    found = []
    for gaps in ("skip", "bridge"):
        recipe = recipe_with(f"triplets.gaps={gaps}")
        samples = recipe.prepare(events)
        objects = recipe.reconstruct(samples, {"output": perfect(samples)})
        found.append(recipe.metrics(samples, {}, objects)["efficiency_75"].value)
    assert found[0] < 0.96 and found[1] > 0.98


def test_chains_do_not_share_hits_and_have_the_smallest_number_of_hits(events: Table) -> None:
    samples = recipe_with().prepare(events)
    rng = np.random.default_rng(1)
    logits = perfect(samples) + rng.normal(0, 3, len(samples.ragged("link").values))
    hits, triples = chains.HitPlaces.of(samples), triplets.triplet_hits(samples)
    found = chains.from_triplets(hits, triples, logits, ChainConfig(min_hits=8))
    sizes = np.bincount(found[found >= 0])
    assert len(sizes) > 20 and sizes.min() >= 8


def test_tracks_get_the_second_hits_of_overlapping_modules(events: Table) -> None:
    samples = recipe_with().prepare(events)
    hits, triples = chains.HitPlaces.of(samples), triplets.triplet_hits(samples)
    found = chains.from_triplets(hits, triples, perfect(samples), ChainConfig())
    track, station = found[found >= 0], hits.station[found >= 0]
    pairs = np.unique(np.stack([track, station]), axis=1)
    assert len(track) - pairs.shape[1] > 0.05 * len(track)


def test_every_hit_is_in_the_core_of_one_sector(events: Table) -> None:
    parts = list(sectors.split_events(events, SectorConfig(number=5, halo=0.2)))
    cores = [part.ragged("core").values.sum() for part in parts]
    assert sum(cores) == len(events.ragged("x").values)
    assert all(len(part.ragged("x").values) < len(events.ragged("x").values) / 2 for part in parts)
    assert set(np.concatenate([part.fixed("collision") for part in parts])) == {0, 1}
    assert len(set(np.concatenate([part.fixed("event") for part in parts]))) == 10


def test_sectors_give_the_tracks_of_the_whole_event(events: Table) -> None:
    whole = whole_event.find_tracks(recipe_with(), chains.pull_logits, events)
    parts = whole_event.find_tracks(recipe_with("sectors.number=6", "sectors.halo=0.6"), chains.pull_logits, events)
    tracks = [track_sets(each) for each in (whole, parts)]
    assert len(tracks[0]) > 100
    assert len(tracks[0] & tracks[1]) > 0.99 * len(tracks[0] | tracks[1])


def track_sets(found: Any) -> set[frozenset[int]]:
    number = found.values + 100_000 * found.events
    return {frozenset(np.flatnonzero((number == track) & (found.values >= 0)).tolist()) for track in np.unique(number)}


def test_whole_events_equal_the_samples_of_the_recipe(events: Table) -> None:
    recipe = recipe_with()
    samples = recipe.prepare(events)
    objects = recipe.reconstruct(samples, {"output": perfect(samples)})
    times = whole_event.StepTimes()
    found = whole_event.find_tracks(recipe, perfect, events, times)
    assert track_sets(found) == track_sets(objects.ragged("found_track"))
    assert len(times.pairs) == 2 and times.graphs > 0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("events")
    recipe = recipe_with("gun.particles=ttbar-like", "gun.pileup=3")
    return [str(path) for path, _ in recipe.generate(6, 1, folder)]


def test_files_hold_few_events_and_name_the_pileup(files: list[str]) -> None:
    assert [Path(path).name for path in files] == [
        f"synthetic-acts-ttbar-like-70to230-pileup3-seed1-0000{number}.h5" for number in (0, 1)
    ]


def test_files_are_read_with_all_layers_and_cut_into_sectors(files: list[str]) -> None:
    whole = concat(list(recipe_with().read(files[0])))
    parts = concat(list(recipe_with("sectors.number=4").read(files[0])))
    assert (len(whole), len(parts)) == (4, 16)
    assert parts.ragged("core").values.sum() == len(whole.ragged("x").values)


@pytest.mark.long
def test_a_training_on_sectors_finds_tracks_in_whole_events(files: list[str], tmp_path: Path) -> None:
    settings = ["sectors.number=4", "train.epochs=12", "train.batch_size=1", "train.threads=1", "model.iterations=3"]
    loaded = load_settings(RECIPE, settings)
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(tmp_path / "data"), workers=1)
    run = clew.train(loaded.recipe, data, config=loaded.train, output=tmp_path / "run")
    figures = clew.evaluate(run, input=files[1:]).metrics
    assert figures["edge_auc"].value > 0.9


def test_the_filter_lists_each_hit_of_a_track_once(raw: Table) -> None:
    track, hit = acts_baseline.track_hits(raw, acts_baseline.find_tracks(raw).tracks)
    assert len(np.unique(np.stack([track, hit]), axis=1).T) == len(track)
    assert hit.max() < len(raw.ragged("x").values)
