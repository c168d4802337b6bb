"""Tables that are made once and kept in the user's cache, such as a generator's pool of collisions.

`clew cache` lists and prunes them among the results of prepare.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.core.file_lock import hold_lock
from clew.data.table import Table
from clew.errors import DataError
from clew.storage import cache_folder

KIND = "kept"
"""The folder in the cache."""


def cached_table(about: Mapping[str, Any], make: Callable[[], Table]) -> Table:
    """The table that `about` describes: from the cache, or made and put there.

    `about` must hold all that `make` depends on, as JSON. Any number of processes may ask at once: one makes it, the
    others wait. A damaged file is made anew.

    Raises:
        DataError: the cache cannot be written.
    """
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / KIND / key[:2] / f"{key}.h5"
    found = _found(path)
    if found is not None:
        return found
    try:
        with hold_lock(path.with_suffix(".lock"), required=False):
            found = _found(path)
            if found is None:
                found = make()
                found.save(path)
            return found
    except OSError as error:
        raise DataError(f"cannot write to the cache {cache_folder()}: {error}; see `clew cache prune`") from error


def _found(path: Path) -> Table | None:
    try:
        table = Table.load(path)
    except DataError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return table
