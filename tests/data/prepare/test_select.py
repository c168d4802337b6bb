"""Cuts in a preparation: pieces, files and splits may become empty, a dataset may not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import clew
from clew import Dataset, Ragged, Recipe, Table
from clew.data.prepare.api import explain
from clew.data.transforms import Compute, Select, Standard
from clew.errors import DataError
from clew.recipe import find
from clew.recipes.tracking import Tracking, TrackingConfig

RECIPE = str(Path(__file__).parent / "recipes" / "cut.py")


@pytest.fixture
def low(tmp_path: Path) -> Path:
    return _file(tmp_path / "low.h5", np.arange(0, 20))


@pytest.fixture
def high(tmp_path: Path) -> Path:
    return _file(tmp_path / "high.h5", np.arange(20, 60))


def _file(path: Path, pt: Any) -> Path:
    hits = Ragged.from_lengths(np.arange(pt.sum()) * 1.0, pt)
    Table({"pt": pt.astype(np.float32), "hit": hits, "run": pt // 10}).save(path)
    return path


def _recipe(*transforms: Any) -> Recipe:
    kind: Any = find(RECIPE)
    return cast(Recipe, kind(kind.Config(transforms=transforms)))


def _prepare(output: Path, *inputs: Path, where: str, more: Iterable[Any] = (), **options: Any) -> Dataset:
    recipe = _recipe(Select(where=where), *more)
    chosen = {"workers": 1, "cache": f"{output}.cache", **options}
    return clew.prepare(recipe, input=list(map(str, inputs)), output=str(output), **chosen)


def _values(dataset: Dataset, name: str) -> list[float]:
    tables = [dataset.read(split) for split, count in dataset.splits.items() if count]
    return sorted(value for table in tables for value in table.fixed(name).tolist())


@pytest.mark.parametrize("by", ["event", "file", "run"])
def test_a_file_without_a_passing_event_is_accepted(low: Path, high: Path, tmp_path: Path, by: str) -> None:
    dataset = _prepare(tmp_path / "d", low, high, where="pt >= 30 && sum(hit) > 0", split_by=by)
    assert _values(dataset, "pt") == list(range(30, 60))
    assert {item.name: item.events for item in dataset.manifest.inputs} == {"low.h5": 0, "high.h5": 30}
    dataset.verify()


def test_pieces_without_a_passing_event_are_accepted_in_any_order(low: Path, high: Path, tmp_path: Path) -> None:
    for number, where in enumerate(["pt < 3", "pt >= 57"]):
        dataset = _prepare(tmp_path / str(number), low, high, where=where, split={"all": 1.0})
        assert dataset.splits == {"all": 3}
        assert sorted(dataset.lengths("all", "hit").tolist()) == dataset.read("all").ragged("hit").lengths.tolist()


def test_no_passing_event_at_all_names_the_cut(low: Path, high: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _prepare(tmp_path / "d", low, high, where="pt > 200")
    assert str(caught.value) == "no event passes select 'pt > 200'"
    assert not (tmp_path / "d").exists()


def test_no_passing_event_is_reported_before_a_fit_complains(low: Path, tmp_path: Path) -> None:
    cuts = [Select(where="pt < 0"), Standard(columns=("pt",))]
    with pytest.raises(DataError, match="no event passes select 'pt > 2' and select 'pt < 0'"):
        _prepare(tmp_path / "d", low, where="pt > 2", more=cuts)


def test_a_fit_is_on_the_events_that_pass(low: Path, high: Path, tmp_path: Path) -> None:
    dataset = _prepare(tmp_path / "d", low, high, where="pt > 56", more=[Standard(columns=("pt",))])
    assert dataset.manifest.transforms[1]["mean"] == {"pt": 58.0}


def test_computed_weights_reach_the_dataset(low: Path, tmp_path: Path) -> None:
    dataset = _prepare(tmp_path / "d", low, where="pt > 17", more=[Compute(column="weight", expression="pt / 2")])
    assert _values(dataset, "weight") == [9.0, 9.5]


def test_a_second_time_the_cache_knows_that_events_were_read(low: Path, high: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"where": "pt > 30", "cache": str(tmp_path / "cache")}
    first = _prepare(tmp_path / "a", low, high, **options)
    second = _prepare(tmp_path / "b", low, high, **options)
    for path in (tmp_path / "cache" / "prepare").rglob("*.table"):
        path.unlink()
    third = _prepare(tmp_path / "c", low, high, **options)
    assert first.manifest == second.manifest == third.manifest


class Nothing(Recipe):
    """Reads files that have no events."""

    def read(self, path: str) -> Any:
        yield Table({"pt": np.empty(0)})

    def prepare(self, events: Table) -> Table:
        raise AssertionError("there are none")


def test_a_file_that_is_empty_before_the_cut_is_still_named(low: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"low\.h5: no events in it"):
        clew.prepare(Nothing, input=[str(low)], output=str(tmp_path / "d"), workers=1, cache=str(tmp_path / "cache"))


def test_changed_cuts_are_explained(low: Path, tmp_path: Path) -> None:
    _prepare(tmp_path / "d", low, where="pt > 2")
    place: dict[str, Any] = {"input": [str(low)], "output": str(tmp_path / "d"), "cache": str(tmp_path / "d.cache")}
    explanation = explain(_recipe(Select(where="pt > 3")), **place)
    assert [explanation.stages[name].word for name in ("select", "prepare")] == ["miss", "miss"]
    assert explanation.reasons["select"] == ['settings.where: "pt > 2" became "pt > 3"']
    assert explanation.reasons["prepare"] == ["the stage select has changed"]


def test_the_tracking_recipe_takes_cuts(events: Path, tmp_path: Path) -> None:
    cut = Select(where="event % 2 == 0 & len(x) > 0")
    recipe = Tracking(TrackingConfig(transforms=(cut, *TrackingConfig().transforms)))
    dataset = clew.prepare(recipe, input=[str(events)], output=str(tmp_path / "d"), workers=2)
    assert _values(dataset, "event") == list(range(0, 300, 2))
