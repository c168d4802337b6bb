"""What is done to raw events before a model sees them, and which of it an exported model can do itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clew.data.transforms import Compute, MinMax, SameItems, Select, SelectItems, Standard, Transform
from clew.data.transforms.missing_columns import without_columns
from clew.inference.flat_forward import InputScale, ModelInput
from clew.recipe import Recipe


class Preprocessing(NamedTuple):
    """The scaling of a model's inputs, and in words what it covers and what it does not."""

    scales: dict[str, InputScale]
    included: tuple[str, ...]
    left_out: tuple[str, ...]


def describe_preprocessing(
    recipe: Recipe, transforms: Sequence[Transform], inputs: Sequence[ModelInput]
) -> Preprocessing:
    """What an exported model takes over: the scaling of columns that samples have from the events as they are.

    What concerns labels and weights alone is not counted, nor what changes no number.
    """
    transforms = [
        each for each in without_columns(transforms, recipe.label_columns())[0] if not isinstance(each, SameItems)
    ]
    unchanged = {name: tuple(columns) for name, columns in recipe.passthrough_columns().items()}
    used = {each.column for each in inputs}
    taken = {name: columns for name, columns in unchanged.items() if name in used}
    last = {name: _scales_after(transforms, name) for columns in taken.values() for name in columns}
    scales = {name: made for name, columns in taken.items() if (made := _scale(transforms, columns, last)) is not None}
    done = {place for name in scales for column in taken[name] for place in _scaling(transforms, column, last[column])}
    included = tuple(_told(transforms[place]) for place in sorted(done))
    left_out = [_told(each) for place, each in enumerate(transforms) if place not in done]
    prepared = sorted(used - taken.keys())
    if prepared:
        left_out.append(f"{type(recipe).__name__}.prepare, which makes {', '.join(prepared)}")
    return Preprocessing(scales, included, tuple(left_out))


def _scale(transforms: Sequence[Transform], columns: Sequence[str], last: Mapping[str, int]) -> InputScale | None:
    """The scaling of columns that stand side by side; None where nothing is done to them."""
    shifts, factors = [], []
    for name in columns:
        shift, factor = 0.0, 1.0
        for place in _scaling(transforms, name, last[name]):
            own_shift, own_factor = _numbers(transforms[place], name)
            shift, factor = shift + own_shift / factor, factor * own_factor
        shifts.append(shift)
        factors.append(factor)
    plain = all(shift == 0 for shift in shifts) and all(factor == 1 for factor in factors)
    return None if plain else InputScale(shift=tuple(shifts), factor=tuple(factors))


def _scaling(transforms: Sequence[Transform], column: str, first: int) -> list[int]:
    """Which transforms from `first` on scale a column."""
    return [
        place
        for place, each in enumerate(transforms)
        if place >= first and isinstance(each, (MinMax, Standard)) and column in each.columns
    ]


def _scales_after(transforms: Sequence[Transform], column: str) -> int:
    """Behind the last transform that makes a column, or may: scaling before it cannot be taken over."""
    last = 0
    for place, each in enumerate(transforms):
        if isinstance(each, Compute):
            last = place + 1 if each.column == column else last
        elif not isinstance(each, (MinMax, Standard, Select, SelectItems)):
            last = place + 1
    return last


def _numbers(transform: Transform, column: str) -> tuple[float, float]:
    """Shift and factor."""
    if isinstance(transform, Standard):
        return transform.mean[column], 1 / (transform.std[column] or 1.0)
    assert isinstance(transform, MinMax)
    half = (transform.high[column] - transform.low[column]) / 2 or 0.5
    return transform.low[column] + half, 1 / half


def _told(transform: Transform) -> str:
    if isinstance(transform, (MinMax, Standard)):
        return f"{transform.kind} of {', '.join(transform.columns)}"
    if isinstance(transform, (Select, SelectItems)):
        return f"{transform.kind} '{transform.where}'"
    if isinstance(transform, Compute):
        return f"compute {transform.column} = '{transform.expression}'"
    return str(getattr(transform, "kind", type(transform).__name__))
