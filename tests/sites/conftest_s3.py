"""A real S3 server: SeaweedFS, one for the session, with a key for writing and a key for reading."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sites.servers import Server, answers, free_ports

KEY, SECRET = "clewkey", "clew-secret-0123456789"
READER, READER_SECRET = "readkey", "read-secret-0123456789"


@dataclass
class S3:
    """The gateway, which tests kill and start again, and the environment that a client needs."""

    server: Server
    url: str

    def environment(self, key: str = KEY, secret: str = SECRET) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def forget() -> None:
    """Forget the clients of this process: each has the keys it was created with."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def _weed() -> str:
    installed = Path(sys.executable).with_name("weed")
    program = str(installed) if installed.exists() else shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed (make test-sites installs it)")
    return program


def _answers(url: str) -> bool:
    """Whether the server answers, and is no longer starting."""
    try:
        urllib.request.urlopen(f"{url}/", timeout=1)
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
    return True


@contextlib.contextmanager
def serving(folder: Path, *, volume_megabytes: int = 64) -> Iterator[S3]:
    """A server with its data in a folder, in at most 50 volumes."""
    weed = _weed()
    full, reading = ["Admin", "Read", "Write", "List", "Tagging"], ["Read:shared", "List:shared"]
    identities = [
        {"name": "writer", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": full},
        {"name": "reader", "credentials": [{"accessKey": READER, "secretKey": READER_SECRET}], "actions": reading},
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    master, volume, filer, s3 = free_ports(4)
    command = [weed, "server", f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    command += [f"-master.volumeSizeLimitMB={volume_megabytes}", "-volume.max=50"]
    disks = Server(command, folder / "disks.log", lambda: answers(filer))
    gateway = [weed, "s3", f"-filer=127.0.0.1:{filer}", "-ip.bind=127.0.0.1", f"-port={s3}"]
    gateway += ["-port.iceberg=0", "-port.lance=0"]  # not needed, and always at fixed ports otherwise
    url = f"http://127.0.0.1:{s3}"
    server = Server([*gateway, f"-config={folder}/s3.json"], folder / "s3.log", lambda: _answers(url))
    try:
        disks.start()
        server.start()
        yield S3(server, url)
    finally:
        server.stop()
        disks.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra s3)")
    with serving(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, with the environment set to its writer."""
    forget()
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server
