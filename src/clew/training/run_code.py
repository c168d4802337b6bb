"""The source code of a run: saved when the training starts, used whenever the run is loaded again."""

from __future__ import annotations

import hashlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clew
from clew.core.source_files import local_sources
from clew.data.dataset import Dataset
from clew.data.prepare.content_keys import differences, preparation_parts
from clew.errors import RunError
from clew.jobs.rank_info import current_rank
from clew.models.columns import Columns, ColumnsConfig
from clew.models.loading import MODEL_ENDINGS
from clew.recipe import Recipe, find
from clew.recipe_errors import short_path
from clew.runs import Run
from clew.runs.saved_code import SECOND, CodeWarning, SavedCode, changes, saved_texts, shipped_changes, short
from clew.version import __version__

_TYPED_IN = "typed_in.py"


def save_code(run: Run, recipe: Recipe) -> None:
    """Save the source files of a recipe, and of a model or a loss that its settings name, in the folder of a run.

    A recipe from a file is saved with the files of its folder that it imports; a recipe of a package with the modules
    of that package that it imports. Of clew's own recipes only hashes are saved: their code belongs to a version of
    clew.

    Args:
        run: The run, whose folder exists.
        recipe: The recipe.
    """
    files, entry = files_of(recipe)
    contents = {name: path.read_bytes() for name, path in files.items()}
    if not recipe.location and type(recipe) is not Columns:
        contents |= _typed_in(recipe)
    index = {
        name: (str(files[name]) if name in files else "", hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    SavedCode(entry, index, _shipped(recipe), __version__).save(run.code_folder, contents)


def files_of(recipe: Recipe) -> tuple[dict[str, Path], str]:
    """Return the files of today's code of a recipe by their path in a run, and the recipe in them.

    The recipe is empty if it is one of clew's, or cannot be loaded from files.
    """
    files: dict[str, Path] = {}
    entry = ""
    place = _recipe_file(recipe)
    if place is not None:
        path, root = place
        files = local_sources(path, root)
        entry = f"{path.relative_to(root).as_posix()}:{type(recipe).__qualname__}"
    if isinstance(recipe, Columns):
        for path in (path for _, path in _places(recipe.config) if path.is_file()):
            root = path.parent
            added = local_sources(path, root) if path.suffix == ".py" else {path.name: path}
            # two folders may have files of the same name
            prefix = "" if all(files.get(name, file) == file for name, file in added.items()) else f"{SECOND}/"
            files |= {f"{prefix}{name}": file for name, file in added.items()}
    return files, entry


def saved_recipe(run: Run, code: SavedCode) -> type[Recipe] | None:
    """Return the recipe class of a run from its saved code, or None if that is no part of it.

    Raises:
        RunError: The index of the saved code names a file outside of it.
    """
    if not code.recipe:
        return None
    path = (run.code_folder / code.recipe).resolve()
    if run.code_folder.resolve() not in path.parents:
        raise RunError(f"{run.code_folder}: its recipe {code.recipe} is not in this folder; the run is damaged")
    return find(str(path))


def with_saved_places(run: Run, code: SavedCode, config: Any) -> Any:
    """Return the settings of a model without a recipe, with the saved files instead of the original ones."""
    saved = {original: str((run.code_folder / name).resolve()) for name, (original, _) in code.files.items()}
    if not isinstance(config, ColumnsConfig):
        return config
    for key, path in _places(config):
        copy = saved.get(str(path))
        if copy is not None and Path(copy).is_file():
            old = config.loss if key == "loss" else getattr(config.model, key)
            new = copy + old[len(str(path)) :]
            model = config.model if key == "loss" else config.model.model_copy(update={key: new})
            config = config.model_copy(update={"model": model, **({"loss": new} if key == "loss" else {})})
    return config


def warn_about_code(run: Run, code: SavedCode, recipe: Recipe, *, current: bool) -> None:
    """Warn if today's code differs from that of a run.

    Args:
        run: The run.
        code: Its code.
        recipe: Today's recipe.
        current: Whether today's code is used.
    """
    if current_rank().rank:
        return
    files, _ = files_of(recipe)
    today = {name: path.read_text(errors="replace") for name, path in files.items() if name.endswith(".py")}
    lines = changes(saved_texts(run), today)
    if lines and current:
        warnings.warn(f"today's code differs from the code of {run.path}: {short(lines)}", CodeWarning, stacklevel=4)
    elif lines:
        message = f"the code of {run.path} is used; today's code differs: {short(lines)}. --current-code uses today's"
        warnings.warn(message, CodeWarning, stacklevel=4)
    modules = shipped_changes(code, SavedCode(shipped=_shipped(recipe)))
    if modules:
        message = f"{run.path} was trained with clew {code.version}; its recipe has changed since: {short(modules)}"
        warnings.warn(message, CodeWarning, stacklevel=4)


def warn_about_dataset(recipe: Recipe, dataset: Dataset) -> None:
    """Warn if a dataset was prepared by other code of the recipe, or with other transforms.

    Args:
        recipe: The recipe that is trained.
        dataset: The dataset it is trained on.
    """
    before = dataset.manifest.preparation
    if before is None:
        return
    lines = differences(_by_function(before), _by_function(preparation_parts(recipe)))
    if lines:
        what = short_path(recipe.location) or type(recipe).__name__
        place, inputs = short_path(str(dataset.path)), short(item.name for item in dataset.manifest.inputs)
        before_name = dataset.manifest.recipe
        if recipe.location and before_name != recipe.location and "." not in before_name + recipe.location:
            cause = f"for the recipe {before_name}, not for {recipe.location}"
        else:
            cause = f"by other code: {short(dict.fromkeys(lines))}"
        warnings.warn(
            f"{place} was prepared {cause}; to prepare it again: "
            f"clew prepare {what} --input ... --output {place} --replace (it was made from {inputs})",
            CodeWarning,
            stacklevel=4,
        )


def _by_function(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a preparation with the code by function: a renamed file has the same code."""
    code: dict[str, str] = {}
    for name, digest in sorted(parts["code"].items(), key=lambda item: item[1]):
        function = name.rpartition(":")[2]
        code[function] = code.get(function, "") + digest
    return {**parts, "code": code}


def _recipe_file(recipe: Recipe) -> tuple[Path, Path] | None:
    """Return the file of a recipe, and the folder from which its modules are imported. None for a recipe of clew."""
    module = sys.modules.get(type(recipe).__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or not recipe.location or module.__name__.partition(".")[0] == "clew":
        return None
    path = Path(file).resolve()
    if module.__name__.startswith("clew_run_"):
        root = Path(sys.modules[module.__name__.partition(".")[0]].__path__[0]).resolve()
        return path, root
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    is_file = module.__name__.startswith("clew_recipe_") or module.__name__ == "__main__"
    return path, path.parent if is_file else path.parents[depth]


def _places(config: Any) -> Iterator[tuple[str, Path]]:
    """Yield the files of the model, the estimator and the loss of a `Columns` recipe, which may be missing by now."""
    for key, text in (("build", config.model.build), ("estimator", config.model.estimator), ("loss", config.loss)):
        path = Path(text if Path(text).suffix in MODEL_ENDINGS else text.rpartition(":")[0])
        if path.suffix and path.is_absolute():
            yield key, path


def _typed_in(recipe: Recipe) -> dict[str, bytes]:
    """Return the source of a recipe that was typed into a notebook, to be read and compared, not loaded."""
    try:
        return {_TYPED_IN: inspect.getsource(type(recipe)).encode()}
    except (OSError, TypeError):
        return {}


def _shipped(recipe: Recipe) -> dict[str, str]:
    """Return the hashes of all modules of the packages of clew's recipes that a recipe is made of."""
    source = Path(clew.__file__).parent
    hashes = {}
    for kind in type(recipe).__mro__:
        parts = kind.__module__.split(".")
        if parts[:2] == ["clew", "recipes"]:
            place = source.joinpath("recipes", parts[2])
            for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
                name = ".".join(("clew", *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__")
                hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes
