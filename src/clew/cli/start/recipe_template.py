"""The files that `clew init` writes: a recipe of the user's own, started from one that comes with clew.

A shipped recipe of one file is copied as it is. A larger one has templates: files in the folder `templates/NAME` of its
package, in which `@name@` and `@Name@` stand for the names of the new recipe and of its class.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from clew.core.files import write_text
from clew.errors import RecipeError, nearest
from clew.recipe import shipped

SMALL = "small"
"""The smallest start: a recipe in one short file, which is no shipped recipe."""
_FILES = {
    "recipe.py.template": "{name}.py",
    "network.py.template": "{name}_network.py",
    "test.py.template": "test_{name}.py",
}


def write_recipe(name: str, like: str, folder: Path) -> list[Path]:
    """Write the files of a new recipe into `folder`. No file is overwritten.

    Args:
        name: name of the new recipe, a Python identifier.
        like: the shipped recipe to start from, or settings that come with one, as `jets/gru`: one YAML file is written.
        folder: where the files go.

    Returns:
        The files written.

    Raises:
        RecipeError: the name is no Python identifier, `like` cannot be started from, or a file exists.
    """
    if "/" in like:
        return [_write_settings(name, like, folder / f"{name}.yaml")]
    _check_name(name)
    if like not in starting_points():
        raise RecipeError(_unavailable(like))
    return write_files(name, folder, _templates(like))


def write_files(name: str, folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files of a new recipe. No file is overwritten.

    Args:
        name: Name of the recipe, a Python identifier.
        folder: Where the files go.
        texts: Texts by name of the file. `{name}` in the name of a file, and `@name@` and `@Name@` in a text, stand
            for the names of the recipe and its class.

    Returns:
        The files written.

    Raises:
        RecipeError: The name is no Python identifier, or a file exists.
    """
    _check_name(name)
    files = {folder / file.format(name=name): text for file, text in texts.items()}
    existing = [path for path in files if path.exists()]
    if existing:
        raise RecipeError(f"{existing[0]} exists already; choose another name or folder")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for path, text in files.items():
        write_text(path, text.replace("@name@", name).replace("@Name@", class_name))
    return list(files)


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise RecipeError(f"'{name}' cannot name a recipe; use letters, digits and _, as in my_recipe")


def starting_points() -> list[str]:
    """What `clew init --like` offers: the small recipe, then shipped recipes sorted by name."""
    return [SMALL, *(name for name, place in shipped().items() if _template_folder(name, place).is_dir())]


def settings_files() -> dict[str, Path]:
    """YAML files of settings that come with shipped recipes, by names such as `jets/gru`."""
    folders = {name: _source(place).parent for name, place in shipped().items()}
    return {
        f"{name}/{path.stem}": path
        for name, folder in folders.items()
        if folder.name == name
        for path in sorted((folder / "configs").glob("*.yaml"))
    }


def _templates(like: str) -> dict[str, str]:
    """The text of every file to write, by the pattern of its name."""
    if like == SMALL:
        return _read_templates(_source("clew.recipes").parent / "templates" / SMALL)
    place = shipped()[like]
    folder, source = _template_folder(like, place), _source(place)
    texts = _read_templates(folder)
    if source.name != "__init__.py":  # the recipe is this one file
        texts = {"{name}.py": _as_template(source.read_text(encoding="utf-8"), like, place.partition(":")[2]), **texts}
    return texts


def _read_templates(folder: Path) -> dict[str, str]:
    return {
        target: (folder / template).read_text(encoding="utf-8")
        for template, target in _FILES.items()
        if (folder / template).is_file()
    }


def _as_template(source: str, name: str, class_name: str) -> str:
    """The source of a shipped recipe with placeholders for its own names."""
    source = re.sub(rf"\b{class_name}\b", "@Name@", source)
    source = re.sub(rf"(clew (?:data generate|prepare|train)) {name}\b", r"\1 @name@.py", source)
    source = source.replace(f"runs/{name}-", "runs/@name@-").replace(f"The recipe `{name}`", "The recipe `@name@`")
    return re.sub(r"\nCopy this file with `clew init.*", "", source)


def _write_settings(name: str, like: str, path: Path) -> Path:
    known = settings_files()
    if like not in known:
        raise RecipeError(f"no settings '{like}'{nearest(like, known)}; there are {', '.join(known) or 'none'}")
    if path.exists():
        raise RecipeError(f"{path} exists already; choose another name or folder")
    write_text(path, known[like].read_text(encoding="utf-8").replace("@name@", name))
    return path


def _unavailable(like: str) -> str:
    if like not in shipped():
        return f"no shipped recipe '{like}'{nearest(like, shipped())}"
    *names, last = starting_points()
    return f"recipe '{like}' has no templates to start from; choose --like {', '.join(names)} or {last}"


def _template_folder(name: str, place: str) -> Path:
    return _source(place).parent / "templates" / name


def _source(place: str) -> Path:
    """The file of the module in `module:Class`, without loading it."""
    spec = importlib.util.find_spec(place.partition(":")[0])
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)
