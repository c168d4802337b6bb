"""What a location says: a local path, or a place in a store. Nothing is looked up here."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

RUCIO = "rucio:"
FILE = "file:"
_INSIDE = re.compile(r"^(?P<file>.*\.root):(?P<inside>[^/\\][^\\]*)$", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=://)([^/@\s:]+):[^/@\s]+@")
_SECRET = re.compile(
    r"([?&](?:authz|token|access_token|password|secret|secret_key|key|signature|sig|x-amz-[a-z-]+|xrdcl\.[a-z]+)=)[^&\s'\")]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(bearer(?:\s|%20|\+)+)[\w.~+/=-]+", re.IGNORECASE)


def is_url(location: str) -> bool:
    """Whether a location names a store (`s3://...`, `rucio:scope:name`) and not a local file."""
    return location.startswith(RUCIO) or ("://" in location and not location.startswith(FILE))


def scheme(location: str) -> str:
    """`s3`, `root`, `rucio`, ..., or `file`."""
    if location.startswith(RUCIO):
        return "rucio"
    return location.partition("://")[0].rpartition("::")[2] if is_url(location) else "file"


def split_inside(location: str) -> tuple[str, str]:
    """`file.root:tree` as (file, tree); anything else as (location, '')."""
    match = _INSIDE.match(location)
    return (match["file"], match["inside"]) if match else (location, "")


def local_path(location: str) -> Path:
    """The path of a local file: `file:`, `~` and the part behind `.root:` dealt with."""
    plain = split_inside(location)[0]
    if plain.startswith(FILE):
        plain = re.sub(r"^file:(//(localhost)?(?=/))?", "", plain)
    return Path(plain).expanduser()


def mask_secrets(text: str) -> str:
    """A text with locations in it, without passwords, tokens and signatures."""
    return _BEARER.sub(r"\1***", _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text)))


def join(location: str, name: str) -> str:
    """A place below another; in Rucio, which has no folders, names are joined by a dot."""
    if location.startswith(RUCIO):
        base, sign, query = location.partition("?")
        between = "." if base.count(":") > 1 and base[-1] not in ":." else ":" if base.count(":") == 1 else ""
        return f"{base}{between}{name}{sign}{query}"
    base, sign, query = location.partition("?")
    return f"{base.rstrip('/')}/{name}{sign}{query}"


def base_name(location: str) -> str:
    """The last part of a location: what a copy of it is called."""
    plain = location.partition("?")[0].rstrip("/")
    return plain.rpartition(":")[2] if location.startswith(RUCIO) else plain.rpartition("/")[2]


def parent_location(location: str) -> str:
    """The place a location is in."""
    plain, sign, query = location.partition("?")
    cut = plain.rstrip("/").rpartition(":" if location.startswith(RUCIO) else "/")[0]
    return f"{cut}{sign}{query}"


def parse_did(location: str) -> tuple[str, str, dict[str, str]]:
    """Scope, name and options of `rucio:scope:name?rse=SITE`; the name may be empty."""
    plain, _, query = location.removeprefix(RUCIO).partition("?")
    scope, _, name = plain.partition(":")
    return scope, name, dict(parse_qsl(query))
