"""The files of a pattern, and the split of an event."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.data.prepare import inputs
from clew.data.prepare.inputs import FileHashes, InputSource, expand_patterns, split_of
from clew.data.prepare.stage_cache import StageCache
from clew.errors import DataError

SPLIT = {"train": 0.8, "val": 0.1, "test": 0.1}
SOURCE = InputSource("events.txt", 1, "ab12")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, a hidden one and a folder."""
    for name, text in {"b.txt": "1", "a.txt": "2", "c.dat": "3", ".hidden": "4"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "d.txt").write_text("5")
    return tmp_path


def find(*patterns: str | Path, cache: Path | None = None) -> list[InputSource]:
    """The sources of patterns, with an empty cache by default."""
    hashes = FileHashes(StageCache(cache or Path(tempfile.mkdtemp())))
    return inputs.find_sources([str(pattern) for pattern in patterns], hashes, lambda location: inputs.RelatedFiles())


def names(*patterns: str | Path) -> set[str]:
    return {Path(source.location).name for source in find(*patterns)}


def test_a_file_a_folder_and_a_glob_are_found(folder: Path) -> None:
    assert names(folder / "a.txt") == {"a.txt"}
    assert names(folder) == {"a.txt", "b.txt", "c.dat"}
    assert names(folder / "*.txt") == {"a.txt", "b.txt"}
    assert names(folder / "**" / "*.txt") == {"a.txt", "b.txt", "d.txt"}


def test_a_relative_name_is_found_from_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert names("a.txt") == names("./inner/../a.txt") == {"a.txt"}


def test_a_file_named_twice_is_read_once(folder: Path) -> None:
    (folder / "link.txt").symlink_to(folder / "a.txt")
    assert len(find(folder / "a.txt", folder / "*.txt")) == 2


@pytest.mark.parametrize("name", ["a[1].txt", "what?.txt", "it's.txt", "two words.txt", "ä.txt"])
def test_odd_names_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1")
    assert names(tmp_path / name) == {name}


def test_the_order_is_that_of_the_content(folder: Path) -> None:
    before = [source.sha256 for source in find(folder)]
    (folder / "a.txt").rename(folder / "z.txt")
    os.utime(folder / "b.txt", (0, 0))
    patterns = [folder / name for name in ("z.txt", "c.dat", "b.txt")]
    assert [source.sha256 for source in find(*patterns)] == before == sorted(before)


@pytest.mark.parametrize("pattern", ["none.txt", "*.root", "inner/none/*"])
def test_a_pattern_that_matches_nothing_is_named(folder: Path, pattern: str) -> None:
    with pytest.raises(DataError) as caught:
        find(folder / "a.txt", folder / pattern)
    assert str(caught.value) == f"no input file matches '{folder / pattern}'"


def test_no_pattern_at_all_says_how_to_give_one() -> None:
    with pytest.raises(DataError, match="no input given; name files with --input"):
        find()


def test_an_empty_file_is_named(folder: Path) -> None:
    (folder / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"a\.txt: the file is empty"):
        find(folder)


def test_a_hash_is_remembered_until_the_file_changes(folder: Path, tmp_path: Path) -> None:
    path, cache = folder / "a.txt", tmp_path / "cache"
    os.utime(path, (1e9, 1e9))
    (first,) = find(path, cache=cache)
    assert find(path, cache=cache) == [first]
    path.write_text("9")
    (changed,) = find(path, cache=cache)
    assert changed.sha256 != first.sha256
    assert changed.bytes == first.bytes == 1


def test_a_file_rewritten_at_once_is_noticed(folder: Path, tmp_path: Path) -> None:
    path, cache = folder / "a.txt", tmp_path / "cache"
    hashes = set()
    for text in ("1", "2", "3"):
        path.write_text(text)
        hashes.add(find(path, cache=cache)[0].sha256)
    assert len(hashes) == 3


def test_a_companion_counts_in_the_hash_and_is_no_input(folder: Path, tmp_path: Path) -> None:
    def related_files(location: str) -> inputs.RelatedFiles:
        return inputs.RelatedFiles([location.replace("a.txt", "b.txt")] if location.endswith("a.txt") else [])

    def both() -> list[InputSource]:
        return inputs.find_sources([str(folder / "*.txt")], FileHashes(StageCache(tmp_path / "cache")), related_files)

    (before,) = both()
    (folder / "b.txt").write_text("changed")
    (after,) = both()
    assert Path(after.location).name == "a.txt"
    assert after.sha256 != before.sha256


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**40))
def test_the_split_of_an_event_does_not_depend_on_the_chunk(first: int, second: int, start: int) -> None:
    whole = split_of(SOURCE, start, first + second, SPLIT, seed=1)
    parts = [split_of(SOURCE, start, first, SPLIT, 1), split_of(SOURCE, start + first, second, SPLIT, 1)]
    assert np.array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("sha", ["ab12", "ab13", "0" * 64])
def test_shares_are_as_configured(sha: str) -> None:
    count = 100_000
    counts = np.bincount(split_of(InputSource("x", 1, sha), 0, count, SPLIT, seed=0), minlength=3)
    for got, share in zip(counts, SPLIT.values(), strict=True):
        assert abs(got - share * count) < 5 * np.sqrt(count * share * (1 - share))


def test_a_share_of_nothing_or_of_all_is_exact() -> None:
    assert set(split_of(SOURCE, 0, 10_000, {"train": 1.0, "val": 0.0}, 0)) == {0}
    assert set(split_of(SOURCE, 0, 10_000, {"train": 0.0, "val": 1.0}, 0)) == {1}


def test_another_seed_or_another_file_is_another_split() -> None:
    first = split_of(SOURCE, 0, 1000, SPLIT, seed=0)
    assert not np.array_equal(first, split_of(SOURCE, 0, 1000, SPLIT, seed=1))
    assert not np.array_equal(first, split_of(InputSource("events.txt", 1, "cd"), 0, 1000, SPLIT, seed=0))
    assert np.array_equal(first, split_of(InputSource("other.txt", 9, "ab12"), 0, 1000, SPLIT, seed=0))


def test_a_list_names_patterns_one_per_line(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "files").write_text(f"# what to read\n{tmp_path}/*.txt\n\n{tmp_path}/c.csv\n{tmp_path}/a.txt\n")
    locations = expand_patterns([f"@{tmp_path}/files"])
    assert [Path(name).name for name in locations] == ["a.txt", "b.txt", "c.csv"]


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        expand_patterns([f"@{tmp_path}/nothing"])
