"""Parsing of location strings: a local path, or a URL of a store. Nothing is accessed here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from clew.errors import ConfigError

RUCIO = "rucio:"
FILE = "file:"
_LIKE_A_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_SCHEMES = ("rucio", "s3", "root", "https", "http")
"""Schemes that clew's own stores and readers handle; fsspec has more."""
_INSIDE = re.compile(r"^(?P<file>.*\.root):(?P<inside>[^/\\][^\\]*)$", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):(?!\d+(?:/|\s|$))[^\s'\",]*@")
"""`user:password@`, also without a user, and with `/` or `@` in the password. `host:8080/` is no password."""
_USER_TOKEN = re.compile(r"(?<=://)[\w.~+=-]{20,}@")
"""A token in the place of the user."""
_SECRET = re.compile(
    r"([?&;#](?:[\w.-]*(?:passw(?:or)?d|pwd|token|secret|signature|credential|authz|authorization|api[-_]?key|"
    r"access[-_]?key(?:[-_]?id)?)|key|sig|pass|auth|jwt|x-(?:amz|goog)-[a-z-]+|xrdcl\.[a-z]+)=)[^&;\s'\")]+",
    re.IGNORECASE,
)
_KEYWORD = re.compile(
    r"(\b(?:ssl)?(?:passw(?:or)?d|pwd)\s*=\s*)(?!\*\*\*)('[^']*'|\"[^\"]*\"|[^\s&;,'\")]+)", re.IGNORECASE
)
"""`host=db password=...`, as drivers of databases write it."""
_BEARER = re.compile(r"(bearer(?:\s|%20|\+)+)[\w.~+/=-]+", re.IGNORECASE)


def is_url(location: str) -> bool:
    """True if a location is in a store (`s3://...`, `rucio:scope:name`), False for a local path."""
    return location.startswith(RUCIO) or ("://" in location and not location.startswith(FILE))


def scheme(location: str) -> str:
    """The scheme of a location: `s3`, `root`, `rucio`, ..., or `file` for a local path."""
    if location.startswith(RUCIO):
        return "rucio"
    return location.partition("://")[0].rpartition("::")[2] if is_url(location) else "file"


def check_scheme(location: str) -> str:
    """Return a location whose scheme is known: a local path, or a URL of a store.

    Raises:
        ConfigError: The text before the colon is no scheme, and there is no such local file.
    """
    match = _LIKE_A_SCHEME.match(location)
    local = not match or location.startswith((RUCIO, FILE)) or bool(split_inside(location)[1])
    if local or _is_known(scheme(location)) or (not is_url(location) and Path(location).exists()):
        return location
    name = match[1] if match else ""
    schemes = "a path, rucio:SCOPE:NAME, s3://, root:// or https://"
    raise ConfigError(f"{mask_secrets(location)}: unknown scheme '{name}'; use {schemes}")


def _is_known(name: str) -> bool:
    if name in _SCHEMES:
        return True
    if name == "file":
        return False
    import fsspec  # imported late: it is slow, and the common schemes do not need it

    return name in fsspec.available_protocols()


def absolute_location(location: str) -> str:
    """Return a location that means the same in any folder: a URL unchanged, a local path as an absolute path.

    Raises:
        ConfigError: The scheme of the location is unknown.

    Example:
        >>> absolute_location("rucio:user.me:events")
        'rucio:user.me:events'
    """
    if is_url(check_scheme(location)):
        return location
    file, inside = split_inside(location)
    path = str(local_path(file).absolute())
    return f"{path}:{inside}" if inside else path


def absolute_locations(locations: Any) -> Any:
    """Return locations in any form of `prepare.input` (one, a list, by name, `@list.txt`) as absolute locations.

    Example:
        >>> absolute_locations({"signal": ["/data/a.root"], "background": "@/data/list.txt"})
        {'signal': ['/data/a.root'], 'background': '@/data/list.txt'}
    """
    if isinstance(locations, Mapping):
        return {name: absolute_locations(each) for name, each in locations.items()}
    if not isinstance(locations, str):
        return [absolute_locations(each) for each in locations]
    return f"@{Path(locations[1:]).absolute()}" if locations.startswith("@") else absolute_location(locations)


def split_inside(location: str) -> tuple[str, str]:
    """Split `file.root:tree` into (file, tree). Any other location gives (location, '')."""
    match = _INSIDE.match(location)
    return (match["file"], match["inside"]) if match else (location, "")


def local_path(location: str) -> Path:
    """The path of a local file, without `file:` and the part after `.root:`, with `~` expanded."""
    plain = split_inside(location)[0]
    if plain.startswith(FILE):
        plain = re.sub(r"^file:(//(localhost)?(?=/))?", "", plain)
    return Path(plain).expanduser()


def mask_secrets(text: str) -> str:
    """Replace passwords, tokens and signatures of locations in a text by `***`."""
    text = _USER_TOKEN.sub("***@", _PASSWORD.sub(r"\1:***@", text))
    return _BEARER.sub(r"\1***", _KEYWORD.sub(r"\1***", _SECRET.sub(r"\1***", text)))


def join(location: str, name: str) -> str:
    """The location of `name` below `location`. Rucio has no folders: there names are joined by a dot."""
    if location.startswith(RUCIO):
        base, sign, query = location.partition("?")
        between = "." if base.count(":") > 1 and base[-1] not in ":." else ":" if base.count(":") == 1 else ""
        return f"{base}{between}{name}{sign}{query}"
    base, sign, query = location.partition("?")
    return f"{base.rstrip('/')}/{name}{sign}{query}"


def base_name(location: str) -> str:
    """The last part of a location, which is the name of a copy."""
    plain = location.partition("?")[0].rstrip("/")
    return plain.rpartition(":")[2] if location.startswith(RUCIO) else plain.rpartition("/")[2]


def parent_location(location: str) -> str:
    """The location of the folder that contains a location."""
    plain, sign, query = location.partition("?")
    cut = plain.rstrip("/").rpartition(":" if location.startswith(RUCIO) else "/")[0]
    return f"{cut}{sign}{query}"


def parse_did(location: str) -> tuple[str, str, dict[str, str]]:
    """Scope, name and options of `rucio:scope:name?rse=SITE`; the name may be empty."""
    plain, _, query = location.removeprefix(RUCIO).partition("?")
    scope, _, name = plain.partition(":")
    return scope, name, dict(parse_qsl(query))
