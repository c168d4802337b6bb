"""Cross-validation: every event held out once, the mean reported, bad trials stopped after their first fold."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

import clew
from clew import Dataset, Run
from clew.data.prepare.config import PrepareConfig
from clew.errors import DataError
from clew.tuning import folds
from clew.tuning.config import FoldsConfig
from tests.tuning import RECIPE, template, tune_here


def rows(dataset: Dataset, split: str) -> set[float]:
    return set(dataset.read(split).fixed("y").tolist())


def test_every_event_is_held_out_once(flat: Dataset, tmp_path: Path) -> None:
    places = folds.write_folds(tmp_path, flat, FoldsConfig(count=3), PrepareConfig())
    datasets, whole = [Dataset(each) for each in places], rows(flat, "train") | rows(flat, "val")
    assert sum(each.splits["val"] for each in datasets) == flat.splits["train"] + flat.splits["val"]
    for each in datasets:
        assert rows(each, "train") | rows(each, "val") == whole
        assert not rows(each, "train") & rows(each, "val")
        assert rows(each, "test") == rows(flat, "test")
        each.verify()
    sizes = [each.splits["val"] for each in datasets]
    assert max(sizes) - min(sizes) <= 1
    assert len({each.manifest.key for each in datasets} | {flat.manifest.key}) == 4


@pytest.mark.parametrize("split_by", ["event", "file", "said"])
def test_by_file_no_file_is_on_both_sides(flat: Dataset, tmp_path: Path, split_by: str) -> None:
    source = flat.path.parent
    values = {"input": [str(source / "*.npz")], "split": {"train": 0.7, "val": 0.3}, "split_by": split_by, "seed": 4}
    if split_by == "said":
        one, two, three = (str(source / f"events-{n}.npz") for n in range(3))
        values = {"input": {"train": [two, one], "val": [three]}}
    prepare = PrepareConfig.model_validate(values)
    data = clew.prepare(RECIPE, prepare, output=str(tmp_path / "data"), workers=1)
    for place in folds.write_folds(tmp_path / "folds", data, FoldsConfig(count=3, by="file"), prepare):
        sides = [set(np.unique(Dataset(place).read(name).fixed("part"))) for name in ("train", "val")]
        assert (len(sides[0]), len(sides[1]), sides[0] & sides[1]) == (2, 1, set())


def test_wrong_numbers_of_folds_are_reported(flat: Dataset) -> None:
    with pytest.raises(DataError, match="3 files in train and val cannot be divided into 4 folds"):
        folds.check_folds(flat, FoldsConfig(count=4, by="file"), PrepareConfig())
    folds.check_folds(flat, FoldsConfig(count=3, by="file"), PrepareConfig())
    with pytest.raises(DataError, match=r"\d+ events in train and val cannot be divided into 1000 folds"):
        folds.check_folds(flat, FoldsConfig(count=1000), PrepareConfig())
    with pytest.raises(DataError, match="need the section `prepare`"):
        folds.check_folds(flat, FoldsConfig(count=3, by="file"), PrepareConfig(seed=7))


@pytest.mark.timeout(120)
def test_the_objective_is_the_mean_and_its_spread_is_stored(flat: Dataset, tmp_path: Path) -> None:
    study = tune_here(template(flat, tune={"trials": 2, "folds": 3}), tmp_path / "s")
    for each in study.trials():
        runs = [Run.open(study.folder.trials / f"{each.name}-fold-{fold}") for fold in range(3)]
        best = [min(r["metrics"]["loss"] for r in run.records(kind="validation")) for run in runs]
        assert list(each.values) == pytest.approx([statistics.fmean(best)])
        assert list(each.spread) == pytest.approx([statistics.stdev(best)])
        assert each.reports == {fold + 1: pytest.approx(value) for fold, value in enumerate(best)}


@pytest.mark.timeout(120)
def test_a_bad_trial_is_pruned_after_its_first_fold(flat: Dataset, tmp_path: Path) -> None:
    names = {"train.optimizer.lr": {"choice": [0.05, 1e-7]}, "wide": {"choice": [3, 4]}}
    tuned = {"space": names, "trials": 4, "folds": 3, "parallel": 1, "sampler": "grid"}
    settings = template(flat, tune={**tuned, "pruner": {"name": "median", "startup": 1, "warmup": 0}})
    study = tune_here(settings, tmp_path / "s")
    pruned = [each for each in study.trials() if each.state == "pruned"]
    assert pruned and all(each.reason.endswith("in fold 0") for each in pruned)
    for each in pruned:
        assert [path.name for path in study.folder.trials.glob(f"{each.name}*")] == [f"{each.name}-fold-0"]


def test_the_seed_decides_which_events_are_in_a_fold(flat: Dataset, tmp_path: Path) -> None:
    def held_out(name: str, seed: int) -> list[set[float]]:
        config = FoldsConfig(count=3, seed=seed)
        return [
            rows(Dataset(each), "val") for each in folds.write_folds(tmp_path / name, flat, config, PrepareConfig())
        ]

    assert held_out("a", 1) == held_out("b", 1) != held_out("c", 2)


def test_lengths_of_the_splits_that_stay_are_kept(dataset: Dataset, tmp_path: Path) -> None:
    column = next(iter(dataset.manifest.item_sets))
    for place in folds.write_folds(tmp_path, dataset, FoldsConfig(count=2), PrepareConfig()):
        assert Dataset(place).lengths("test", column).tolist() == dataset.lengths("test", column).tolist()


def test_folds_that_exist_are_not_written_again(flat: Dataset, tmp_path: Path) -> None:
    config = FoldsConfig(count=3)
    first, second, third = folds.write_folds(tmp_path, flat, config, PrepareConfig())
    assert [path.name for path in (first, second, third)] == ["fold-0", "fold-1", "fold-2"]
    (tmp_path / "shard-0.h5").unlink()
    assert folds.write_folds(tmp_path, flat, config, PrepareConfig()) == [first, second, third]
    assert not (tmp_path / "shard-0.h5").exists()
    (third / "manifest.json").unlink()
    folds.write_folds(tmp_path, flat, config, PrepareConfig())
    Dataset(third).verify()


def test_a_dataset_without_validation_is_divided(flat: Dataset, tmp_path: Path) -> None:
    source = [str(flat.path.parent / "*.npz")]
    prepare = PrepareConfig.model_validate({"input": source, "split": {"train": 1.0}})
    data = clew.prepare(RECIPE, prepare, output=str(tmp_path / "data"), workers=1)
    for by in ("event", "file"):
        config = FoldsConfig.model_validate({"count": 3, "by": by})
        made = [Dataset(each) for each in folds.write_folds(tmp_path / by, data, config, prepare)]
        assert sum(each.splits["val"] for each in made) == 300
        assert all(each.splits["train"] + each.splits["val"] == 300 for each in made)


def test_lengths_of_folds_are_those_of_their_events(dataset: Dataset, tmp_path: Path) -> None:
    column = next(iter(dataset.manifest.item_sets))
    for place in folds.write_folds(tmp_path, dataset, FoldsConfig(count=3), PrepareConfig()):
        made = Dataset(place)
        for split in ("train", "val"):
            assert made.lengths(split, column).tolist() == made.read(split).ragged(column).lengths.tolist()
