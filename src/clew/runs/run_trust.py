"""Whether the code that a run brings may be executed: its own runs always, runs from elsewhere after `--trust`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.core.config import read_document
from clew.core.entry_points import installed_entry_points
from clew.core.private_modules import SAVED_CODE
from clew.core.trust import content_digest, foreign_origin, is_trusted, refusal, remember
from clew.errors import RunError
from clew.runs.folder import Run

_ANY_MODEL = ("columns", "lightning")
"""Recipes whose settings name the code of the model."""


def code_references(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that name code outside of clew and the installed recipes.

    `columns` and `lightning` build any model and loss that their settings name: a name alone can be code, such as
    `os:system`.

    Args:
        settings: The settings of a run, with `recipe`.

    Example:
        >>> code_references({"recipe": "tracking"})
        {}
        >>> code_references({"recipe": "mine.py"})
        {'recipe': 'mine.py'}
    """
    recipe, references = str(settings.get("recipe") or ""), dict[str, Any]()
    if recipe and recipe not in installed_entry_points("clew.recipes"):
        references["recipe"] = recipe
    if recipe in _ANY_MODEL:
        model = settings.get("model")
        if isinstance(model, Mapping) and (model.get("build") or model.get("estimator")):
            references["model"] = dict(model)
        if ":" in str(settings.get("loss", "")):
            references["loss"] = settings["loss"]
    return references


def check_run_trust(run: Run, *, recipe: bool = True) -> None:
    """Refuse to execute code of a run that came from elsewhere, unless the user trusts it.

    Call this before the settings of a run are used to find its recipe.

    Args:
        run: The run.
        recipe: Whether the recipe of the run is used, and not one that the user passed.

    Raises:
        RunError: The run brings code, is not the user's own, and its code was not trusted.
    """
    origin = _untrusted_origin(run)
    names = code_names(run, recipe=recipe) if origin is not None else []
    if origin is not None and names:
        raise refusal(run.path, origin, names)


def is_run_trusted(run: Run) -> bool:
    """Whether the code of a run may be executed: it is the user's own, was trusted, or there is none."""
    return _untrusted_origin(run) is None or not code_names(run)


def trust_run(run: Run) -> None:
    """Trust the code of a run from now on, wherever it is copied."""
    if code_names(run):
        remember(_digest(run, _code_files(run)), f"the code of {run.path.resolve()}")


def trust_own_run(run: Run) -> None:
    """Remember the code of a run of the user, before the run is sent to a store or a server and may come back."""
    files = _code_files(run)
    if foreign_origin(run.path, [run.config_file, *files.values()]) is None:
        with contextlib.suppress(RunError):  # a read-only home: asked when it comes back
            trust_run(run)


def code_names(run: Run, *, recipe: bool = True) -> list[str]:
    """Return what of a run would be executed, empty for nothing: saved files, and settings that name code.

    Args:
        run: The run.
        recipe: Whether its recipe is used; else only what the settings of a model name.
    """
    references = code_references(read_document(run.config_file).data)
    if not recipe:
        references.pop("recipe", None)
    names = [f"{key}: {_reference(value)}" for key, value in references.items()]
    files = sorted(name for name in _code_files(run) if not name.endswith(SAVED_CODE))
    return [*files, *names] if recipe or names else []


def _reference(value: Any) -> str:
    return value if isinstance(value, str) else str(value.get("build") or value.get("estimator"))


def _code_files(run: Run) -> dict[str, Path]:
    """Return the files of a run that it may execute, by their path in it."""
    paths = [*run.code_folder.rglob("*"), *run.path.glob("*.py")]
    return {path.relative_to(run.path).as_posix(): path for path in paths if path.is_file()}


def _untrusted_origin(run: Run) -> str | None:
    """Return where a run came from; None if it is the user's own, or was trusted."""
    files = _code_files(run)
    origin = foreign_origin(run.path, [run.config_file, *files.values()])
    return None if origin is None or is_trusted(_digest(run, files)) else origin


def _digest(run: Run, files: Mapping[str, Path]) -> str:
    references = code_references(read_document(run.config_file).data)
    return content_digest(files.items(), json.dumps(references, sort_keys=True, default=str))
