"""Which server this user's runs report to, and the token for it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from clew.errors import ConfigError


@dataclass(frozen=True)
class Credentials:
    """A server and a token that is good there."""

    server: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials({self.server!r}, ...)"


def login_file() -> Path:
    """`login.json` in $CLEW_CONFIG, or in `clew` in the user's folder of settings."""
    given = os.environ.get("CLEW_CONFIG")
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "clew"
    return (Path(given) if given else base) / "login.json"


def credentials() -> Credentials | None:
    """CLEW_SERVER and CLEW_TOKEN, or what `clew login` left; None where there is neither. CLEW_SERVER set to nothing
    means: no server, whatever was logged in to.

    Raises:
        ConfigError: a server without a token, or a login file that is damaged.
    """
    server, token = os.environ.get("CLEW_SERVER"), os.environ.get("CLEW_TOKEN")
    if server == "":
        return None
    known = _logged_in()
    if server is None:
        return Credentials(known.server, token or known.token) if known else None
    if not token and known is not None and known.server == server.rstrip("/"):
        token = known.token
    if not token:
        raise ConfigError("CLEW_SERVER is set and CLEW_TOKEN is not; set it, or log in with `clew login`")
    return Credentials(server.rstrip("/"), token)


def log_in(found: Credentials) -> Path:
    """Remember them, for the user alone; where."""
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as stream:
        json.dump({"server": found.server, "token": found.token}, stream)
    temporary.replace(path)
    return path


def log_out() -> bool:
    """Forget them; whether there were any."""
    path = login_file()
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def _logged_in() -> Credentials | None:
    path = login_file()
    try:
        data = json.loads(path.read_text())
        return Credentials(data["server"], data["token"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}: damaged; log in again with `clew login`") from None
