"""Events simulated by ACTS and the Kalman filter on them; skipped where pyacts is not installed."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clew import Ragged, Table, concat, readers
from clew.errors import ConfigError, DataError, RecipeError
from clew.recipes.tracking import acts, acts_baseline
from clew.recipes.tracking.acts_chain import RESOLUTION
from clew.recipes.tracking.particle_gun import KINDS, ParticleGun

HERE = importlib.util.find_spec("acts") is not None
needs_acts = pytest.mark.skipif(not HERE, reason="pyacts is not installed: pip install 'clew[hep]'")


@pytest.fixture(scope="module")
def muons() -> Table:
    return acts.simulate_acts(12, seed=1)


@pytest.fixture(scope="module", params=sorted(KINDS))
def events(request: pytest.FixtureRequest) -> Table:
    return acts.simulate_acts(12, seed=1, gun=ParticleGun(particles=request.param))


def _same(one: Table, other: Table) -> bool:
    if one.schema != other.schema:
        return False
    pairs = [(one[name], other[name]) for name in one]
    return all(np.array_equal(_values(a), _values(b)) for a, b in pairs)


def _values(column: Any) -> NDArray[Any]:
    return np.asarray(column.values if isinstance(column, Ragged) else column)


def _pt(table: Table) -> NDArray[Any]:
    return np.hypot(table.ragged("px").values, table.ragged("py").values)


@pytest.mark.slow
@needs_acts
def test_more_events_begin_with_the_same_and_ranges_are_cut_anywhere(events: Table) -> None:
    kind: Any = "muons" if 13 in events.ragged("pdg").values else "ttbar-like"
    pieces = [
        acts.simulate_acts(count, 1, first, gun=ParticleGun(particles=kind))
        for first, count in ((0, 3), (3, 2), (5, 0))
    ]
    assert _same(concat(pieces), events.slice(0, 5))


@needs_acts
def test_other_seeds_give_other_events(muons: Table) -> None:
    both = [muons, acts.simulate_acts(12, seed=2)]
    places = [{tuple(place) for place in np.stack([t.ragged(name).values for name in "xyz"], axis=1)} for t in both]
    assert len(places[0]) > 10_000 and not places[0] & places[1]


@needs_acts
def test_layers_are_those_of_the_detector(events: Table) -> None:
    assert set(events.ragged("volume_id").values) == set(RESOLUTION)
    barrel = events.ragged("volume_id").values == 8
    radius = np.hypot(events.ragged("x").values, events.ragged("y").values)[barrel]
    layer = events.ragged("layer_id").values[barrel]
    means = [radius[layer == number].mean() for number in (2, 4, 6, 8)]
    np.testing.assert_allclose(means, [32, 72, 116, 172], atol=2)


@needs_acts
def test_particles_above_1_gev_leave_8_hits_or_more(events: Table) -> None:
    hits = events.ragged("nhits").values[_pt(events) > 1]
    assert np.mean(hits >= 8) > 0.98
    assert 10 < hits.mean() < 15


@needs_acts
def test_hits_are_smeared_by_the_resolution_of_their_volume(muons: Table) -> None:
    away = [muons.ragged(name).values - muons.ragged(f"t{name}").values for name in "xyz"]
    volume = muons.ragged("volume_id").values
    for number, (one, two) in RESOLUTION.items():
        spread = np.sqrt(np.mean(sum(part[volume == number] ** 2 for part in away)))
        assert abs(spread / np.hypot(one, two) - 1) < 0.2, number


@needs_acts
def test_particles_lose_energy_and_scatter(muons: Table) -> None:
    owner = np.repeat(muons.ragged("px").offsets[:-1], muons.ragged("x").lengths) + muons.ragged("track").values - 1
    start = np.stack([muons.ragged(name).values[owner] for name in ("px", "py", "pz")])
    there = np.stack([muons.ragged(name).values for name in ("tpx", "tpy", "tpz")])
    loss = np.linalg.norm(start, axis=0) - np.linalg.norm(there, axis=0)
    assert loss.min() > 0 and 3e-4 < np.median(loss) < 0.01
    theta = [np.arctan2(np.hypot(p[0], p[1]), p[2]) for p in (start, there)]
    assert 1e-4 < np.std(theta[1] - theta[0]) < 0.1


@needs_acts
def test_true_tracks_bend_as_in_two_tesla(muons: Table) -> None:
    barrel = (muons.ragged("volume_id").values == 8) & (muons.ragged("layer_id").values == 8)
    x, y, px, py = (muons.ragged(name).values[barrel].astype(float) for name in ("tx", "ty", "tpx", "tpy"))
    # from the beam line to this hit a circle turns the direction by twice the angle between chord and direction
    half = np.abs((np.arctan2(py, px) - np.arctan2(y, x) + np.pi) % (2 * np.pi) - np.pi)
    pt, radius = np.hypot(px, py), np.hypot(x, y) / (2 * np.sin(half))
    assert abs(np.median((0.299792458e-3 * 2 * radius / pt)[pt < 5]) - 1) < 0.02


@needs_acts
@pytest.mark.parametrize("layout", ["hdf5", "trackml"])
def test_files_are_called_synthetic_and_read_back(muons: Table, tmp_path: Path, layout: str) -> None:
    files = list(acts.write_acts(3, 1, tmp_path, layout=layout))
    assert sum(count for _, count in files) == 3
    assert all("synthetic" in str(path.relative_to(tmp_path)) for path, _ in files)
    read = concat([table for path, _ in files for table in readers.read(str(path))])
    assert len(read) == 3
    for name in read:
        np.testing.assert_allclose(_values(read[name]), _values(muons.slice(0, 3)[name]), rtol=1e-6)
    assert {"x", "module_id", "track", "tpx"} <= set(read)


@needs_acts
def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose from hdf5, trackml"):
        next(acts.write_acts(1, 1, tmp_path, layout="root"))


@needs_acts
def test_the_kalman_filter_finds_particles_above_1_gev(events: Table) -> None:
    figures = acts_baseline.measure_filter(events)
    assert figures["efficiency_50"] > 0.95 and figures["efficiency_75"] > 0.9
    assert figures["purity_50"] > 0.95
    assert figures["events_per_second"] > 0.1
    assert 0 < figures["efficiency_50_error"] < 0.05


@needs_acts
def test_the_kalman_filter_does_not_look_at_the_truth(muons: Table) -> None:
    blind = muons.slice(0, 2).pick("x", "y", "z", "volume_id", "layer_id", "module_id")
    assert _same(acts_baseline.find_tracks(blind).tracks, acts_baseline.find_tracks(muons.slice(0, 2)).tracks)


@needs_acts
def test_no_events_are_no_tracks(muons: Table) -> None:
    assert len(acts_baseline.find_tracks(muons.slice(0, 0)).tracks) == 0


@needs_acts
def test_a_module_the_detector_lacks_is_reported(muons: Table) -> None:
    module = muons.ragged("module_id")
    wrong = muons.join({"module_id": module.share(module.values + 90_000)})
    with pytest.raises(DataError, match="GenericDetector does not have"):
        acts_baseline.find_tracks(wrong)


def test_without_pyacts_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "acts"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "acts", None)
    with pytest.raises(RecipeError, match=r"pip install 'clew\[hep\]'") as error:
        acts.simulate_acts(1, seed=1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", [(-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_negative_numbers_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        acts.simulate_acts(*values)


@needs_acts
def test_hits_that_are_not_digitised_are_left_out() -> None:
    event = acts.simulate_acts(1, seed=1, first=140)  # one of its hits is smeared off its module again and again
    assert np.isfinite(event.ragged("x").values).all()
    assert event.ragged("nhits").values.sum() == len(event.ragged("x").values)


@needs_acts
def test_acts_has_nothing_to_say(capfd: pytest.CaptureFixture[str]) -> None:
    acts_baseline.find_tracks(acts.simulate_acts(1, seed=1, first=140))
    acts.simulate_acts(
        1, seed=1, first=130, gun=ParticleGun(particles="ttbar-like")
    )  # a pion of 0.1 GeV loops without end
    assert capfd.readouterr() == ("", "")


@needs_acts
def test_ranges_made_in_other_processes_are_the_same(muons: Table) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(acts.simulate_acts, (2, 2), (1, 1), (0, 2)))
    assert _same(concat(parts), muons.slice(0, 4))
