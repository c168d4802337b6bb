"""A real XRootD server. It listens on every interface, so it and its clients get a separate network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sites.roundtrip import User
from tests.sites.servers import Server, public_folder

PORT = 10_940
_CONFIG = """
all.export /store
oss.localroot {folder}/data
xrd.port {port}
xrd.protocol xrootd libXrdXrootd.so
xrootd.chksum adler32
all.adminpath {folder}/admin
all.pidpath {folder}/admin
"""
_SECURE = """
xrootd.seclib libXrdSec.so
sec.protocol sss -s {folder}/server.keytab
sec.protbind * only sss
"""


@dataclass
class Xrootd:
    """The server, its disk, and the command prefix to enter its network."""

    server: Server
    disk: Path
    network: subprocess.Popen[bytes]
    url: str = f"root://127.0.0.1:{PORT}//store"

    def user(self, folder: Path, **environment: str) -> User:
        enter = ("nsenter", f"--net=/proc/{self.network.pid}/ns/net")
        return User(folder, environment, enter)


def _network() -> subprocess.Popen[bytes]:
    """A network with a loopback interface only; it exists as long as this process."""
    if shutil.which("xrootd") is None:
        pytest.skip("XRootD is not installed (make test-sites installs it)")
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("XRootD listens on every interface; only root can give it a network of its own")
    process = subprocess.Popen(
        ["unshare", "-n", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as output:
        ready = output.readline() == b"ready\n"
    if not ready:
        pytest.skip("no network of its own can be made here")
    return process


def _started(folder: Path, settings: str) -> Iterator[Xrootd]:
    pytest.importorskip("fsspec_xrootd", reason="fsspec-xrootd is not installed (extra xrootd)")
    network, nobody = _network(), pwd.getpwnam("nobody")
    for place in ("data/store", "admin"):
        (folder / place).mkdir(parents=True)
        os.chown(folder / place, nobody.pw_uid, nobody.pw_gid)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    (folder / "xrootd.cfg").write_text(settings.format(folder=folder, port=PORT))
    enter = ["nsenter", f"--net=/proc/{network.pid}/ns/net"]
    probe = f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1)"

    def answers() -> bool:
        return subprocess.run([*enter, "python3", "-c", probe], capture_output=True, check=False).returncode == 0

    command = [*enter, "xrootd", "-c", str(folder / "xrootd.cfg"), "-R", "nobody", "-n", "test"]
    server = Server(command, folder / "log", answers, cwd=folder)
    try:
        server.start()
        yield Xrootd(server, folder / "data" / "store", network)
    finally:
        server.stop()
        network.kill()
        network.wait()


@pytest.fixture(scope="session")
def xrootd() -> Iterator[Xrootd]:
    """A server without authentication."""
    with public_folder("xrootd") as folder:
        yield from _started(folder, _CONFIG)


@pytest.fixture
def strict_xrootd() -> Iterator[Xrootd]:
    """A server that accepts only clients with the key in `client.keytab`, which is next to its data."""
    if shutil.which("xrdsssadmin") is None:
        pytest.skip("XRootD is not installed (make test-sites installs it)")
    with public_folder("strict") as folder:
        _make_keys(folder)
        yield from _started(folder, _CONFIG + _SECURE)


def _make_keys(folder: Path) -> None:
    key = ["xrdsssadmin", "-k", "clew", "-u", "anybody", "-g", "usrgroup", "add", str(folder / "server.keytab")]
    subprocess.run(key, check=True, capture_output=True)
    nobody = pwd.getpwnam("nobody")
    shutil.copy(folder / "server.keytab", folder / "client.keytab")
    os.chown(folder / "server.keytab", nobody.pw_uid, nobody.pw_gid)
