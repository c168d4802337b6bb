"""The contract of transforms, for every transform that clew ships."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np

from clew import Ragged, Table, transforms
from clew.testing import TransformContract


class HitContract(TransformContract):
    """Events of hits: stations and tracks with holes, loops and noise, positions, and a few numbers per event."""

    def events(self) -> Table:
        rng = np.random.default_rng(4)
        lengths = np.r_[0, 1, rng.poisson(12, 38)]
        items = int(lengths.sum())
        x = Ragged.from_lengths(rng.normal(0, 50, items), lengths)
        loose = Ragged.from_lengths(np.arange(items), lengths)
        columns: dict[str, Any] = {
            "x": x,
            "y": x.share(rng.normal(0, 50, items)),
            "z": x.share(rng.normal(0, 200, items)),
            "station": x.share(rng.integers(0, 3, items)),
            "track": x.share(rng.integers(-1, 4, items)),
            "loose": loose,
            "pt": rng.exponential(20, 40),
            "label": rng.integers(0, 2, 40),
        }
        return Table(columns, units={"x": "mm", "y": "mm", "z": "mm"})


class TestMinMax(HitContract):
    transform = transforms.MinMax(columns=("x", "pt"))


class TestStandard(HitContract):
    transform = transforms.Standard(columns=("x", "pt"))


class TestCylindrical(HitContract):
    transform = transforms.Cylindrical()


class TestCartesian(HitContract):
    transform = transforms.Cartesian()

    def events(self) -> Table:
        return transforms.Cylindrical(keep=False)(super().events())


class TestDropShort(HitContract):
    transform = transforms.DropShort()


class TestDropShortRemoves(HitContract):
    transform = transforms.DropShort(dropped="remove")


class TestDropSpinning(HitContract):
    transform = transforms.DropSpinning()


class TestDropHoles(HitContract):
    transform = transforms.DropHoles()


class TestDropFakes(HitContract):
    transform = transforms.DropFakes()


class TestStationLimits(HitContract):
    transform = transforms.StationLimits(limits={station: {"z": (-150.0, 150.0)} for station in range(3)})


class TestLengthBuckets(HitContract):
    transform = transforms.LengthBuckets(edges=(5, 12))


class TestSelect(HitContract):
    transform = transforms.Select(where="pt > 10")


class TestSelectItems(HitContract):
    transform = transforms.SelectItems(where="z > 0")


class TestCompute(HitContract):
    transform = transforms.Compute(column="r", expression="sqrt(x**2 + y**2)")


class TestSameItems(HitContract):
    transform = transforms.SameItems(columns=("x", "loose"))


class TestGatherItems(HitContract):
    transform = transforms.GatherItems(columns={"part_px": "PX_", "part_py": "PY_"}, count=3)

    def events(self) -> Table:
        """Two columns of at most three items, the third filled up with zeros in most events."""
        events, rng = super().events(), np.random.default_rng(5)
        lengths = rng.integers(0, 4, len(events))
        names = [f"{part}_{place}" for part in ("PX", "PY") for place in range(3)]
        return events.join({name: rng.normal(size=len(events)) * (int(name[-1]) < lengths) for name in names})


class TestReweight(HitContract):
    transform = transforms.Reweight(columns={"pt": (0.0, 10.0, 30.0, 1000.0)})


def test_every_transform_has_a_suite() -> None:
    suites = {type(suite.transform) for suite in HitContract.__subclasses__()}
    assert suites == set(typing.get_args(typing.get_args(transforms.AnyTransform)[0]))
