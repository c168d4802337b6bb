"""A real Rucio server on PostgreSQL, one for the session, with a scope, a disk and a user with a password.

The server has a separate environment (`.venv-rucio`, or $CLEW_TEST_RUCIO): its packages are not dependencies of clew.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sites.servers import Server, answers, free_ports, public_folder

ROOT = Path(__file__).parent.parent.parent
PASSWORD = "clew-test-password"
SCOPE, RSE = "tests", "DISK"
_CONFIG = """
[common]
logdir = {folder}/log
mailtemplatedir = {venv}/rucio/etc/mail_templates
[database]
default = postgresql+psycopg://rucio@127.0.0.1:{database}/rucio
schema = dev
[bootstrap]
userpass_identity = ddmlab
userpass_pwd = {password}
userpass_email = nobody@localhost
[policy]
permission = generic
schema = generic
lfn2pfn_algorithm_default = hash
[alembic]
cfg = {folder}/etc/alembic.ini
"""
_ALEMBIC = """
[alembic]
script_location = {places}
sqlalchemy.url = postgresql+psycopg://rucio@127.0.0.1:{database}/rucio
version_table_schema = dev
[loggers]
keys = root
[handlers]
keys = console
[formatters]
keys = plain
[logger_root]
level = WARN
handlers = console
[handler_console]
class = StreamHandler
args = (sys.stderr,)
formatter = plain
[formatter_plain]
format = %(message)s
"""
_CLIENT = """
[client]
rucio_host = http://127.0.0.1:{port}
auth_host = http://127.0.0.1:{port}
account = {account}
auth_type = userpass
username = {username}
password = {password}
"""


@dataclass
class Rucio:
    """The server, its disk, and the folder with a client's settings."""

    server: Server
    disk: Path
    homes: Path

    def home(
        self, name: str = "right", password: str = PASSWORD, *, account: str = "root", username: str = "ddmlab"
    ) -> Mapping[str, str]:
        """The environment of a client with its own settings; its token is stored in that folder too."""
        folder = self.homes / name
        if not folder.exists():
            (folder / "etc").mkdir(parents=True)
            port = self.server.command[-2].rpartition(":")[2]
            tokens = f"auth_token_file_path = {folder}/token\n"
            values = {"port": port, "password": password, "account": account, "username": username}
            (folder / "etc" / "rucio.cfg").write_text(_CLIENT.format(**values) + tokens)
        return {"RUCIO_HOME": str(folder)}


def _installed() -> Path:
    venv = Path(os.environ.get("CLEW_TEST_RUCIO", ROOT / ".venv-rucio"))
    if not (venv / "bin" / "gunicorn").exists():
        pytest.skip("the Rucio server is not installed (make test-sites installs it)")
    if shutil.which("initdb") is None and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("PostgreSQL is not installed (make test-sites installs it)")
    return venv


def _program(name: str) -> str:
    return shutil.which(name) or str(max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))


def _do(command: list[str], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        pytest.fail(f"{command[0]}: {done.stderr[-2000:]}")


def _database(folder: Path, port: int) -> Server:
    """Start PostgreSQL, which does not run as root."""
    data, log = folder / "postgres", folder / "postgres.log"
    data.mkdir()
    before: list[str] = []
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(data, user.pw_uid, user.pw_gid)
        before = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    initdb = [*before, _program("initdb"), "-D", str(data), "-U", "rucio", "-A", "trust", "--no-sync"]
    _do(initdb, cwd="/")
    command = [*before, _program("postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"]
    server = Server(command, log, lambda: answers(port))
    server.start()
    return server


@pytest.fixture(scope="session")
def rucio_server() -> Iterator[Rucio]:
    pytest.importorskip("rucio.client", reason="rucio-clients is not installed (extra rucio)")
    venv = _installed()
    with public_folder("rucio") as folder:
        yield from _started(venv, folder)


def _started(venv: Path, folder: Path) -> Iterator[Rucio]:
    database_port, port = free_ports(2)
    (folder / "etc").mkdir()
    (folder / "log").mkdir()
    settings = {"folder": folder, "venv": venv, "database": database_port, "password": PASSWORD}
    (folder / "etc" / "rucio.cfg").write_text(_CONFIG.format(**settings))
    places = next(venv.glob("lib/python*/site-packages")) / "rucio/db/sqla/migrate_repo"
    (folder / "etc" / "alembic.ini").write_text(_ALEMBIC.format(places=places, **settings))
    environment = {"RUCIO_HOME": str(folder), "PYTHONPATH": ""}
    database = _database(folder, database_port)
    try:
        psql = [_program("psql"), "-h", "127.0.0.1", "-p", str(database_port), "-U", "rucio", "postgres"]
        _do(psql, input="CREATE DATABASE rucio;\n\\c rucio\nCREATE SCHEMA dev;\n")
        _do([str(venv / "bin/python"), str(venv / "rucio/tools/bootstrap.py")], env={**os.environ, **environment})
        command = [str(venv / "bin" / "gunicorn"), "-w", "1", "--threads", "4", "-b", f"127.0.0.1:{port}"]
        command += ["rucio.web.rest.flaskapi.v1.main:application"]
        server = Server(command, folder / "server.log", lambda: answers(port), environment)
        server.start()
        rucio = Rucio(server, folder / "disk", folder / "homes")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RUCIO_HOME", rucio.home()["RUCIO_HOME"])
            _furnish(rucio)
        yield rucio
        server.stop()
    finally:
        database.stop()


def _furnish(rucio: Rucio) -> None:
    """Create a scope and a storage element."""
    from rucio.client import Client

    client = Client()
    client.add_scope("root", SCOPE)
    add_element(client, RSE, rucio.disk)


def add_element(client: Any, name: str, disk: Path) -> str:
    """Create a storage element that is a folder, without a quota."""
    disk.mkdir()
    client.add_rse(name, deterministic=True)
    every = {"read": 1, "write": 1, "delete": 1}
    domains = {"lan": every, "wan": {**every, "third_party_copy_read": 1, "third_party_copy_write": 1}}
    protocol = {"hostname": "localhost", "scheme": "file", "port": 0, "prefix": str(disk), "domains": domains}
    client.add_protocol(name, {**protocol, "impl": "rucio.rse.protocols.posix.Default"})
    client.set_local_account_limit("root", name, -1)
    return name


@pytest.fixture
def rucio(rucio_server: Rucio, monkeypatch: pytest.MonkeyPatch) -> Rucio:
    """The server, with the environment set to its user."""
    for name, value in rucio_server.home().items():
        monkeypatch.setenv(name, value)
    return rucio_server
