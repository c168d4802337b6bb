"""A real PostgreSQL for tests and benchmarks: started in a temporary folder, on a free port of this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl: on the path, or the folder that Debian uses."""
    result = shutil.which("initdb")
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += [Path(result).resolve().parent] if result else []
    return next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


def why_not() -> str:
    """Return why it cannot be started here; empty if it can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (pip install 'clew[postgres]')"
    return "" if binaries() else "no PostgreSQL is installed here"


@contextmanager
def running(*options: str) -> Iterator[str]:
    """Start a server in a temporary folder and yield the URL of its database; stop it at the end."""
    place = binaries()
    assert place is not None
    user = _other_user()
    with tempfile.TemporaryDirectory(prefix="clew-postgres-", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        data.mkdir()
        if user:
            shutil.chown(folder, user)
            shutil.chown(data, user)
        yield from _served(place, data, user, options)


def _served(place: Path, data: Path, user: str | None, options: tuple[str, ...]) -> Iterator[str]:
    _run(user, place / "initdb", "-D", data, "-U", "clew", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    response = " ".join(["-h 127.0.0.1", f"-p {port}", "-k ''", *(f"-c {option}" for option in options)])
    _run(user, place / "pg_ctl", "-D", data, "-o", response, "-l", data / "log", "-w", "start")
    try:
        yield f"postgresql://clew@127.0.0.1:{port}/postgres"
    finally:
        _run(user, place / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _other_user() -> str | None:
    """PostgreSQL refuses to be run by root."""
    if os.getuid() != 0:
        return None
    users = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"


def _run(user: str | None, *command: object) -> None:
    entry = pwd.getpwnam(user) if user else None
    as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []} if entry else {}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", **as_user)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
