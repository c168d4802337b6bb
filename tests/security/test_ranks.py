"""Ranks of one host: another user of the machine can forge files in the temporary folder, and send bytes to ports."""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import clew
from clew.core.private_files import private_folder, read_private, write_private
from clew.data.table import Ragged, Table
from clew.errors import RunError
from clew.metrics import Mean
from clew.training.message_codec import decode, encode

SOURCE = Path(clew.__file__).parent
MEET = """
import sys
from pathlib import Path
from clew.jobs.rank_info import RankInfo, open_rank_store
rank = int(sys.argv[1])
store = open_rank_store(RankInfo(rank, 2, rank, 2, "mpiexec (hydra)"), Path("."))
store.set(f"rank-{rank}", "here")
print(store.get(f"rank-{1 - rank}").decode())
"""


def _ranks(temporary: Path) -> list[subprocess.Popen[str]]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    options: dict[str, Any] = {"env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return [subprocess.Popen([sys.executable, "-c", MEET, str(rank)], **options) for rank in range(2)]


@pytest.mark.exec  # processes with another folder for temporary files
def test_a_forged_meeting_file_is_not_read(tmp_path: Path) -> None:
    this = psutil.Process()
    with socket.create_server(("127.0.0.1", 0)) as attacker:
        forged = f"127.0.0.1 {attacker.getsockname()[1]}"
        key = f".clew-meeting-{os.getuid()}-{this.pid}-{this.create_time():.0f}"
        (tmp_path / key).write_text(forged)
        ranks = _ranks(tmp_path)
        assert [rank.communicate(timeout=120)[0] for rank in ranks] == ["here\n", "here\n"]
        attacker.setblocking(False)
        with pytest.raises(BlockingIOError):
            attacker.accept()
    assert (tmp_path / key).read_text() == forged
    assert (tmp_path / f"clew-{os.getuid()}").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["open to all", "a link", "a file", "of another user"])
def test_a_folder_that_another_user_prepared_is_refused(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"clew-{os.getuid()}"
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif trap == "a file":
        folder.touch(0o700)
    else:
        folder.mkdir()
        folder.chmod(0o777 if trap == "open to all" else 0o700)
    if trap == "of another user":
        _give_away(folder)
    with pytest.raises(RunError, match="only you can enter"):
        private_folder()


@pytest.mark.parametrize("trap", ["a link", "writable", "of another user"])
def test_a_file_of_another_user_is_refused(trap: str, tmp_path: Path) -> None:
    file = tmp_path / "meeting"
    write_private(file, "127.0.0.1 1")
    assert read_private(file) == "127.0.0.1 1" and file.stat().st_mode & 0o777 == 0o600
    if trap == "a link":
        file.rename(tmp_path / "target")
        file.symlink_to(tmp_path / "target")
    elif trap == "writable":
        file.chmod(0o666)
    else:
        _give_away(file)
    with pytest.raises(RunError, match="cannot be trusted"):
        read_private(file)


def test_a_link_in_the_place_of_a_private_file_is_replaced_not_followed(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "meeting"
    victim.write_text("precious")
    file.symlink_to(victim)
    write_private(file, "secret")
    assert victim.read_text() == "precious" and read_private(file) == "secret"


def _give_away(path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, 65534)


class _Bomb:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_bytes_of_another_process_run_no_code(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    with pytest.raises(ValueError, match="message"):
        decode(pickle.dumps(_Bomb(marker)))
    with pytest.raises(TypeError, match="cannot be sent"):
        encode(_Bomb(marker))
    for module, name in [("os", "system"), ("subprocess", "Popen"), ("pathlib", "Path"), ("os", "_Environ")]:
        header = f'["o", "{module}", "{name}", [["args", "true"]]]'.encode()
        with pytest.raises(ValueError, match="not"):
            decode(len(header).to_bytes(8, "little") + header)
    assert not marker.exists()


def test_damaged_messages_are_a_value_error() -> None:
    good = bytes(encode({"counts": np.arange(4), "text": ["a", None], "metric": Mean(1.0, 2.0)}))
    generator = np.random.default_rng(1)
    for _ in range(3000):
        bad = bytearray(good[: generator.integers(1, len(good) + 1)])
        bad[generator.integers(len(bad))] = generator.integers(256)
        try:
            decode(bad)
        except ValueError:
            continue


def test_what_ranks_send_arrives_as_it_was() -> None:
    x = Ragged.from_lists([[1.0, 2.0], [], [3.0]])
    table = Table({"event": [7, 8, 9], "x": x, "y": x.share([4.0, 5.0, 6.0])}, units={"x": "mm"})
    received, metric, nothing = decode(encode((table, Mean(1.0, 2.0), None)))
    assert repr(received) == repr(table) and received.units == table.units and metric == Mean(1.0, 2.0)
    assert received.ragged("x").offsets is received.ragged("y").offsets and nothing is None


def test_collective_calls_that_unpickle_are_not_used() -> None:
    """They execute what a peer sends, and the peers of gloo and MPI prove nothing."""
    of_torch = r"\.(?:all_gather|broadcast|gather|scatter)_object(?:_list)?\(|\.(?:send|recv)_object_list\("
    names = rf"{of_torch}|comm\.(?:allgather|bcast)\("
    files = [file for package in ("training", "inference") for file in (SOURCE / package).rglob("*.py")]
    assert len(files) > 100
    assert not [str(file) for file in files if re.search(names, file.read_text())]
