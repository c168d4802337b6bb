"""A recipe's forward pass as a function of plain tensors, and the description of an exported model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from clew.core.config import Section
from clew.data.dataset.batch import Batch, RaggedTensor
from clew.recipe import Recipe
from clew.training.validation import outputs_by_name

EXPORT_FORMAT: Final = 1
"""Version of exported models. It changes when an older clew could not read a new one."""
_MAX_FAST_BATCH, _BATCH_NUMBERS = 8192, 1 << 19
"""Largest number of events and of numbers in a batch of an exported model: it stays in the cache of the processor."""
InputPart = Literal["column", "values", "offsets", "padded", "mask"]


class InputScale(Section):
    """(x - shift) * factor, with one number per feature."""

    shift: tuple[float, ...]
    factor: tuple[float, ...]

    def apply(self, values: Tensor) -> Tensor:
        """Scale values, in double precision because a mean may be large."""
        shift = values.new_tensor(self.shift, dtype=torch.float64)
        return ((values.double() - shift) * values.new_tensor(self.factor, dtype=torch.float64)).float()

    def undo(self, values: Tensor) -> Tensor:
        """Reverse `apply`."""
        shift = values.new_tensor(self.shift, dtype=torch.float64)
        return (values.double() / values.new_tensor(self.factor, dtype=torch.float64) + shift).float()


class ModelInput(Section):
    """One input tensor of a network.

    It is a fixed column or, for a ragged column, its values, its offsets, the padded tensor, or the mask of real items.
    """

    name: str
    column: str
    part: InputPart
    fill: float = 0.0
    """Value of the padding."""
    scale: InputScale | None = None
    """Scaling that the exported model applies first. Samples are already scaled."""
    type: str = ""
    """Type of the numbers, such as `float32`."""
    shape: tuple[int | str, ...] = ()
    """Length of each axis; the name of an axis whose length varies."""
    sample_type: str = ""
    """Type of the numbers in samples, if it is another one. The exported model converts them first."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes whose length varies."""
        return {
            "column": ("events",),
            "values": (f"{self.column}_items",),
            "offsets": ("events_and_one",),
            "padded": ("events", f"{self.column}_longest"),
            "mask": ("events", f"{self.column}_longest"),
        }[self.part]

    def described(self, tensor: Tensor, *, keep_float64: bool) -> ModelInput:
        """Return this input with the type and shape of an example. It becomes float32 if it is float64."""
        sample_type = str(tensor.dtype).removeprefix("torch.")
        narrowed = sample_type == "float64" and not keep_float64
        shape = (*self.axes, *tensor.shape[len(self.axes) :])
        types = {"type": "float32" if narrowed else sample_type, "sample_type": sample_type if narrowed else ""}
        return self.model_copy(update={"shape": shape, **types})

    def of(self, batch: Batch) -> Tensor:
        """Return the tensor of a batch of samples that the exported model expects."""
        tensor = self._unscaled(batch)
        return tensor.to(getattr(torch, self.type)) if self.sample_type else tensor

    def restored(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the type of the samples."""
        return tensor.to(getattr(torch, self.sample_type)) if self.sample_type else tensor

    def _unscaled(self, batch: Batch) -> Tensor:
        column = batch.columns[self.column]
        if not isinstance(column, RaggedTensor):
            return column if self.scale is None else self.scale.undo(column)
        if self.part in ("values", "offsets"):
            tensor = column.values if self.part == "values" else column.offsets
            return tensor if self.scale is None else self.scale.undo(tensor)
        if self.scale is not None:
            column = RaggedTensor(self.scale.undo(column.values), column.offsets)
        return column.padded(self.fill)[self.part == "mask"]


class _RecordingColumn(RaggedTensor):
    """A ragged column that records which of its parts are used."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("values", "offsets"):
            object.__getattribute__(self, "__dict__").setdefault("used", {})[name] = 0.0
        return super().__getattribute__(name)

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        attributes = vars(self)
        attributes.setdefault("used", {})["padded"] = fill
        return RaggedTensor(attributes["values"], attributes["offsets"]).padded(fill)


class _RecordingColumns(dict[str, Any]):
    """Columns of a batch that record which of them are used."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.used: list[str] = []

    def __getitem__(self, name: str) -> Any:
        if name in self and name not in self.used:
            self.used.append(name)
        return super().__getitem__(name)


def find_inputs(recipe: Recipe, model: nn.Module, batch: Batch) -> list[ModelInput]:
    """Find the tensors that a recipe's forward pass uses, by running it."""
    columns = _RecordingColumns(
        {
            n: _RecordingColumn(c.values, c.offsets) if isinstance(c, RaggedTensor) else c
            for n, c in batch.columns.items()
        }
    )
    with torch.no_grad():
        recipe.forward(model, Batch(batch.size, columns))
    return [item for name in columns.used for item in _parts(name, dict.__getitem__(columns, name))]


def _parts(name: str, column: Any) -> list[ModelInput]:
    if not isinstance(column, _RecordingColumn):
        return [ModelInput(name=name, column=name, part="column")]
    used: dict[str, float] = vars(column).get("used", {})
    inputs = []
    if "values" in used:
        inputs.append(ModelInput(name=name, column=name, part="values"))
    if "offsets" in used:
        inputs.append(ModelInput(name=f"{name}_offsets", column=name, part="offsets"))
    if "padded" in used:
        plain = "values" not in used
        inputs.append(
            ModelInput(name=name if plain else f"{name}_padded", column=name, part="padded", fill=used["padded"])
        )
        inputs.append(ModelInput(name=f"{name}_mask", column=name, part="mask"))
    return inputs


class _PartialColumn(RaggedTensor):
    """A ragged column that has only the parts that the forward pass uses."""

    def padded(self, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        padded: tuple[Tensor, Tensor] = vars(self)["padded_tensor"]
        return padded


class FlatForward(nn.Module):
    """The forward pass of a recipe on plain tensors, one per input. It returns outputs by name."""

    def __init__(self, recipe: Recipe, model: nn.Module, inputs: Sequence[ModelInput]) -> None:
        super().__init__()
        self.model, self._recipe, self._inputs = model, recipe, tuple(inputs)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        parts: dict[str, dict[str, Tensor]] = {}
        for item, tensor in zip(self._inputs, tensors, strict=True):
            scaled = tensor if item.scale is None else item.scale.apply(tensor)
            if item.part == "padded" and item.scale is not None:
                mask = tensors[next(n for n, each in enumerate(self._inputs) if each.name == f"{item.column}_mask")]
                real_items = mask.view(*mask.shape, *[1] * (scaled.ndim - 2))
                scaled = torch.where(real_items, scaled, torch.full_like(scaled, item.fill))
            parts.setdefault(item.column, {})[item.part] = item.restored(scaled)
        batch = Batch(_size(parts), {name: _column(each) for name, each in parts.items()})
        return dict(outputs_by_name(self._recipe.forward(self.model, batch)))


def _size(parts: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Number of events of the batch, if an input shows it."""
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
    placeholder = next(iter(parts.values()))
    column = _PartialColumn(parts.get("values", placeholder), parts.get("offsets", placeholder))
    if "padded" in parts:
        vars(column)["padded_tensor"] = (parts["padded"], parts["mask"])
    return column


class ExportFacts(Section):
    """The description that an exported file holds."""

    format: Literal[1] = EXPORT_FORMAT
    run: str
    config_hash: str
    """SHA-256 of the run's settings."""
    dataset_key: str
    clew_version: str
    weights: str
    recipe: str
    """The recipe: its name, or the file that the run saved."""
    original_recipe: str = ""
    """The recipe as the run named it, for the case that the run is not there any more."""
    settings: dict[str, Any]
    """Settings of the recipe."""
    transforms: tuple[dict[str, Any], ...]
    """The transforms with their fitted numbers."""
    input_items: tuple[tuple[str, ...], ...] | None = None
    """The columns of raw events that are the same items; see `Manifest.input_items`."""
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    recurrent: bool
    """Whether it has recurrent layers."""
    included: tuple[str, ...]
    """Preprocessing of raw events that the exported model does itself."""
    left_out: tuple[str, ...]
    """Preprocessing of raw events that it does not do."""
    tolerance: float
    difference: float
    """Largest difference from the original, on real samples."""

    @property
    def fast_batch_size(self) -> int:
        """The batch size that makes the cost of a call small: 1 if there are lists, else by the numbers per event."""
        if any(item.part != "column" for item in self.inputs):
            return 1
        numbers = sum(math.prod(int(length) for length in item.shape[1:]) for item in self.inputs)
        return max(1, min(_MAX_FAST_BATCH, _BATCH_NUMBERS // max(numbers, 1)))
