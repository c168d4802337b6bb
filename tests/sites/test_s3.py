"""Against a real S3 server (SeaweedFS): transfers, faults, and the steps from events to a model on another machine."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clew import storage
from clew.errors import DataError
from clew.storage import transfer
from tests.sites.conftest_s3 import READER, READER_SECRET, S3, forget
from tests.sites.roundtrip import User, whole_way
from tests.sites.servers import small_disk

pytestmark = pytest.mark.timeout(900)
BUCKET = "s3://shared"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(s3: S3, request: pytest.FixtureRequest) -> str:
    """A unique location for one test."""
    import s3fs

    s3fs.S3FileSystem().makedirs("shared", exist_ok=True)
    return f"{BUCKET}/{request.node.name}"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file of seven parts."""
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(6 * transfer.PART + 12_345))
    return path


def killed_after(s3: S3, parts: int, *, again: bool = False) -> Callable[[storage.TransferProgress], None]:
    """Kills the server after this number of parts."""
    killed = threading.Event()

    def watch(state: storage.TransferProgress) -> None:
        if state.done >= parts * transfer.PART and not killed.is_set():
            killed.set()
            s3.server.kill()
            if again:
                threading.Timer(1.0, s3.server.start).start()

    return watch


def test_a_folder_goes_up_and_comes_back(bucket: str, tmp_path: Path) -> None:
    for name, size in {"a.txt": 10, "inner/b.bin": transfer.PART + 1, "empty": 0, "manifest.json": 3}.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(os.urandom(size))
    sent = storage.copy(tmp_path / "out", bucket)
    assert (sent.files, sent.unchanged, sent.done) == (4, 0, sent.total)
    assert storage.copy(tmp_path / "out", bucket).unchanged == 4
    storage.copy(bucket, tmp_path / "back")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert (tmp_path / "back" / path.relative_to(tmp_path / "out")).read_bytes() == path.read_bytes()
    assert storage.copy(bucket, tmp_path / "back").unchanged == 4


def test_a_download_cut_by_the_server_resumes(
    s3: S3, bucket: str, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.copy(big, f"{bucket}/big.bin")
    monkeypatch.setattr(transfer, "TRIES", 1)
    with pytest.raises(storage.StoreUnavailableError, match="does not answer"):
        storage.copy(f"{bucket}/big.bin", tmp_path / "back.bin", watch=killed_after(s3, 2), workers=1)
    assert not (tmp_path / "back.bin").exists()
    s3.server.start()
    done = storage.copy(f"{bucket}/big.bin", tmp_path / "back.bin")
    assert 2 * transfer.PART <= done.resumed < done.total
    assert (tmp_path / "back.bin").read_bytes() == big.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_an_upload_cut_by_the_server_resumes(
    s3: S3, bucket: str, big: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "TRIES", 1)
    with pytest.raises(storage.StoreUnavailableError, match="does not answer"):
        storage.copy(big, f"{bucket}/big.bin", watch=killed_after(s3, 2), workers=1)
    s3.server.start()
    done = storage.copy(big, f"{bucket}/big.bin")
    assert 2 * transfer.PART <= done.resumed < done.total
    storage.copy(f"{bucket}/big.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == big.read_bytes()
    assert not list((own_cache / "transfers").iterdir())


def test_a_server_that_comes_back_in_time_is_not_noticed(s3: S3, bucket: str, big: Path, tmp_path: Path) -> None:
    storage.copy(big, f"{bucket}/big.bin")
    watch = killed_after(s3, 2, again=True)
    done = storage.copy(f"{bucket}/big.bin", tmp_path / "back.bin", watch=watch, workers=2)
    assert done.resumed == 0
    assert (tmp_path / "back.bin").read_bytes() == big.read_bytes()


def test_an_upload_that_the_server_has_forgotten_restarts(bucket: str, big: Path, own_cache: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        storage.copy(big, f"{bucket}/big.bin", watch=_interrupt, workers=1)
    (note,) = (own_cache / "transfers").glob("*.json")
    progress = json.loads(note.read_text())
    note.write_text(json.dumps({**progress, "memory": {"upload": "gone"}}))
    done = storage.copy(big, f"{bucket}/big.bin")
    assert done.resumed == 0 and done.done == done.total


def _interrupt(state: storage.TransferProgress) -> None:
    if state.done >= 2 * transfer.PART:
        raise KeyboardInterrupt


def test_bytes_altered_on_the_way_are_refused(
    bucket: str, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.copy(big, f"{bucket}/big.bin")
    from clew.storage import s3 as module

    honest = module.S3Store.read
    monkeypatch.setattr(
        module.S3Store,
        "read",
        lambda self, held, start, stop: bytes(stop - start) if start else honest(self, held, start, stop),
    )
    with pytest.raises(storage.ChecksumMismatchError, match=r"checksum mismatch \(sha256 .*try again"):
        storage.copy(f"{bucket}/big.bin", tmp_path / "back.bin")
    assert not (tmp_path / "back.bin").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("key", ["a", "wrong"])
def test_wrong_credentials_are_reported(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    (tmp_path / "a").write_text("1")
    storage.copy(tmp_path / "a", f"{bucket}/a")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not the secret")
    forget()
    for source, target in ((f"{bucket}/a", str(tmp_path / "b")), (str(tmp_path / "a"), f"{bucket}/c")):
        with pytest.raises(DataError, match="wrong credentials; set AWS_ACCESS_KEY_ID") as caught:
            storage.copy(source, target)
        assert "not the secret" not in str(caught.value)


def test_no_permission_to_write_is_reported(
    s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("1")
    storage.copy(tmp_path / "a", f"{bucket}/a")
    for name, value in s3.environment(READER, READER_SECRET).items():
        monkeypatch.setenv(name, value)
    forget()
    storage.copy(f"{bucket}/a", tmp_path / "b")
    with pytest.raises(DataError, match=r"cannot be written \(no permission"):
        storage.copy(tmp_path / "a", f"{bucket}/c")


def test_missing_objects_are_reported(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    with pytest.raises(DataError, match="nothing there"):
        storage.copy(f"{bucket}/none", tmp_path / "b")
    with pytest.raises(DataError, match="no such bucket"):
        storage.copy("s3://no-such-bucket/none", tmp_path / "b")
    with pytest.raises(DataError, match="no such bucket"):
        storage.copy(tmp_path / "a", "s3://no-such-bucket/a")


def test_a_model_is_trained_stored_fetched_and_evaluated(s3: S3, bucket: str, events: Path, tmp_path: Path) -> None:
    users = [User(tmp_path / name, s3.environment()) for name in ("one", "other")]
    whole_way(users[0], users[1], events, f"{bucket}/", f"{bucket}/models")


def test_faults_are_one_line_and_exit_2(s3: S3, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    user = User(tmp_path / "user", s3.environment())
    assert "nothing there" in user.fails("data", "get", f"{bucket}/none", "x")
    assert "no such bucket" in user.fails("data", "put", str(tmp_path / "a"), "s3://no-such-bucket/a")
    assert "no such file" in user.fails("train", "tracking", "--dataset", f"{bucket}/none")
    wrong = User(tmp_path / "wrong", s3.environment("who", "not-the-secret"))
    line = wrong.fails("data", "put", str(tmp_path / "a"), f"{bucket}/a")
    assert "wrong credentials; set AWS_ACCESS_KEY_ID" in line and "not-the-secret" not in line
    unreachable = User(tmp_path / "unreachable", {**s3.environment(), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert "does not answer" in unreachable.fails("data", "get", f"{bucket}/a", "x")


def test_a_full_disk_here_is_reported_before_anything_moves(s3: S3, bucket: str, big: Path, tmp_path: Path) -> None:
    storage.copy(big, f"{bucket}/big.bin")
    user = User(tmp_path / "user", s3.environment())
    with small_disk(tmp_path / "small") as small:
        line = user.fails("data", "get", f"{bucket}/big.bin", str(small / "big.bin"))
        assert f"{small / 'big.bin'}: cannot be written (no space left there; make room" in line
        assert not list(small.iterdir())
        full = replace(user, environment={**s3.environment(), "CLEW_CACHE": str(small)})
        assert "no space left there" in full.fails("train", "tracking", "--dataset", f"{bucket}/big.bin")


def test_a_target_that_cannot_be_written_is_named(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("1")
    storage.copy(tmp_path / "a", f"{bucket}/a")
    with pytest.raises(DataError, match=r"^/proc/1/a: cannot be written \("):
        storage.copy(f"{bucket}/a", "/proc/1/a")
