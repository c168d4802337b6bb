"""The listings of ended runs, kept between two calls of `clew runs list`, so that ten thousand runs take a second.

A listing is used again only while size and modification time of the settings and of all records stay the same. What
depends on more than these files is not kept: runs without an end that still run or may run, runs that never trained,
and damaged runs. The cache may be removed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.runs.folder import Run
from clew.runs.listing import RunListing, list_run
from clew.runs.times import RunTimes
from clew.storage.transfer_state import cache_folder
from clew.version import __version__

_FORMAT = 1
_ENDED = ("finished", "stopped", "failed", "interrupted")
_NO_SETTINGS = "no settings"


def list_folder(root: Path) -> list[RunListing]:
    """Return the listings of the runs directly in a folder, sorted by name; those that lost their settings come last.

    Args:
        root: A folder with runs; it may be missing.
    """
    file = _cache_file(root)
    cached, current = _read(file), {}
    listings, incomplete = [], []
    for name in sorted(path.name for path in root.iterdir()) if root.is_dir() else ():
        folder = f"{root}/{name}"
        state = _file_state(folder)
        if not state:
            continue
        if state.startswith(_NO_SETTINGS):
            incomplete.append(list_run(Run(root / name)))
            continue
        entry = cached.get(name)
        if entry is not None and entry[0] == state:
            listing = RunListing(**{**entry[1], "path": folder, "times": RunTimes(**entry[1]["times"])})
        else:
            listing = list_run(Run(root / name))
            entry = [state, {**vars(listing), "times": vars(listing.times)}]
        listings.append(listing)
        if listing.state in _ENDED and listing.trained:
            current[name] = entry
    if current != cached:
        _write(file, current)
    return listings + incomplete


def _file_state(folder: str) -> str:
    """Size and modification time of a run's settings and records, as text; empty if the folder is not one of a run."""
    try:
        with os.scandir(f"{folder}/records") as entries:
            states = sorted(f"{entry.name} {_version(entry.stat())}" for entry in entries)
    except OSError:
        return ""
    try:
        settings = os.stat(f"{folder}/config.yaml")  # noqa: PTH116  (a third of the time that a Path takes)
    except OSError:
        return "\n".join((_NO_SETTINGS, *states)) if any(".jsonl " in state for state in states) else ""
    return "\n".join((_version(settings), *states))


def _version(file: os.stat_result) -> str:
    return f"{file.st_size} {file.st_mtime_ns}"


def _cache_file(root: Path) -> Path:
    name = hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:32]
    return cache_folder() / "listings" / f"{name}.json"


def _read(file: Path) -> dict[str, Any]:
    """The entries by the name of the run; none if the file is missing, damaged or of another version of clew."""
    try:
        content = json.loads(file.read_bytes())
        entries: dict[str, Any] = content["runs"] if content["version"] == [_FORMAT, __version__] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return entries


def _write(file: Path, entries: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full or read-only disk: the next call reads the runs again
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"version": [_FORMAT, __version__], "runs": entries}))
