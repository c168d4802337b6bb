"""Tables that are computed once and stored in the user's cache, such as the collisions of an event generator.

`clew cache` lists and removes them together with the results of prepare.
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
from clew.core.stability import experimental
from clew.data.table import Table
from clew.errors import DataError
from clew.storage import cache_folder

FOLDER = "kept"
"""The folder in the cache."""


@experimental(since="0.1.0")
def cached_table(about: Mapping[str, Any], make: Callable[[], Table]) -> Table:
    """Return a table from the cache, or compute it and store it there.

    If several processes ask for the same table at once, one computes it and the others wait. A damaged file is computed
    again.

    Args:
        about: A description of the table, as JSON data. It must contain everything that `make` depends on.
        make: Computes the table.

    Raises:
        DataError: the cache cannot be written.

    Example:
        >>> cached_table({"squares": 3}, lambda: Table({"n": [0, 1, 4]}))
        Table(3 events; n: int64)
        >>> cached_table({"squares": 3}, lambda: 1 / 0)  # from the cache
        Table(3 events; n: int64)
    """
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / FOLDER / key[:2] / f"{key}.h5"
    table = _load(path)
    if table is not None:
        return table
    try:
        with hold_lock(path.with_suffix(".lock"), required=False):
            table = _load(path)
            if table is None:
                table = make()
                table.save(path)
            return table
    except OSError as error:
        raise DataError(f"cannot write to the cache {cache_folder()}: {error}; see `clew cache prune`") from error


def _load(path: Path) -> Table | None:
    try:
        table = Table.load(path)
    except DataError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return table
