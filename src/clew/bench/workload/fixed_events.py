"""The fixed events of a workload's image: files of synthetic events and their checksums, written once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from clew.core.files import sha256, write_text
from clew.data.prepare.generate import generate
from clew.errors import DataError
from clew.recipe import Recipe

CHECKSUMS = "SHA256SUMS"
"""Checksums of all files of the folder, as `sha256sum` writes and checks them."""


def write_fixed_events(
    recipe: Recipe, events: int, seed: int, folder: Path, notify: Callable[[str], None] = lambda text: None
) -> int:
    """Write synthetic events and their checksums to a new folder.

    Args:
        recipe: The recipe that generates them.
        events: Number of events.
        seed: Seed of the generator.
        folder: The folder.
        notify: Called with a line of text about the progress.

    Returns:
        The number of bytes.

    Raises:
        DataError: The folder has files already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; choose another folder with --output")
    done = 0

    def progress(path: Path, number: int) -> None:
        nonlocal done
        done += number
        notify(f"{done:,} of {events:,} events")

    generate(recipe, events, seed, folder, progress=progress)
    files = _files(folder)
    write_text(folder / CHECKSUMS, "".join(f"{sha256(file)}  {file.relative_to(folder)}\n" for file in files))
    return sum(file.stat().st_size for file in files)


def checked_files(folder: Path) -> list[str]:
    """Return the files of a folder of fixed events after comparing them with their checksums.

    Raises:
        DataError: A file is missing or differs.
    """
    try:
        lines = (folder / CHECKSUMS).read_text().splitlines()
    except OSError as error:
        message = f"--fixed-events {folder}: no {CHECKSUMS} in it"
        raise DataError(f"{message}; make the folder with `clew bench events`") from error
    files = []
    for line in lines:
        checksum, _, name = line.partition("  ")
        file = folder / name
        if not file.is_file() or sha256(file) != checksum:
            raise DataError(f"{file}: it differs from its checksum in {CHECKSUMS}; make or copy the folder again")
        files.append(str(file))
    return files


def events_checksum(folder: Path) -> str:
    """Return one checksum for all files of a folder of fixed events."""
    return hashlib.sha256((folder / CHECKSUMS).read_bytes()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
