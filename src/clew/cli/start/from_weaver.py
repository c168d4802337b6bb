"""`clew init --from-weaver`: the files of a recipe from a configuration of weaver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clew.cli.options import bold, console
from clew.cli.start.recipe_template import write_files
from clew.errors import ConfigError


def write_from_weaver(words: Sequence[str], data: Path, folder: Path) -> None:
    """Write a recipe and its network, and print what is different from weaver.

    Args:
        words: The arguments: the name of the recipe, the Python file of the network; both may be missing.
        data: The data configuration.
        folder: Where the files go.

    Raises:
        ConfigError: The configuration or the network cannot be used.
        RecipeError: A file exists, or the name cannot be used.
    """
    from clew.models.weaver.conversion import convert

    networks = [word for word in words if word.endswith(".py")]
    names = [word for word in words if not word.endswith(".py")]
    if len(networks) > 1 or len(names) > 1:
        raise ConfigError("--from-weaver takes at most one name and one Python file of a network")
    name = names[0] if names else default_name(data)
    made = convert(data, Path(networks[0]) if networks else None)
    for path in write_files(name, folder, {"{name}.py": made.recipe, "{name}_network.py": made.network}):
        console.print(f"wrote {bold(path)}")
    if not networks:
        console.print("No network was named: a small one was written. Replace it by your own.")
    for line in made.differences:
        console.print(f"different from weaver: {line}")
    console.print(f"Next: [cyan]clew prepare {folder / name}.py --input FILES --output dataset[/]")


def default_name(path: Path) -> str:
    """Return a name for a recipe: the name of a file without its endings, as a Python identifier."""
    name = re.sub(r"\W", "_", path.name.partition(".")[0]).strip("_").lower()
    return name if name.isidentifier() else f"recipe_{name}"
