"""Copies of inputs: cached, shared, checked, and removed when space is needed, but never while in use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clew import storage
from clew.storage import InputCache
from clew.storage.local_disk import LocalDisk


@pytest.fixture
def inputs(tmp_path: Path) -> InputCache:
    return InputCache(tmp_path / "cache")


def write_input(tmp_path: Path, name: str, size: int = 1000) -> str:
    (tmp_path / "from").mkdir(exist_ok=True)
    (tmp_path / "from" / name).write_bytes(os.urandom(size))
    return str(tmp_path / "from" / name)


def names(inputs: InputCache) -> list[str]:
    return [Path(each.location).name for each in inputs.entries()]


def use(inputs: InputCache, location: str) -> Path | None:
    with inputs.local_copy(location) as path:
        assert path is None or path.read_bytes() == Path(location).read_bytes()
        time.sleep(0.01)  # times of use differ
        return path


def test_a_second_use_reads_the_copy(inputs: InputCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = write_input(tmp_path, "a")
    first = use(inputs, location)
    monkeypatch.setattr(LocalDisk, "read", None)
    assert use(inputs, location) == first
    assert inputs.sha256(location) == storage.checksum([location])


def test_a_folder_is_one_copy(inputs: InputCache, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_input(tmp_path, name)
    with inputs.local_copy(str(tmp_path / "from")) as path:
        assert path is not None and sorted(each.name for each in path.iterdir()) == ["a", "b"]
    assert [each.bytes for each in inputs.entries()] == [2000]


def test_a_source_that_changed_is_fetched_again(tmp_path: Path) -> None:
    location = write_input(tmp_path, "a")
    use(InputCache(tmp_path / "cache"), location)
    write_input(tmp_path, "a")
    use(InputCache(tmp_path / "cache"), location)


def test_the_least_recently_used_goes_first(inputs: InputCache, tmp_path: Path) -> None:
    inputs.limit = 2500
    places = {name: write_input(tmp_path, name) for name in ("a", "b", "c")}
    for name in ("a", "b", "a", "c"):
        use(inputs, places[name])
    assert names(inputs) == ["a", "c"]


def test_one_in_use_stays(inputs: InputCache, tmp_path: Path) -> None:
    inputs.limit = 1500
    with inputs.local_copy(write_input(tmp_path, "a")) as path:
        assert path is not None
        assert use(inputs, write_input(tmp_path, "b")) is None  # there is no space: it is read at its location
        assert path.exists()
    assert use(inputs, str(tmp_path / "from" / "b")) is not None
    assert names(inputs) == ["b"]


def test_one_in_use_by_another_process_stays(inputs: InputCache, tmp_path: Path) -> None:
    location = write_input(tmp_path, "a")
    code = (
        "import sys; from pathlib import Path; from clew.storage import InputCache\n"
        "with InputCache(Path(sys.argv[1])).local_copy(sys.argv[2]) as path:\n"
        "    print(path, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache"), location]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        path = Path(reader.stdout.readline().strip())
        inputs.limit = 10
        assert path.exists()
        reader.communicate("")
    assert not inputs.free_space(0) or not path.exists()
    assert names(inputs) == []


def test_many_processes_fetch_it_once(tmp_path: Path) -> None:
    location = write_input(tmp_path, "a", 3_000_000)
    code = (
        "import sys; from pathlib import Path; from clew.storage import InputCache\n"
        "with InputCache(Path(sys.argv[1])).local_copy(sys.argv[2]) as path:\n"
        "    print(path.stat().st_mtime_ns, len(path.read_bytes()))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache"), location]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {each.communicate()[0].strip() for each in started}
    assert len(outputs) == 1 and outputs.pop().endswith(" 3000000")


def test_a_copy_that_was_altered_is_fetched_again(inputs: InputCache, tmp_path: Path) -> None:
    location = write_input(tmp_path, "a")
    path = use(inputs, location)
    assert path is not None
    path.write_bytes(b"x" * 1000)
    assert use(inputs, location) == path


def test_a_copy_with_only_a_new_date_stays(inputs: InputCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = write_input(tmp_path, "a")
    path = use(inputs, location)
    assert path is not None
    os.utime(path)
    monkeypatch.setattr(LocalDisk, "read", None)
    assert use(inputs, location) == path


def test_an_input_larger_than_the_limit_is_not_cached(inputs: InputCache, tmp_path: Path) -> None:
    inputs.limit = 500
    assert use(inputs, write_input(tmp_path, "a")) is None
    assert names(inputs) == []


def test_an_interrupted_fetch_is_listed_resumed_and_removed(
    inputs: InputCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = write_input(tmp_path, "large", 3_000_000)

    def cut(source: str, path: Path, **options: object) -> None:
        path.with_name(".large.clew-part").write_bytes(b"x" * 2_000_000)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("clew.storage.input_cache.copy", cut)
        with pytest.raises(KeyboardInterrupt):
            use(inputs, location)
    (left,) = inputs.entries()
    assert "large" in left.location and left.location.endswith("(a part)") and left.bytes >= 2_000_000
    inputs.limit = 3_500_000
    assert use(inputs, location) is not None  # its own partial copy does not count
    assert names(inputs) == ["large"]
    other = write_input(tmp_path, "other", 400_000)
    with monkeypatch.context() as patch:
        patch.setattr("clew.storage.input_cache.copy", cut)
        with pytest.raises(KeyboardInterrupt):
            use(inputs, other)
    assert len(inputs.entries()) == 2
    inputs.limit = 1_000_000  # both must be removed
    assert inputs.entries() == [] and not list(inputs.folder.glob("*/data"))
