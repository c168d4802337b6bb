"""Trained models that are part of the package: `clew model list`."""

from __future__ import annotations

from pathlib import Path

import clew

FOLDER = Path(clew.__file__).parent / "trained"
"""The store with the models. `tools/train_shipped_models.py` writes it."""


def shipped_names() -> list[str]:
    """Return the names of the models that are part of the package."""
    return sorted(path.parent.name for path in FOLDER.glob("*/clew.json"))


def find_shipped(name: str | Path) -> Path | None:
    """Return the folder of a model of this name that is part of the package, or None if there is none."""
    return FOLDER / name if str(name) in shipped_names() else None
