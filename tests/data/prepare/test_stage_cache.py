"""Every stage is cached by content. Each way in which the original returned wrong or no data has a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.core.config import Section
from clew.core.file_lock import hold_lock
from clew.data.prepare.api import explain
from clew.data.prepare.explanation import Explanation
from clew.data.prepare.stage_cache import CachedResult, StageCache
from clew.data.transforms import DropShort, Standard
from clew.errors import DataError
from clew.recipe import Recipe
from clew.recipes.tracking import Tracking, TrackingConfig
from clew.recipes.tracking.segments import SegmentCuts
from tests.data.prepare.conftest import fingerprint, slow


def _prepare(recipe: Recipe, source: Path, output: Path) -> clew.Dataset:
    return clew.prepare(recipe, input=[str(source)], output=str(output), workers=1, keep="always")


def _explain(recipe: Recipe, source: Path, output: Path) -> Explanation:
    return explain(recipe, input=[str(source)], output=str(output))


def _computed(explanation: Explanation) -> list[str]:
    return [name for name, stage in explanation.stages.items() if stage.computed]


def test_a_rewritten_file_of_the_same_size_and_date_is_read_again(numbers: Path, cache: Path, tmp_path: Path) -> None:
    _prepare(slow(seconds=0), numbers, tmp_path / "first")
    stat_before = numbers.stat()
    numbers.write_text(numbers.read_text().replace("7 7.0", "7 9.0"))
    os.utime(numbers, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns))
    assert numbers.stat().st_size == stat_before.st_size
    again = _prepare(slow(seconds=0), numbers, tmp_path / "second")
    values = [v for split in again.splits for v in again.read(split).ragged("value").values.tolist()]
    assert (values.count(7.0), values.count(9.0)) == (0, 2)


@pytest.mark.parametrize("change", ["touch", "rename", "copy"])
def test_touching_renaming_and_copying_change_nothing(numbers: Path, cache: Path, tmp_path: Path, change: str) -> None:
    first = _prepare(slow(seconds=0), numbers, tmp_path / "first")
    if change == "touch":
        os.utime(numbers)
        moved = numbers
    elif change == "rename":
        moved = numbers.rename(tmp_path / "other name.txt")
    else:
        moved = Path(shutil.copy(numbers, tmp_path / "copy.txt"))
    assert not _computed(_explain(slow(seconds=0), moved, tmp_path / "second"))
    second = _prepare(slow(seconds=0), moved, tmp_path / "second")
    assert second.manifest.key == first.manifest.key


def test_the_order_of_files_does_not_change_fitted_numbers_nor_the_dataset(events: Path, tmp_path: Path) -> None:
    recipe = Tracking(TrackingConfig(transforms=(Standard(columns=("z",)),)))
    files = sorted(map(str, events.iterdir()))
    one = clew.prepare(recipe, input=files, output=str(tmp_path / "one"), workers=1)
    two = clew.prepare(recipe, input=files[::-1], output=str(tmp_path / "two"), workers=2)
    assert one.manifest.transforms == two.manifest.transforms
    assert fingerprint(one.path) == fingerprint(two.path)


def test_a_changed_cut_recomputes_the_graphs_and_nothing_else(events: Path, cache: Path, tmp_path: Path) -> None:
    _prepare(Tracking(), events, tmp_path / "first")
    tighter = Tracking(TrackingConfig(segments=SegmentCuts(z_cut=80)))
    explanation = _explain(tighter, events, tmp_path / "first")
    assert _computed(explanation) == ["prepare"]
    assert any("z_cut" in line for line in explanation.reasons["prepare"])


def test_a_changed_transform_recomputes_what_comes_after_reading(events: Path, cache: Path, tmp_path: Path) -> None:
    _prepare(Tracking(), events, tmp_path / "first")
    other = Tracking(TrackingConfig(transforms=(DropShort(stations=2),)))
    explanation = _explain(other, events, tmp_path / "first")
    assert _computed(explanation) == ["drop_short", "prepare"]


def test_the_network_and_track_building_do_not_count(events: Path, tmp_path: Path) -> None:
    first = _prepare(Tracking(), events, tmp_path / "dataset")
    data = {**TrackingConfig().model_dump(), "model": {"hidden": 7}, "tracks": {"threshold": 0.9}}
    again = _prepare(Tracking(TrackingConfig.model_validate(data)), events, tmp_path / "dataset")
    assert again.manifest.key == first.manifest.key


def test_the_last_stage_is_cached_too(numbers: Path, cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _prepare(slow(seconds=0, log=str(log)), numbers, tmp_path / "first")
    worked = log.read_text()
    shutil.rmtree(tmp_path / "first")
    _prepare(slow(seconds=0, log=str(log)), numbers, tmp_path / "second")
    assert log.read_text() == worked


def test_a_changed_line_in_a_file_recomputes_its_pieces_only(events: Path, cache: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(events, tmp_path / "events"))
    _prepare(Tracking(), copied, tmp_path / "first")
    changed = sorted(copied.iterdir())[0]
    changed.write_text(changed.read_text().replace("\t-1\n", "\t-1 \n", 1))
    explanation = _explain(Tracking(), copied, tmp_path / "first")
    assert {(stage.computed, stage.pieces) for stage in explanation.stages.values()} == {(1, 2)}
    assert any(changed.name in line for line in explanation.reasons["inputs"])


def test_results_are_written_to_disk_during_the_work(numbers: Path, cache: Path, tmp_path: Path) -> None:
    cached_files = []
    clew.prepare(
        slow(seconds=0),
        input=[str(numbers)],
        output=str(tmp_path / "dataset"),
        workers=1,
        progress=lambda state: cached_files.append(len(list(cache.glob("prepare/*/*.table")))),
    )
    assert all(done <= there <= done + 2 for done, there in enumerate(cached_files, start=1))


def test_a_damaged_cache_entry_is_made_again(numbers: Path, cache: Path, tmp_path: Path) -> None:
    first = _prepare(slow(seconds=0), numbers, tmp_path / "first")
    for path in list(cache.glob("prepare/*/*.table"))[:3]:
        path.write_bytes(path.read_bytes()[:100])
    second = _prepare(slow(seconds=0), numbers, tmp_path / "second")
    assert fingerprint(first.path) == fingerprint(second.path)


def test_only_the_configured_stages_stay(numbers: Path, cache: Path, tmp_path: Path) -> None:
    clew.prepare(slow(seconds=0), input=[str(numbers)], output=str(tmp_path / "d"), workers=1, keep=["read"])
    assert list(cache.glob("read/*/*.table"))
    assert not list(cache.glob("prepare/*/*.table"))


def test_verify_notices_an_altered_shard_that_dates_do_not_show(numbers: Path, cache: Path, tmp_path: Path) -> None:
    dataset = _prepare(slow(seconds=0), numbers, tmp_path / "d")
    shard = dataset.path / dataset.manifest.splits["train"][0].file
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    _prepare(slow(seconds=0), numbers, tmp_path / "d")
    with pytest.raises(DataError, match=shard.name):
        clew.prepare(slow(seconds=0), input=[str(numbers)], output=str(tmp_path / "d"), workers=1, verify=True)


@pytest.mark.slow
def test_a_hash_is_remembered_only_for_a_file_left_alone(numbers: Path, cache: Path, tmp_path: Path) -> None:
    _prepare(slow(seconds=0), numbers, tmp_path / "first")
    assert "hashes" not in [path.stem for path in (cache / "notes").iterdir()] or (
        str(numbers) not in (cache / "notes" / "hashes.json").read_text()
    )
    time.sleep(2.1)
    _prepare(slow(seconds=0), numbers, tmp_path / "second")
    assert len((cache / "notes" / "hashes.json").read_text()) > 2


@pytest.mark.parametrize("by", ["event", "file"])
def test_explain_says_up_to_date(events: Path, cache: Path, tmp_path: Path, by: str) -> None:
    options: dict[str, Any] = {"input": [str(events)], "output": str(tmp_path / "d"), "split_by": by}
    clew.prepare("tracking", workers=1, **options)
    assert explain("tracking", **options).dataset == "up to date"


class Streamed(Recipe):
    """Its `read` is a generator, which can only be read from the beginning."""

    def read(self, path: str) -> Iterator[clew.Table]:
        lines = Path(path).read_text().split()
        for first in range(0, len(lines), 4):
            yield clew.Table({"value": [float(line) for line in lines[first : first + 4]]})

    def prepare(self, events: clew.Table) -> clew.Table:
        return events

    def model(self) -> Any:
        raise AssertionError("only prepared here")


@pytest.mark.parametrize("pruned", ["all", "one piece", "prepare"])
def test_a_recipe_that_yields_tables_is_prepared_again_after_the_cache_was_pruned(
    cache: Path, tmp_path: Path, pruned: str
) -> None:
    (tmp_path / "values.txt").write_text("\n".join(map(str, range(12))))
    first = _prepare(Streamed(), tmp_path / "values.txt", tmp_path / "first")
    stages = StageCache(cache)
    if pruned == "all":
        assert len(stages.prune(keep=0)) == 6
    for entry in [each for each in stages.entries() if pruned == "one piece" or each.stage == pruned][:2]:
        entry.path.unlink()
    again = _prepare(Streamed(), tmp_path / "values.txt", tmp_path / "again")
    assert fingerprint(again.path) == fingerprint(first.path)


class GroupSize(Section):
    """How many values are read at once."""

    size: int = 4


class Groups(Section):
    """Settings of `InGroups`."""

    read: GroupSize = GroupSize()


class InGroups(Streamed):
    """The same, with a number of values per table that a setting decides."""

    Config = Groups

    def read(self, path: str) -> Iterator[clew.Table]:
        lines = Path(path).read_text().split()
        for first in range(0, len(lines), self.config.read.size):
            yield clew.Table({"value": [float(line) for line in lines[first : first + self.config.read.size]]})


def test_the_number_of_tables_that_a_recipe_yields_depends_on_its_settings(cache: Path, tmp_path: Path) -> None:
    """Fewer tables with other settings in between must not hide the last tables of the first ones."""
    (tmp_path / "values.txt").write_text("\n".join(map(str, range(12))))
    small, large = (InGroups(Groups.model_validate({"read": {"size": size}})) for size in (2, 6))
    first = _prepare(small, tmp_path / "values.txt", tmp_path / "first")
    _prepare(large, tmp_path / "values.txt", tmp_path / "between")
    again = _prepare(small, tmp_path / "values.txt", tmp_path / "again")
    assert sum(again.splits.values()) == 12
    assert fingerprint(again.path) == fingerprint(first.path)


def test_pruning_removes_the_least_recently_used_results(cache: Path) -> None:
    stages, table = StageCache(cache), clew.Table({"value": [1.0]})
    for number, key in enumerate(("aa", "bb", "cc")):
        stages.put("read", key, CachedResult(table, {}))
        os.utime(stages.path("read", key), (1000.0 + number, 1000.0 + number))
    assert stages.get("read", "aa") is not None  # the oldest one is used again
    one = stages.path("read", "aa").stat().st_size
    assert [entry.key for entry in stages.prune(keep=2 * one)] == ["bb"]
    assert [entry.key for entry in stages.prune(older_than=3600.0)] == ["cc"]
    assert stages.has("read", "aa")


def test_results_of_older_versions_are_listed_and_pruned(cache: Path) -> None:
    stages, old = StageCache(cache), cache / "prepare" / "ab" / "abcd.h5"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"HDF5")
    stages.put("read", "aa", CachedResult(clew.Table({"value": [1.0]}), {}))
    assert [entry.key for entry in stages.entries()] == ["abcd", "aa"]
    assert len(stages.prune(keep=0)) == 2
    assert not old.exists()


def test_the_folder_of_a_running_preparation_is_not_removed(numbers: Path, cache: Path, tmp_path: Path) -> None:
    running, killed = tmp_path / ".set-a.partial", tmp_path / ".set-b.partial"
    for folder in (running, killed):
        folder.mkdir()
        (folder / ".lock").touch()
    with hold_lock(running / ".lock"):
        _prepare(slow(seconds=0), numbers, tmp_path / "set")
        assert running.exists() and not killed.exists()
    shutil.rmtree(tmp_path / "set")
    _prepare(slow(seconds=0), numbers, tmp_path / "set")
    assert not running.exists()


def test_files_of_killed_processes_are_removed_and_those_of_running_ones_stay(cache: Path) -> None:
    store, started = StageCache(cache), []
    for number in (1, 2):
        code = f"""
            import time
            from pathlib import Path
            from clew.core import files
            from clew.data.prepare import stage_cache
            from clew.data.table import Table

            def write_slowly(file, content):
                files.write_all(file, bytes(content)[:10])
                print("written", flush=True)
                time.sleep(600)

            stage_cache.write_all = write_slowly
            result = stage_cache.CachedResult(Table({{"a": [1, 2, 3]}}), {{}})
            stage_cache.StageCache(Path({str(cache)!r})).put("read", "{number}{number}", result)
        """
        started.append(subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE))
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.stdout.close()
    started[0].kill()
    started[0].wait()
    try:
        assert len(list(cache.rglob("*.tmp"))) == 2
        store.remove_unfinished()
        assert [path.name[:2] for path in cache.rglob("*.tmp")] == ["22"]
    finally:
        started[1].kill()
        started[1].wait()
    _ = store.prune()
    assert not list(cache.rglob("*.tmp"))
    assert not store.has("read", "11") and not store.has("read", "22")
