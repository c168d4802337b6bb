"""The preprocessing of raw events, and which part of it an exported model includes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clew.data.transforms import Compute, MinMax, SameItems, Select, SelectItems, Standard, Transform
from clew.data.transforms.missing_columns import without_columns
from clew.inference.flat_forward import InputScale, ModelInput
from clew.recipe import Recipe


class Preprocessing(NamedTuple):
    """The scaling of the inputs of a model, and descriptions of the preprocessing that it includes and does not."""

    scales: dict[str, InputScale]
    included: tuple[str, ...]
    left_out: tuple[str, ...]


def describe_preprocessing(
    recipe: Recipe, transforms: Sequence[Transform], inputs: Sequence[ModelInput]
) -> Preprocessing:
    """Describe what an exported model includes: the scaling of columns that samples copy from the events.

    Transforms of labels and weights do not count, nor those that change no number.
    """
    transforms = [
        each for each in without_columns(transforms, recipe.label_columns())[0] if not isinstance(each, SameItems)
    ]
    unchanged = {name: tuple(columns) for name, columns in recipe.passthrough_columns().items()}
    used = {each.column for each in inputs}
    passed = {name: columns for name, columns in unchanged.items() if name in used}
    last = {name: _first_scaling(transforms, name) for columns in passed.values() for name in columns}
    scales = {
        name: scale for name, columns in passed.items() if (scale := _scale(transforms, columns, last)) is not None
    }
    done = {
        index
        for name in scales
        for column in passed[name]
        for index in _scaling_indices(transforms, column, last[column])
    }
    included = tuple(_transform_text(transforms[index]) for index in sorted(done))
    left_out = [_transform_text(each) for index, each in enumerate(transforms) if index not in done]
    prepared = sorted(used - passed.keys())
    if prepared:
        left_out.append(f"{type(recipe).__name__}.prepare, which makes {', '.join(prepared)}")
    return Preprocessing(scales, included, tuple(left_out))


def _scale(transforms: Sequence[Transform], columns: Sequence[str], last: Mapping[str, int]) -> InputScale | None:
    """The scaling of columns that form one input; None if they are not scaled."""
    shifts, factors = [], []
    for name in columns:
        shift, factor = 0.0, 1.0
        for index in _scaling_indices(transforms, name, last[name]):
            own_shift, own_factor = _shift_and_factor(transforms[index], name)
            shift, factor = shift + own_shift / factor, factor * own_factor
        shifts.append(shift)
        factors.append(factor)
    plain = all(shift == 0 for shift in shifts) and all(factor == 1 for factor in factors)
    return None if plain else InputScale(shift=tuple(shifts), factor=tuple(factors))


def _scaling_indices(transforms: Sequence[Transform], column: str, first: int) -> list[int]:
    """Indices of the transforms from `first` on that scale a column."""
    return [
        index
        for index, each in enumerate(transforms)
        if index >= first and isinstance(each, (MinMax, Standard)) and column in each.columns
    ]


def _first_scaling(transforms: Sequence[Transform], column: str) -> int:
    """The index after the last transform that may change a column otherwise: earlier scaling cannot be included."""
    last = 0
    for index, each in enumerate(transforms):
        if isinstance(each, Compute):
            last = index + 1 if each.column == column else last
        elif not isinstance(each, (MinMax, Standard, Select, SelectItems)):
            last = index + 1
    return last


def _shift_and_factor(transform: Transform, column: str) -> tuple[float, float]:
    """The shift and the factor of a scaling transform."""
    if isinstance(transform, Standard):
        return transform.mean[column], 1 / (transform.std[column] or 1.0)
    assert isinstance(transform, MinMax)
    half = (transform.high[column] - transform.low[column]) / 2 or 0.5
    return transform.low[column] + half, 1 / half


def _transform_text(transform: Transform) -> str:
    if isinstance(transform, (MinMax, Standard)):
        return f"{transform.kind} of {', '.join(transform.columns)}"
    if isinstance(transform, (Select, SelectItems)):
        return f"{transform.kind} '{transform.where}'"
    if isinstance(transform, Compute):
        return f"compute {transform.column} = '{transform.expression}'"
    return str(getattr(transform, "kind", type(transform).__name__))
