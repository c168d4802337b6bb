"""The generator as a whole: reproducible events, and the content of an image."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from clew import Table
from clew.errors import ConfigError
from clew.recipes.lartpc import images
from clew.recipes.lartpc.columns import CHARGE, ENERGY, INDEX, LABEL, SHAPE, SIZE
from clew.recipes.lartpc.generate import events
from clew.recipes.lartpc.generate.config import LArTPCGeneratorConfig
from clew.recipes.lartpc.readout import CHARGE_STEP, Readout

GOLDEN = "f8f4558df42fb5c0db7f3719566911e7"
"""The checksum of generator version 2. It may change with the version only: networks are compared on fixed events."""


@pytest.fixture(scope="module")
def sample() -> Table:
    return events.simulate(40, 7)


@pytest.mark.slow
def test_version_2_is_frozen(sample: Table) -> None:
    digest = hashlib.sha256()
    for name in (INDEX, CHARGE):
        digest.update(np.ascontiguousarray(sample.ragged(name).values).tobytes())
    digest.update(sample.ragged(INDEX).offsets.tobytes())
    digest.update(sample.fixed(LABEL).tobytes())
    assert (events.VERSION, digest.hexdigest()[:32]) == (2, GOLDEN)


def test_events_do_not_depend_on_those_before(sample: Table) -> None:
    part = events.simulate(5, 7, first=30)
    for name in (INDEX, CHARGE):
        assert np.array_equal(part.ragged(name).values, sample.slice(30, 35).ragged(name).values)
    assert part.fixed("event").tolist() == list(range(30, 35))


def test_other_seeds_are_other_events(sample: Table) -> None:
    other = events.simulate(1, 8)
    assert other.fixed(ENERGY)[0] != sample.fixed(ENERGY)[0]


def test_images_are_whole(sample: Table) -> None:
    assert images.check_images(sample, SIZE) is sample
    charge = sample.ragged(CHARGE).values
    assert sample.ragged(INDEX).values.dtype == np.int32 and charge.dtype == np.float32
    assert np.array_equal(np.round(charge / CHARGE_STEP), charge / CHARGE_STEP)
    assert sample.fixed(LABEL).tolist() == [n % 5 for n in range(40)]
    assert (sample.fixed(SHAPE) == SIZE).all()
    low, high = LArTPCGeneratorConfig().energy
    assert ((sample.fixed(ENERGY) >= low) & (sample.fixed(ENERGY) <= high)).all()


def test_a_single_particle_lights_a_permille_of_the_image(sample: Table) -> None:
    share = sample.ragged(INDEX).lengths / (SIZE[0] * SIZE[1])
    assert 0.0003 < share.mean() < 0.002


def test_charge_follows_the_energy_that_is_seen(sample: Table) -> None:
    offsets = sample.ragged(INDEX).offsets
    charge = np.add.reduceat(sample.ragged(CHARGE).values.astype(np.float64), offsets[:-1])
    per_gev = charge / sample.fixed("visible") / 1000
    # 42.4 thousand electrons per MeV, two thirds of which remain after recombination
    assert 18 < np.median(per_gev) < 32


def test_files_are_labelled_and_say_what_made_them(tmp_path: Path) -> None:
    config = LArTPCGeneratorConfig(classes=("mu", "pi"), energy=(0.1, 0.2))
    (path, count), *others = events.write_events(6, 3, tmp_path, config=config, size=(200, 300))
    table = Table.load(path)
    assert (count, others, len(table)) == (6, [], 6)
    assert path.name.startswith("synthetic-lartpc-v2-0.1to0.2GeV-mu-pi-200x300-seed3-")
    assert set(table.fixed(LABEL).tolist()) == {2, 3}
    assert (table.fixed("generator") == events.VERSION).all()


def test_cosmic_muons_fill_the_image() -> None:
    config = LArTPCGeneratorConfig(cosmics=6, energy=(0.1, 0.2))
    with_cosmics = events.simulate(3, 1, config=config, size=(900, 900))
    bare = events.simulate(3, 1, config=LArTPCGeneratorConfig(energy=(0.1, 0.2)), size=(900, 900))
    assert with_cosmics.ragged(INDEX).lengths.sum() > 3 * bare.ragged(INDEX).lengths.sum()
    assert (with_cosmics.fixed("cosmics") > 0).any() and not bare.fixed("cosmics").any()
    assert "cosmics6" in config.label


@pytest.mark.parametrize(
    "settings", [{"energy": (2.0, 1.0)}, {"classes": ("tau",)}, {"start": (0.5, 1.5)}, {"energy": (1.0, 50.0)}]
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LArTPCGeneratorConfig(**settings)


def test_a_range_that_begins_inside_a_block(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a multiple of 16, got 5, 1, 3"):
        list(events.write_events(5, 1, tmp_path, first=3))


def test_recombination_takes_more_where_it_is_dense() -> None:
    readout = Readout()
    thin, thick = readout.electrons(np.array([2.1, 20.0]), np.array([1.0, 1.0])) / (2.1, 20.0) * 23.6e-3
    assert thin == pytest.approx(0.70, abs=0.02)
    assert thick == pytest.approx(0.32, abs=0.03)


def test_charge_spreads_and_fades_with_distance() -> None:
    readout = Readout(noise=1e-6, threshold=1e-3)
    rng = np.random.default_rng(1)
    place = np.array([[10.0, 0.0, 30.15], [200.0, 0.0, 60.15]])
    near, far = (readout.image(rng, place[at : at + 1], np.array([100.0]), SIZE) for at in (0, 1))
    assert near.charge.sum() == pytest.approx(100 * np.exp(-10 / 0.16 / 10_000), rel=0.02)
    assert far.charge.sum() == pytest.approx(100 * np.exp(-200 / 0.16 / 10_000), rel=0.02)
    assert len(far.place) > len(near.place)
    wire, tick = np.divmod(near.place, SIZE[1])
    assert np.average(wire, weights=near.charge) == pytest.approx(100, abs=0.05)
    assert np.average(tick, weights=near.charge) == pytest.approx(10 / 0.08 - 0.5, abs=0.1)


def test_noise_alone_makes_few_regions() -> None:
    image = Readout().image(np.random.default_rng(1), np.zeros((0, 3)), np.zeros(0), SIZE)
    assert 100 < len(image.place) < 3000
    assert (np.diff(image.place) > 0).all()
