"""Listings that are kept between two calls: the same as read again, whatever happened to the runs in between."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clew.runs import Run, list_runs, listing_cache
from clew.runs.listing import RunListing, list_run
from clew.runs.listing_cache import list_folder
from tests.runs import end, lines, plan, start, training, written


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of the runs whose records were read; the cache is empty."""
    names: list[str] = []
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))

    def read(run: Run) -> RunListing:
        names.append(run.path.name)
        return list_run(run)

    monkeypatch.setattr(listing_cache, "list_run", read)
    return names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs that finished, failed, were killed, never trained, and one that was not started."""
    folder = tmp_path / "runs"
    written(folder / "a-finished", start(), plan(), *training(3), end())
    written(folder / "b-failed", start(), plan(), *training(1), end("failed", "no beam"))
    killed = written(folder / "c-killed", start(ranks=2), plan(), *training(1))
    (killed.records_folder / "rank-1.jsonl").write_text(lines([start(rank=1, ranks=2), end("failed", "boom")]))
    written(folder / "d-untrained", start(), end("failed", "no data"))
    written(folder / "e-created")
    return folder


def test_ended_runs_are_read_once_and_listed_the_same(root: Path, reads: list[str]) -> None:
    direct = [list_run(run) for run in list_runs(root)]
    assert list_folder(root) == direct
    assert len(reads) == 5
    reads.clear()
    assert list_folder(root) == direct
    assert reads == ["d-untrained", "e-created"]  # the first run's folder may be used again, the second may start


def test_a_running_run_is_read_again_each_time(root: Path, reads: list[str]) -> None:
    running = written(root / "f-running", start(pid=os.getpid()), plan(), *training(1))
    stream = running.records_folder / "rank-0.jsonl"
    stream.write_text(stream.read_text().replace('"time": 1', '"time": 9'))
    assert [list_folder(root)[-1].state for _ in range(2)] == ["running", "running"]
    assert reads.count("f-running") == 2


@pytest.mark.parametrize("file", ["records/rank-0.jsonl", "records/rank-1.jsonl", "config.yaml"])
def test_a_run_with_a_changed_file_is_read_again(root: Path, reads: list[str], file: str) -> None:
    list_folder(root)
    with (root / "c-killed" / file).open("a") as stream:
        stream.write("\n" if file == "config.yaml" else lines([start(), end("failed", "later")]))
    listed = list_folder(root)
    assert reads.count("c-killed") == 2
    assert listed == [list_run(run) for run in list_runs(root)]


def test_a_moved_or_removed_run_is_listed_as_it_is_now(root: Path, reads: list[str]) -> None:
    list_folder(root)
    (root / "a-finished").rename(root / "g-renamed")
    shutil.rmtree(root / "b-failed")
    assert list_folder(root) == [list_run(run) for run in list_runs(root)]
    assert (list_folder(root)[-1].name, list_folder(root)[-1].path) == ("g-renamed", str(root / "g-renamed"))


def test_a_run_that_lost_its_settings_comes_last(root: Path, reads: list[str]) -> None:
    list_folder(root)
    (root / "a-finished" / "config.yaml").unlink()
    last = list_folder(root)[-1]
    assert (last.name, last.state) == ("a-finished", "damaged")
    assert "config.yaml is missing" in last.message


@pytest.mark.parametrize("content", ["", "}{", "[]", '{"version": [0, ""], "runs": {"a-finished": []}}', '{"runs": 1}'])
def test_a_damaged_or_old_cache_is_ignored(root: Path, reads: list[str], tmp_path: Path, content: str) -> None:
    before = list_folder(root)
    (file,) = (tmp_path / "cache" / "listings").iterdir()
    file.write_text(content)
    assert list_folder(root) == before
    assert reads.count("a-finished") == 2


def test_without_a_place_for_the_cache_the_runs_are_listed(
    root: Path, reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "file"))
    assert len(list_folder(root)) == 5


def test_a_missing_folder_has_no_runs(tmp_path: Path, reads: list[str]) -> None:
    assert list_folder(tmp_path / "none") == []
