"""The server that this user's runs report to, and the token for it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from clew.core.trust import config_folder
from clew.errors import ConfigError


@dataclass(frozen=True)
class Credentials:
    """The address of a server and a token for it."""

    server: str
    token: str
    address: str | None = None
    """Where the server listens, if that is another address than the one of `server`, as behind a forwarded port."""

    def __repr__(self) -> str:
        return f"Credentials({self.server!r}, ...)"


def login_file() -> Path:
    """Return the path of `login.json`: in $CLEW_CONFIG, or in `clew` in the user's folder of settings."""
    return config_folder() / "login.json"


def credentials() -> Credentials | None:
    """Return CLEW_SERVER and CLEW_TOKEN, or what `clew login` saved.

    Returns:
        None if there is neither. An empty CLEW_SERVER means: no server, even after `clew login`.

    Raises:
        ConfigError: there is a server without a token, or the login file is damaged.
    """
    server, token = os.environ.get("CLEW_SERVER"), os.environ.get("CLEW_TOKEN")
    if server == "":
        return None
    saved = _saved()
    if server is None:
        return replace(saved, token=token or saved.token) if saved else None
    if not token and saved is not None and saved.server == server.rstrip("/"):
        token = saved.token
    if not token:
        raise ConfigError("CLEW_SERVER is set and CLEW_TOKEN is not; set it, or log in with `clew login`")
    return Credentials(server.rstrip("/"), token)


def log_in(login: Credentials) -> Path:
    """Save credentials in a file that only the user can read, and return its path."""
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w") as stream:
        address = {"address": login.address} if login.address else {}
        json.dump({"server": login.server, "token": login.token, **address}, stream)
    temporary.replace(path)
    return path


def recorded_address(server: str) -> str | None:
    """Return where a server listens according to `clew login`; None if it is the address that one connects to."""
    saved = _saved()
    return saved.address if saved is not None and saved.server == server else None


def log_out() -> bool:
    """Delete the saved credentials and return whether there were any."""
    path = login_file()
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def _saved() -> Credentials | None:
    path = login_file()
    try:
        data = json.loads(path.read_text())
        return Credentials(data["server"], data["token"], data.get("address"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}: damaged; log in again with `clew login`") from None
