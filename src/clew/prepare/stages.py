"""The stages every event goes through, as plain functions of tables."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clew.config import to_data
from clew.errors import DataError, RecipeError
from clew.recipe import Recipe
from clew.table import WEIGHT, Table
from clew.transforms import Transform
from clew.transforms.base import apply


def events(recipe: Recipe, path: Path) -> Iterator[Table]:
    """The raw events of a file, chunk by chunk, without NaN.

    Raises:
        DataError: the file cannot be used; the message names it.
    """
    try:
        seen = 0
        for chunk in recipe.read(path):
            seen += len(chunk)
            yield chunk.check("error")
        if not seen:
            raise DataError("no events in it")
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def samples(recipe: Recipe, transforms: Sequence[Transform], path: Path) -> Iterator[Table]:
    """The prepared samples of a file, chunk by chunk: read, transform, prepare. Event weights are carried along.

    Raises:
        RecipeError: `prepare` did not give one sample an event.
    """
    for chunk in events(recipe, path):
        ready = apply(transforms, chunk)
        table: Any = recipe.prepare(ready)
        if not isinstance(table, Table) or len(table) != len(ready):
            got = f"{len(table)} samples" if isinstance(table, Table) else type(table).__name__
            raise RecipeError(f"{type(recipe).__name__}.prepare gave {got} for {len(ready)} events")
        carried = WEIGHT in ready and WEIGHT not in table
        yield table.join({WEIGHT: ready.fixed(WEIGHT)}) if carried else table


def identity(recipe: Recipe) -> dict[str, Any]:
    """What prepared data depends on besides its inputs: settings, declared version, code."""
    settings = to_data(recipe.config)
    sections = recipe.data_sections
    chosen = {n: v for n, v in settings.items() if (n != "model" if sections is None else n in sections)}
    transforms = [to_data(transform) for transform in recipe.transforms()]
    return {"settings": chosen, "transforms": transforms, "version": recipe.version, "code": _code(type(recipe))}


def key_of(parts: Any) -> str:
    """A hash of plain JSON data, the same for the same content whatever the order of keys."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _code(recipe: type[Recipe]) -> str:
    """A hash of the recipe's own source without comments and layout; files that hold networks do not count."""
    try:
        file = Path(inspect.getfile(recipe))
    except (TypeError, OSError):  # written in a notebook: the declared version must do
        return ""
    files = sorted(file.parent.glob("*.py")) if (file.parent / "__init__.py").exists() else [file]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    alone = len(files) == 1
    return key_of([ast.dump(tree) for tree in trees if alone or not _imports_torch(tree)])


def _imports_torch(tree: ast.Module) -> bool:
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "torch" for name in names):
            return True
    return False
