"""A recipe whose data is described by a configuration of weaver and whose network is one of weaver's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clew import readers
from clew.core.config import Section
from clew.data.table import EVENT_COLUMNS, WEIGHT, Table
from clew.data.transforms import Transform
from clew.errors import DataError, RecipeError
from clew.metrics import Confusion, Mean, Metric, Ratio, Roc
from clew.models.weaver.columns import WeaverClasses, WeaverColumns, WeaverSelect
from clew.models.weaver.config import DataConfig
from clew.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.data.dataset.batch import Batch

_MAX_CONFUSION_CLASSES = 50


class WeaverConfig(Section):
    """The settings of such a recipe."""

    data: DataConfig
    network: dict[str, Any] = {}
    """Arguments of `get_model` and `get_loss`, as `--network-option` of weaver sets them."""


class WeaverRecipe(Recipe):
    """Reads, selects, scales and pads events as weaver does, and trains a network that `get_model` makes.

    A subclass sets `Config`, a subclass of `WeaverConfig` with a default for `data`, and defines `network`.
    """

    Config: ClassVar[type[Section]] = WeaverConfig
    defaults: ClassVar[Mapping[str, Any]] = {"train": {"batch_size": 128, "epochs": 20}}

    @property
    def data(self) -> DataConfig:
        """The data configuration."""
        data: DataConfig = self.config.data
        return data

    def network(self) -> ModuleType:
        """Return the module with `get_model(data_config, **options)` and perhaps `get_loss(data_config, **options)`."""
        raise RecipeError(
            f"recipe {type(self).__name__} must define network(), which returns the module of the network"
        )

    def read(self, path: str) -> Iterable[Table]:
        data = self.data
        tree = {"tree": data.treename} if data.treename and readers.kind_of(path) == "root" else {}
        renamed = bool(data.branch_magic or data.file_magic)
        optional = set(self.label_columns()) if renamed else set[str]()  # clew does it for files that are not renamed
        names = {name: _branch(name, data.branch_magic) for name in data.needed_columns()}
        required = [branch for name, branch in names.items() if name not in optional]
        others = [branch for branch in (*names.values(), *EVENT_COLUMNS) if branch not in required]
        tables = readers.read(path, columns=required, optional=list(dict.fromkeys(others)), **tree)
        return self._renamed(tables, path) if renamed else tables

    def _renamed(self, tables: Iterable[Table], path: str) -> Iterator[Table]:
        data = self.data
        by_branch = {_branch(name, data.branch_magic).rpartition("/")[2]: name for name in data.needed_columns()}
        constants = {name: _of_file(patterns, path) for name, patterns in data.file_magic.items()}
        for table in tables:
            columns: dict[str, Any] = {by_branch.get(name, name): column for name, column in table.items()}
            yield Table({**columns, **{name: np.full(len(table), value) for name, value in constants.items()}})

    def transforms(self) -> Sequence[Transform]:
        data, weights = self.data, self.data.weight_transform()
        variables = {**data.new_variables}
        select = [WeaverSelect(where=data.selection, variables=variables)] if data.selection else []
        inputs = WeaverColumns(variables=variables, columns=(*data.variables, *data.observers))
        simple = isinstance(data.labels.value, tuple)
        names = tuple(data.labels.value) if simple else data.label_names
        labels = WeaverColumns(variables=data.label_expressions(), columns=(*names, *data.weight_columns()))
        classes = [WeaverClasses(column=data.label_names[0], classes=names)] if simple else []
        return [*select, inputs, data.input_transform(), labels, *classes, *([weights] if weights else [])]

    def label_columns(self) -> Sequence[str]:
        used = set(self.data.input_columns())
        return [name for name in self.data.needed_columns() if name not in used]

    def event_columns(self) -> Sequence[str]:
        return (*self.data.needed_columns(), *EVENT_COLUMNS)

    def prepare(self, events: Table) -> Table:
        data = self.data
        columns = (*data.input_names, *data.label_names, *data.observers, WEIGHT, *EVENT_COLUMNS)
        return events.pick(*(name for name in dict.fromkeys(columns) if name in events))

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """The inputs and labels become tensors; observers stay in the samples."""
        return (*self.data.input_names, *self.data.label_names)

    def model(self) -> nn.Module:
        module = self.network()
        if not hasattr(module, "get_model"):
            raise RecipeError(f"the module of the network, {module.__name__}, has no function get_model(data_config)")
        made = module.get_model(self.data, **self.config.network)
        network: nn.Module = made[0] if isinstance(made, tuple) else made
        return network

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(*(batch[name] for name in self.data.input_names))

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """One value per event, by the network's `get_loss` or the cross-entropy; a loss that only gives means is
        refused if there are event weights."""
        import torch

        target = batch[self.data.label_names[0]]
        make = getattr(self.network(), "get_loss", None)
        function: Any = make(self.data, **self.config.network) if make else torch.nn.CrossEntropyLoss()
        if isinstance(getattr(function, "reduction", None), str):
            function.reduction = "none"
        if not target.is_floating_point():
            values = function(outputs, target.long())
        else:
            values = function(
                outputs.squeeze(1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs, target.float()
            )
        if values.ndim == 0 and self.data.weights is not None:
            raise RecipeError(
                "the loss of the network gives one mean per batch; event weights need one value per event"
            )
        per_event: Tensor = values if values.ndim < 2 else values.flatten(1).mean(1)
        return per_event

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """The probability of every class as `score_CLASS`, as weaver writes it; `output` for other labels."""
        scores, classes = outputs["output"], self._classes(outputs["output"])
        if classes is None:
            return Table({"output": scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores})
        odds = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        return Table({f"score_{name}": probabilities[:, place] for place, name in enumerate(classes)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        true, weights = samples.fixed(self.data.label_names[0]), samples.weights
        classes = self._classes(outputs["output"])
        if classes is None:
            return _mean_error(objects.fixed("output"), true, weights)
        if true.dtype.kind == "f":
            return {}
        predicted = outputs["output"].argmax(axis=1)
        result: dict[str, Metric] = {"accuracy": Ratio.of(predicted == true, weights)}
        if len(classes) == 2:  # weaver's convention: the first class is the signal
            result["auc"] = Roc.of(objects.fixed(f"score_{classes[0]}"), true == 0, weights)
        if len(classes) <= _MAX_CONFUSION_CLASSES:
            result["confusion"] = Confusion.of(predicted, true, classes, weights)
        return result

    def _classes(self, output: Any) -> Sequence[str] | None:
        """The names of the classes, if the network has one output per class."""
        value = self.data.labels.value
        if output.ndim != 2 or output.shape[1] < 2:
            return None
        if isinstance(value, tuple):
            if len(value) != output.shape[1]:
                raise DataError(f"the network gives {output.shape[1]} numbers per event for {len(value)} classes")
            return value
        return [str(number) for number in range(output.shape[1])]


def _mean_error(predicted: Any, true: Any, weights: Any) -> dict[str, Metric]:
    errors = np.abs(predicted.reshape(len(true), -1)[:, 0] - true)
    return {"mae": Mean(float((errors * weights).sum()), float(weights.sum()))}


def _branch(name: str, magic: Mapping[str, str]) -> str:
    for old, new in magic.items():
        name = name.replace(old, new)
    return name


def _of_file(patterns: Mapping[str, float], path: str) -> float:
    return next((value for pattern, value in patterns.items() if re.search(pattern, path)), 0)
