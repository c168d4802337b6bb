"""A working start for a researcher's own recipe, from the templates that lie beside a shipped one."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

from clew.errors import RecipeError, nearest
from clew.files import write_text
from clew.recipe import SHIPPED

_FILES = {
    "recipe.py.template": "{name}.py",
    "network.py.template": "{name}_network.py",
    "test.py.template": "test_{name}.py",
}


def write(name: str, like: str, folder: Path) -> list[Path]:
    """Fill in the templates of the recipe `like` and write them into `folder`; nothing there is overwritten.

    Raises:
        RecipeError: the name is no Python name, `like` has no templates, or a file exists.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise RecipeError(f"'{name}' cannot name a recipe; use letters, digits and _, as in my_recipe")
    templates = available()
    if like not in templates:
        raise RecipeError(_refused(like, sorted(templates)))
    targets = {source: folder / pattern.format(name=name) for source, pattern in _FILES.items()}
    taken = [path for path in targets.values() if path.exists()]
    if taken:
        raise RecipeError(f"{taken[0]} exists already; choose another name or folder")
    title = "".join(part.capitalize() for part in name.split("_"))
    for source, path in targets.items():
        text = (templates[like] / source).read_text(encoding="utf-8")
        write_text(path, text.replace("@name@", name).replace("@Name@", title))
    return list(targets.values())


def available() -> dict[str, Path]:
    """The shipped recipes that can be started from, and the folder of each one's templates."""
    folders = {name: _package(place) / "templates" / name for name, place in SHIPPED.items()}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


def _refused(like: str, known: list[str]) -> str:
    if like not in SHIPPED:
        return f"no shipped recipe '{like}'{nearest(like, SHIPPED)}"
    return f"recipe '{like}' has no templates to start from; choose --like {' or --like '.join(known)}"


def _package(place: str) -> Path:
    spec = importlib.util.find_spec(place.partition(":")[0])
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
