"""Against a real XRootD server: transfers, faults, and the steps from events to a model on another machine.

Everything runs as commands in the network of the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clew.storage import transfer
from tests.sites.conftest_xrootd import Xrootd
from tests.sites.roundtrip import User, whole_way
from tests.sites.servers import small_disk

pytestmark = pytest.mark.timeout(900)
PARTS = 24


@pytest.fixture
def place(xrootd: Xrootd, request: pytest.FixtureRequest) -> str:
    """A unique location for one test."""
    return f"{xrootd.url}/{request.node.name}"


@pytest.fixture
def user(xrootd: Xrootd, tmp_path: Path) -> User:
    return xrootd.user(tmp_path / "user")


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom((PARTS - 1) * transfer.PART + 12_345))
    return path


def killed_in_the_middle(xrootd: Xrootd, user: User, note: Path, *arguments: str) -> None:
    """Runs a copy, kills the server after some parts, and checks the message of the copy."""
    command = [*user.before, str(Path(sys.executable).with_name("clew")), *arguments, "--workers", "1"]
    environment = {**os.environ, "CLEW_CACHE": str(user.folder / "cache")}
    user.folder.mkdir(exist_ok=True)
    with subprocess.Popen(command, cwd=user.folder, env=environment, stderr=subprocess.PIPE, text=True) as copying:
        while len(_parts(note)) < 2:
            assert copying.poll() is None, "it was done before the server could be killed"
            time.sleep(0.002)
        xrootd.server.kill()
        _, errors = copying.communicate(timeout=400)
    xrootd.server.start()
    assert copying.returncode == 2 and "does not answer" in errors, errors


def _parts(folder: Path) -> dict[str, object]:
    for note in folder.glob("*.json") if folder.is_dir() else ():
        try:
            return dict(json.loads(note.read_text())["parts"])
        except (OSError, ValueError):
            continue
    return {}


def test_a_folder_goes_up_and_comes_back(user: User, place: str, tmp_path: Path) -> None:
    for name, size in {"a.txt": 10, "inner/b.bin": transfer.PART + 1, "empty": 0}.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(os.urandom(size))
    user.succeeds("data", "put", str(tmp_path / "out"), place)
    assert "3 unchanged" in user.succeeds("data", "put", str(tmp_path / "out"), place)
    user.succeeds("data", "get", place, "back")
    for name in ("a.txt", "inner/b.bin", "empty"):
        assert (user.folder / "back" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_a_download_cut_by_the_server_resumes(xrootd: Xrootd, user: User, place: str, big: Path) -> None:
    user.succeeds("data", "put", str(big), f"{place}/big.bin")
    killed_in_the_middle(xrootd, user, user.folder / "down", "data", "get", f"{place}/big.bin", "down/big.bin")
    assert "MB resumed" in user.succeeds("data", "get", f"{place}/big.bin", "down/big.bin")
    assert (user.folder / "down" / "big.bin").read_bytes() == big.read_bytes()


def test_an_upload_cut_by_the_server_resumes(xrootd: Xrootd, user: User, place: str, big: Path) -> None:
    notes = user.folder / "cache" / "transfers"
    killed_in_the_middle(xrootd, user, notes, "data", "put", str(big), f"{place}/big.bin")
    assert "MB resumed" in user.succeeds("data", "put", str(big), f"{place}/big.bin")
    assert (xrootd.disk / place.rpartition("/")[2] / "big.bin").read_bytes() == big.read_bytes()


def test_bytes_that_are_not_those_of_the_checksum_are_refused(
    xrootd: Xrootd, user: User, place: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("12345")
    user.succeeds("data", "put", str(tmp_path / "a"), f"{place}/a")
    held = xrootd.disk / place.rpartition("/")[2] / "a"
    stat_before, attributes = held.stat(), {name: os.getxattr(held, name) for name in os.listxattr(held)}
    assert attributes, "the server stores checksums with the bytes"
    held.write_text("54321")  # as on a failing disk: nothing else changes
    os.utime(held, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns))
    assert "checksum mismatch (adler32" in user.fails("data", "get", f"{place}/a", "b")
    assert not (user.folder / "b").exists()


def test_faults_are_one_line_and_exit_2(xrootd: Xrootd, user: User, place: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    assert "nothing there" in user.fails("data", "get", f"{place}/none", "x")
    closed = xrootd.disk / "closed"
    closed.mkdir(mode=0o500)
    (closed / "secret").write_text("1")
    assert "no permission" in user.fails("data", "put", str(tmp_path / "a"), f"{xrootd.url}/closed/a")
    assert "no permission" in user.fails("data", "get", f"{xrootd.url}/closed/secret", "x")
    assert "no permission" in user.fails("data", "put", str(tmp_path / "a"), place.replace("/store/", "/other/"))
    assert "does not answer" in user.fails("data", "get", "root://127.0.0.1:9//store/a", "x")


def test_a_full_disk_is_reported_on_either_side(
    xrootd: Xrootd, user: User, place: str, big: Path, tmp_path: Path
) -> None:
    with small_disk(xrootd.disk / "small") as server_disk:
        line = user.fails("data", "put", str(big), f"{xrootd.url}/small/big.bin")
        assert f"{xrootd.url}/small/big.bin: cannot be written (no space left there; make room" in line
        assert not list(server_disk.iterdir())
    user.succeeds("data", "put", str(big), f"{place}/big.bin")
    with small_disk(tmp_path / "small") as ours:
        line = user.fails("data", "get", f"{place}/big.bin", str(ours / "big.bin"))
        assert f"{ours / 'big.bin'}: cannot be written (no space left there; make room" in line
        assert not list(ours.iterdir())


def test_wrong_credentials_are_reported(strict_xrootd: Xrootd, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    keys = strict_xrootd.disk.parent.parent / "client.keytab"
    right = strict_xrootd.user(tmp_path / "right", XrdSecSSSKT=str(keys), XrdSecPROTOCOL="sss")
    right.succeeds("data", "put", str(tmp_path / "a"), f"{strict_xrootd.url}/a")
    wrong = strict_xrootd.user(tmp_path / "wrong", XrdSecSSSKT=str(tmp_path / "none"), XrdSecPROTOCOL="sss")
    assert "wrong credentials; renew X509_USER_PROXY" in wrong.fails("data", "get", f"{strict_xrootd.url}/a", "b")


def test_a_model_is_trained_stored_fetched_and_evaluated(
    xrootd: Xrootd, place: str, events: Path, tmp_path: Path
) -> None:
    users = [xrootd.user(tmp_path / name) for name in ("one", "other")]
    whole_way(users[0], users[1], events, f"{place}/", f"{place}/models")
