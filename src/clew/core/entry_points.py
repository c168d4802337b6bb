"""Entry points: how clew knows recipes, readers and other extensions, its own as well as those of other packages.

A package names its extensions in `pyproject.toml`:

    [project.entry-points."clew.recipes"]
    my_recipe = "my_package.recipe:MyRecipe"

Reading the metadata of clew alone takes a fraction of a millisecond. Reading that of every installed package takes
longer, so `find` does it only for a name that clew itself does not have.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from typing import Any

from clew.errors import ConfigError

PACKAGE = "clew"


def shipped_entry_points(group: str) -> dict[str, str]:
    """The entry points of clew itself.

    Args:
        group: the group of entry points, such as `clew.recipes`.

    Returns:
        The `module:attribute` of each name, sorted by name; empty where clew runs without its package metadata.
    """
    return {name: location for kind, name, location in _own_entry_points() if kind == group}


@functools.cache
def _own_entry_points() -> tuple[tuple[str, str, str], ...]:
    """Group, name and location of the entry points of clew."""
    try:
        points = importlib.metadata.distribution(PACKAGE).entry_points
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple((point.group, point.name, point.value) for point in sorted(points))


def installed_entry_points(group: str) -> dict[str, str]:
    """The entry points of all installed packages. A name that clew itself has cannot be replaced by another package.

    Args:
        group: the group of entry points, such as `clew.recipes`.

    Returns:
        The `module:attribute` of each name.
    """
    points = importlib.metadata.entry_points(group=group)
    return {**{point.name: point.value for point in points}, **shipped_entry_points(group)}


def load_entry_point(kind: str, name: str, location: str) -> Any:
    """Import what an entry point names.

    Args:
        kind: What it is, for messages: `reader`.
        name: Name of the entry point.
        location: Its `module:attribute`.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, attribute = location.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} '{name}' ({location}) cannot be loaded: {error}") from error
