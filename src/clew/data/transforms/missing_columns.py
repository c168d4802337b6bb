"""What is left of a list of transforms where some columns are not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clew.data.transforms.base import Transform
from clew.data.transforms.scale import MinMax, Standard
from clew.data.transforms.select import Compute


def needs(transform: Transform) -> Sequence[str]:
    """The columns a transform looks at."""
    found: Sequence[str] = getattr(transform, "needs", getattr(transform, "columns", ()))
    return found


def without(transforms: Iterable[Transform], absent: Iterable[str]) -> tuple[list[Transform], set[str]]:
    """Those that need none of the absent columns, nor what would have been made of them; and all that is then absent.

    Of columns that are scaled together the others still are.
    """
    kept, gone = list[Transform](), set(absent)
    for each in transforms:
        if isinstance(each, (MinMax, Standard)):
            columns = tuple(name for name in each.columns if name not in gone)
            kept += [each.model_copy(update={"columns": columns})] if columns else []
        elif gone.isdisjoint(needs(each)):
            kept.append(each)
            gone -= {each.column} if isinstance(each, Compute) else set()
        elif isinstance(each, Compute):
            gone.add(each.column)
    return kept, gone
