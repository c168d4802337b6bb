"""From raw events to a dataset: the same bytes from the same content, made once, complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Dataset, Recipe, Table
from clew.data.prepare.api import PrepareProgress
from clew.errors import ConfigError, DataError, RecipeError
from clew.recipes.tracking import Tracking
from clew.settings import load_settings
from tests.conftest import EVENTS


@pytest.fixture
def small_file(events: Path, tmp_path: Path) -> Path:
    """One file of 44 events, alone in a folder."""
    (tmp_path / "raw").mkdir()
    return Path(shutil.copy(sorted(events.iterdir())[1], tmp_path / "raw" / "small.txt"))


def prepare(output: Path, *inputs: Path, settings: Iterable[str] = (), **options: Any) -> Dataset:
    """Prepare with an empty cache, in one process by default."""
    recipe = load_settings("tracking", list(settings)).recipe
    with tempfile.TemporaryDirectory() as cache:
        chosen = {"workers": 1, "cache": cache, **options}
        return clew.prepare(recipe, input=list(map(str, inputs)), output=str(output), **chosen)


def content(dataset: Dataset, pattern: str = "*") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in dataset.path.glob(pattern)}


def firsts(table: Table) -> Counter[tuple[int, float]]:
    """Every event as its number and the x of its first hit."""
    x = table.ragged("x").values.astype(np.float32)[table.ragged("x").offsets[:-1]]
    return Counter(zip(table.fixed("event").tolist(), x.tolist(), strict=True))


def test_every_event_is_in_exactly_one_split(events: Path, tmp_path: Path) -> None:
    dataset = prepare(tmp_path / "dataset", events, settings=["transforms=[]"])
    raw = [firsts(table) for path in events.iterdir() for table in Tracking().read(str(path))]
    prepared = [firsts(dataset.read(name)) for name in dataset.splits]
    assert sum(prepared, Counter()) == sum(raw, Counter())
    assert sum(map(Counter.total, prepared)) == EVENTS


def test_the_splits_have_about_the_requested_shares(events: Path, tmp_path: Path) -> None:
    shares = {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0}
    dataset = prepare(tmp_path / "dataset", events, split=shares)
    for name, share in shares.items():
        assert abs(dataset.splits[name] - share * EVENTS) <= 5 * np.sqrt(EVENTS * share * (1 - share))


def test_two_workers_make_the_same_bytes_as_one(events: Path, dataset: Dataset, tmp_path: Path) -> None:
    parallel = prepare(tmp_path / "elsewhere", events, workers=2)
    assert content(parallel) == content(dataset)
    assert {f"{name}-00000.h5" for name in dataset.splits} < content(parallel).keys()


def test_names_order_and_times_of_inputs_do_not_matter(events: Path, dataset: Dataset, tmp_path: Path) -> None:
    first, second = sorted(events.iterdir())
    renamed = [Path(shutil.copy(second, tmp_path / "a.txt")), Path(shutil.copy(first, tmp_path / "b.txt"))]
    os.utime(renamed[0], (0, 0))
    renamed_dataset = prepare(tmp_path / "dataset", *renamed)
    assert renamed_dataset.manifest.key == dataset.manifest.key
    assert content(renamed_dataset, "*.h5") == content(dataset, "*.h5")
    assert {item.name for item in renamed_dataset.manifest.inputs} == {"a.txt", "b.txt"}


def test_a_split_is_cut_into_shards_of_the_requested_size(events: Path, dataset: Dataset, tmp_path: Path) -> None:
    sharded = prepare(tmp_path / "dataset", events, shard_mb=0.2)
    shards = sharded.manifest.splits["train"]
    assert len(shards) > 2
    assert all(shard.bytes < 0.3e6 for shard in shards)
    assert np.array_equal(sharded.read("train").fixed("event"), dataset.read("train").fixed("event"))
    sharded.verify()


@pytest.mark.parametrize("setting", ["segments.z_cut=100", "detector.z_max=500", "transforms=[]"])
def test_a_setting_that_the_data_depends_on_changes_the_key(small_file: Path, tmp_path: Path, setting: str) -> None:
    plain, changed = prepare(tmp_path / "a", small_file), prepare(tmp_path / "b", small_file, settings=[setting])
    assert plain.manifest.key != changed.manifest.key


@pytest.mark.parametrize("setting", ["model.hidden=4", "tracks.threshold=0.4", "train.epochs=1", "train.seed=3"])
def test_a_setting_of_the_model_leaves_the_data_alone(small_file: Path, tmp_path: Path, setting: str) -> None:
    plain, changed = prepare(tmp_path / "a", small_file), prepare(tmp_path / "b", small_file, settings=[setting])
    assert content(plain) == content(changed)


@pytest.mark.parametrize("options", [{"seed": 1}, {"split": {"train": 0.5, "val": 0.5}}, {"shard_mb": 1.0}], ids=str)
def test_another_split_is_another_dataset(small_file: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    plain, changed = prepare(tmp_path / "a", small_file), prepare(tmp_path / "b", small_file, **options)
    assert plain.manifest.key != changed.manifest.key


def test_one_changed_number_in_an_input_changes_the_key(small_file: Path, tmp_path: Path) -> None:
    before = prepare(tmp_path / "a", small_file)
    lines = small_file.read_text().splitlines()
    fields = lines[5].split()
    lines[5] = " ".join([fields[0], str(float(fields[1]) + 1e-5), *fields[2:]])
    small_file.write_text("\n".join(lines) + "\n")
    assert prepare(tmp_path / "b", small_file).manifest.key != before.manifest.key


def test_doing_it_again_does_nothing(small_file: Path, tmp_path: Path) -> None:
    dataset = prepare(tmp_path / "dataset", small_file)
    before = {path: path.stat() for path in dataset.path.iterdir()}
    again = prepare(tmp_path / "dataset", small_file, settings=["model.hidden=4"], workers=2, replace=True)
    assert {path: path.stat() for path in again.path.iterdir()} == before


def test_another_dataset_is_not_overwritten(small_file: Path, tmp_path: Path) -> None:
    dataset = prepare(tmp_path / "dataset", small_file)
    before = content(dataset)
    with pytest.raises(DataError, match="dataset holds another dataset; choose another --output, or use --replace"):
        prepare(tmp_path / "dataset", small_file, seed=1)
    assert content(dataset) == before


def test_another_dataset_is_replaced_if_requested(small_file: Path, tmp_path: Path) -> None:
    old = prepare(tmp_path / "dataset", small_file).manifest.key
    new = prepare(tmp_path / "dataset", small_file, seed=1, replace=True)
    assert new.manifest.key != old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "raw"]
    new.verify()


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_that_is_no_dataset_is_never_replaced(small_file: Path, tmp_path: Path, replace: bool) -> None:
    with pytest.raises(DataError, match="raw exists and is not a dataset; choose another --output"):
        prepare(small_file.parent, small_file, replace=replace)
    assert small_file.exists()


def test_an_output_that_cannot_be_made_is_named(small_file: Path) -> None:
    with pytest.raises(DataError, match=r"small\.txt/dataset: cannot be made"):
        prepare(small_file / "dataset", small_file)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_leaves_nothing_behind(events: Path, tmp_path: Path, workers: int) -> None:
    def interrupt(state: PrepareProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "dataset", events, workers=workers, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_names_the_file_and_leaves_nothing_behind(small_file: Path, tmp_path: Path, workers: int) -> None:
    bad = small_file.with_name("bad.txt")
    bad.write_text(small_file.read_text() + "1 2 3\n")
    with pytest.raises(DataError, match=r"raw/bad\.txt.*: line \d+: 3 columns, expected 6"):
        prepare(tmp_path / "dataset", small_file.parent, workers=workers)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_progress_counts_files_and_events(events: Path, tmp_path: Path) -> None:
    states: list[PrepareProgress] = []
    prepare(tmp_path / "dataset", events, progress=states.append)
    assert [(state.done, state.total) for state in states] == [(1, 2), (2, 2)]
    assert states[-1].events == EVENTS
    assert states[-1].bytes == sum(path.stat().st_size for path in events.iterdir())


def test_an_event_with_nan_is_called_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "nan.txt"
    rows = [f"{event} {'nan' if event == 600 else 80} 1 2 0 -1" for event in range(100, 700)]
    path.write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"nan\.txt.*: column 'x' holds NaN or infinity, first in event 600"):
        prepare(tmp_path / "dataset", path)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"splits": {}}, {"split": {"train": 0.5}}], ids=str)
def test_wrong_settings_are_one_line(small_file: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))) as caught:
        prepare(tmp_path / "dataset", small_file, **settings)
    assert len(str(caught.value).splitlines()) == 1


class Dropping(Recipe):
    """Breaks the contract: gives fewer samples than events."""

    def prepare(self, events: Table) -> Table:
        return events.slice(1)


def test_a_recipe_must_give_one_sample_per_event(tmp_path: Path) -> None:
    Table({"a": [1.0, 2.0, 3.0]}).save(tmp_path / "events.h5")
    with pytest.raises(RecipeError, match=r"prepare\(\) returned 2 samples for 3 events"):
        clew.prepare(Dropping, input=[str(tmp_path / "events.h5")], output=str(tmp_path / "dataset"), workers=1)
