"""A recipe's forward pass as a function of plain tensors, and which tensors those are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clew.core.config import Section
from clew.data.dataset.batch import Batch, RaggedTensor
from clew.recipe import Recipe
from clew.training.validation import outputs_by_name

InputPart = Literal["column", "values", "offsets", "padded", "mask"]


class InputScale(Section):
    """(x - shift) * factor, one number a feature."""

    shift: tuple[float, ...]
    factor: tuple[float, ...]

    def apply(self, values: Tensor) -> Tensor:
        """In double precision: a mean may be large."""
        shift = values.new_tensor(self.shift, dtype=torch.float64)
        return ((values.double() - shift) * values.new_tensor(self.factor, dtype=torch.float64)).float()

    def undo(self, values: Tensor) -> Tensor:
        """What `apply` takes back."""
        shift = values.new_tensor(self.shift, dtype=torch.float64)
        return (values.double() / values.new_tensor(self.factor, dtype=torch.float64) + shift).float()


class ModelInput(Section):
    """One tensor that a network gets: a fixed column; or of a ragged one its values, its offsets, or the padded
    rectangle and the mask of where there is an item."""

    name: str
    column: str
    part: InputPart
    fill: float = 0.0
    """What stands in a padded tensor where nothing is."""
    scale: InputScale | None = None
    """What the exported model does to it first; samples have it done already."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes whose length is not fixed."""
        return {
            "column": ("events",),
            "values": (f"{self.column}_items",),
            "offsets": ("events_and_one",),
            "padded": ("events", f"{self.column}_longest"),
            "mask": ("events", f"{self.column}_longest"),
        }[self.part]

    def of(self, batch: Batch) -> Tensor:
        """The tensor of a batch of samples, as the exported model wants it."""
        column = batch.columns[self.column]
        if not isinstance(column, RaggedTensor):
            return column if self.scale is None else self.scale.undo(column)
        if self.part in ("values", "offsets"):
            found = column.values if self.part == "values" else column.offsets
            return found if self.scale is None else self.scale.undo(found)
        if self.scale is not None:
            column = RaggedTensor(self.scale.undo(column.values), column.offsets)
        return column.padded(self.fill)[self.part == "mask"]


class _Watched(RaggedTensor):
    """A ragged column that notes what it is asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("values", "offsets"):
            object.__getattribute__(self, "__dict__").setdefault("asked", {})[name] = 0.0
        return super().__getattribute__(name)

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        own = vars(self)
        own.setdefault("asked", {})["padded"] = fill
        return RaggedTensor(own["values"], own["offsets"]).padded(fill)


class _Noting(dict[str, Any]):
    """Columns of a batch that note which of them are asked for."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> Any:
        if name in self and name not in self.asked:
            self.asked.append(name)
        return super().__getitem__(name)


def find_inputs(recipe: Recipe, model: nn.Module, batch: Batch) -> list[ModelInput]:
    """The tensors that a recipe's forward pass uses, found by trying it."""
    columns = _Noting(
        {n: _Watched(c.values, c.offsets) if isinstance(c, RaggedTensor) else c for n, c in batch.columns.items()}
    )
    with torch.no_grad():
        recipe.forward(model, Batch(batch.size, columns))
    return [each for name in columns.asked for each in _parts(name, dict.__getitem__(columns, name))]


def _parts(name: str, column: Any) -> list[ModelInput]:
    if not isinstance(column, _Watched):
        return [ModelInput(name=name, column=name, part="column")]
    asked: dict[str, float] = vars(column).get("asked", {})
    found = []
    if "values" in asked:
        found.append(ModelInput(name=name, column=name, part="values"))
    if "offsets" in asked:
        found.append(ModelInput(name=f"{name}_offsets", column=name, part="offsets"))
    if "padded" in asked:
        plain = "values" not in asked
        found.append(
            ModelInput(name=name if plain else f"{name}_padded", column=name, part="padded", fill=asked["padded"])
        )
        found.append(ModelInput(name=f"{name}_mask", column=name, part="mask"))
    return found


class _Given(RaggedTensor):
    """A ragged column of which only those parts are there that the forward pass uses."""

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = vars(self)["rectangle"]
        return found


class FlatForward(nn.Module):
    """The forward pass of a recipe on plain tensors, one for each input; outputs by name."""

    def __init__(self, recipe: Recipe, model: nn.Module, inputs: Sequence[ModelInput]) -> None:
        super().__init__()
        self.model, self._recipe, self._inputs = model, recipe, tuple(inputs)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        parts: dict[str, dict[str, Tensor]] = {}
        for given, tensor in zip(self._inputs, tensors, strict=True):
            scaled = tensor if given.scale is None else given.scale.apply(tensor)
            if given.part == "padded" and given.scale is not None:
                mask = tensors[next(n for n, each in enumerate(self._inputs) if each.name == f"{given.column}_mask")]
                kept = mask.view(*mask.shape, *[1] * (scaled.ndim - 2))
                scaled = torch.where(kept, scaled, torch.full_like(scaled, given.fill))
            parts.setdefault(given.column, {})[given.part] = scaled
        batch = Batch(_size(parts), {name: _column(each) for name, each in parts.items()})
        return dict(outputs_by_name(self._recipe.forward(self.model, batch)))


def _size(parts: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Events of the batch, where an input tells."""
    for each in parts.values():
        for part, tensor in each.items():
            if part in ("column", "padded"):
                return tensor.shape[0]
            if part == "offsets":
                return tensor.shape[0] - 1
    return 0


def _column(parts: Mapping[str, Tensor]) -> Any:
    if "column" in parts:
        return parts["column"]
    nothing = next(iter(parts.values()))
    made = _Given(parts.get("values", nothing), parts.get("offsets", nothing))
    if "padded" in parts:
        vars(made)["rectangle"] = (parts["padded"], parts["mask"])
    return made


class ExportFacts(Section):
    """What an exported file says of itself."""

    format: Literal[1] = 1
    run: str
    config_hash: str
    """SHA-256 of the run's settings."""
    dataset_key: str
    clew_version: str
    weights: str
    recipe: str
    settings: dict[str, Any]
    """The recipe's own."""
    transforms: tuple[dict[str, Any], ...]
    """With their fitted numbers."""
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    recurrent: bool
    """Whether it has recurrent layers."""
    included: tuple[str, ...]
    """What is done to raw events that the exported model does itself."""
    left_out: tuple[str, ...]
    """What is done to raw events that it does not do."""
    tolerance: float
    difference: float
    """The largest that was seen between this and the original, on real samples."""
