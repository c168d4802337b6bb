"""A working start for a researcher's own recipe, from the templates that lie beside a shipped one."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RecipeError, nearest
from clew.recipe import shipped

_FILES = {
    "recipe.py.template": "{name}.py",
    "network.py.template": "{name}_network.py",
    "test.py.template": "test_{name}.py",
}


def write(name: str, like: str, folder: Path) -> list[Path]:
    """Fill in the templates of the recipe `like` and write them into `folder`; nothing there is overwritten.

    `like` may also name settings that come with a recipe, as `jets/gru`: one YAML is written.

    Raises:
        RecipeError: the name is no Python name, `like` has no templates, or a file exists.
    """
    if "/" in like:
        return [_write_settings(name, like, folder / f"{name}.yaml")]
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


def _write_settings(name: str, like: str, path: Path) -> Path:
    known = settings()
    if like not in known:
        raise RecipeError(f"no settings '{like}'{nearest(like, known)}; there are {', '.join(known) or 'none'}")
    if path.exists():
        raise RecipeError(f"{path} exists already; choose another name or folder")
    write_text(path, known[like].read_text(encoding="utf-8").replace("@name@", name))
    return path


def settings() -> dict[str, Path]:
    """YAML files that come with shipped recipes, as `jets/gru`."""
    folders = {name: _package(place) / "configs" for name, place in shipped().items() if (_package(place).name == name)}
    return {f"{name}/{path.stem}": path for name, folder in folders.items() for path in sorted(folder.glob("*.yaml"))}


def available() -> dict[str, Path]:
    """The shipped recipes that can be started from, and the folder of each one's templates."""
    folders = {name: _package(place) / "templates" / name for name, place in shipped().items()}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


def _refused(like: str, known: list[str]) -> str:
    if like not in shipped():
        return f"no shipped recipe '{like}'{nearest(like, shipped())}"
    return f"recipe '{like}' has no templates to start from; choose --like {' or --like '.join(known)}"


def _package(place: str) -> Path:
    spec = importlib.util.find_spec(place.partition(":")[0])
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
