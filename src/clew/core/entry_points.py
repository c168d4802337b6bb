"""Entry points: how clew knows recipes, readers and other extensions, its own as well as those of other packages.

A package names its extensions in `pyproject.toml`:

    [project.entry-points."clew.recipes"]
    my_recipe = "my_package.recipe:MyRecipe"

Reading the metadata of clew alone takes a fraction of a millisecond. Reading that of every installed package takes
longer, so `find` does it only for a name that clew itself does not have.
"""

from __future__ import annotations

import importlib.metadata

PACKAGE = "clew"


def shipped_entry_points(group: str) -> dict[str, str]:
    """The entry points of clew itself.

    Args:
        group: the group of entry points, such as `clew.recipes`.

    Returns:
        The `module:attribute` of each name, sorted by name; empty where clew runs without its package metadata.
    """
    try:
        points = importlib.metadata.distribution(PACKAGE).entry_points
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {point.name: point.value for point in sorted(points) if point.group == group}


def installed_entry_points(group: str) -> dict[str, str]:
    """The entry points of all installed packages. A name that clew itself has cannot be replaced by another package.

    Args:
        group: the group of entry points, such as `clew.recipes`.

    Returns:
        The `module:attribute` of each name.
    """
    points = importlib.metadata.entry_points(group=group)
    return {**{point.name: point.value for point in points}, **shipped_entry_points(group)}
