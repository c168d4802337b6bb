"""The transforms that remain if some columns are missing, such as labels in new data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clew.data.transforms.base import Transform
from clew.data.transforms.scale import MinMax, Standard


def needed_columns(transform: Transform) -> Sequence[str]:
    """Return the columns that a transform reads."""
    names: Sequence[str] = getattr(transform, "needs", getattr(transform, "columns", ()))
    return names


def made_columns(transform: Transform) -> Sequence[str]:
    """Return the columns that a transform adds."""
    names: Sequence[str] = getattr(transform, "makes", ())
    return names


def without_columns(transforms: Iterable[Transform], absent: Iterable[str]) -> tuple[list[Transform], set[str]]:
    """Return the transforms that can be applied if some columns are missing.

    A transform is left out if it needs a missing column, or a column that would be computed from one. If several
    columns are scaled together, the others are still scaled.

    Args:
        transforms: The transforms, in order.
        absent: The missing columns.

    Returns:
        The transforms that remain, and all columns that are missing after them.
    """
    usable, missing = list[Transform](), set(absent)
    for transform in transforms:
        if isinstance(transform, (MinMax, Standard)):
            columns = tuple(name for name in transform.columns if name not in missing)
            usable += [transform.model_copy(update={"columns": columns})] if columns else []
        elif missing.isdisjoint(needed_columns(transform)):
            usable.append(transform)
            missing -= set(made_columns(transform))
        else:
            missing |= set(made_columns(transform))
    return usable, missing
