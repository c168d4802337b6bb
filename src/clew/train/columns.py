"""Training without a recipe: a model, columns that go in, columns that should come out, and a loss by name.

This is a recipe like any other, made from settings; `clew train --model` and `clew.train(model, ...)` fill them in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clew import readers, tally
from clew.config import Section
from clew.errors import ConfigError, DataError, RecipeError
from clew.expression import Expression
from clew.recipe import Recipe, load_code
from clew.table import Column, Ragged, Table
from clew.transforms import Compute, Select, Transform

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.dataset.batch import Batch

FEATURES, LABELS = "features", "labels"
USUAL = ((FEATURES, LABELS), ("X", "Y"), ("X", "y"), ("x", "y"))
"""Names of columns that need not be told."""
MOST_CLASSES = 50
"""For which a confusion is drawn."""


class ColumnSettings(Section):
    """Which columns are used, and of which events."""

    features: tuple[str, ...] = ()
    """Scalars become one tensor (events, columns); a single column of any shape is taken as it is. Ragged ones come
    as a padded tensor and a mask of where there is something."""
    labels: tuple[str, ...] = ()
    weight: str | None = None
    """Event weights: a column, or an expression of columns."""
    select: str | None = None
    """Which events: `pt > 20 && abs(eta) < 2.5`."""


class ModelSettings(Section):
    """Where the model comes from."""

    build: str = ""
    """`file.py:name` or `module:name` of a function or class that makes it; empty for one handed over in Python."""
    arguments: dict[str, Any] = {}


class Settings(Section):
    """What a recipe would have said."""

    columns: ColumnSettings = ColumnSettings()
    model: ModelSettings = ModelSettings()
    loss: str = "auto"
    """cross_entropy, binary_cross_entropy (of logits), mse, mae, huber, or `file.py:name` of a function of outputs and
    labels with one value an event. auto: by the labels, cross-entropy for integers and mse for others."""


class Columns(Recipe):
    """Any model on any columns."""

    Config = Settings
    defaults: ClassVar[Mapping[str, Any]] = {"train": {"batch_size": 128}}

    def __init__(self, config: Section | None = None, *, model: nn.Module | None = None) -> None:
        super().__init__(config)
        self._model = model

    def __reduce__(self) -> tuple[Any, ...]:
        """A model typed into a notebook travels as code and weights."""
        if self._model is None:
            return super().__reduce__()
        import cloudpickle

        return _unpacked, (self.config.model_dump(mode="json"), cloudpickle.dumps(self._model))

    def read(self, path: str) -> Iterable[Table]:
        if readers.kind_of(path) in ("text", "trackml"):
            return readers.read(path)
        return readers.read(path, columns=self._needed())

    def transforms(self) -> Sequence[Transform]:
        chosen = self.config.columns
        select = [Select(where=chosen.select)] if chosen.select else []
        return [*select, *([Compute(column="weight", expression=chosen.weight)] if chosen.weight else [])]

    def prepare(self, events: Table) -> Table:
        chosen = self.config.columns
        weight = {"weight": events.fixed("weight")} if chosen.weight else {}
        features = _joined(events, chosen.features, FEATURES)
        return Table({**features, **_joined(events, chosen.labels, LABELS, alone=True), **weight})

    def model(self) -> nn.Module:
        from torch import nn

        settings = self.config.model
        if self._model is not None:
            return copy.deepcopy(self._model)
        if not settings.build:
            raise RecipeError("the model was handed over in Python; hand it over again, as recipe=model")
        build = load_code(settings.build)
        try:
            made = build(**settings.arguments) if not isinstance(build, nn.Module) else copy.deepcopy(build)
        except TypeError as error:
            raise ConfigError(f"{settings.build} cannot be called with {settings.arguments}: {error}") from error
        if not isinstance(made, nn.Module):
            raise RecipeError(f"{settings.build} gave a {type(made).__name__}, not a torch.nn.Module")
        return made

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(*_inputs(batch))

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        from clew.train.losses import named

        return named(self.config.loss)(outputs, batch[LABELS])

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, tally.Tally]:
        """Accuracy, confusion (and the ROC of two classes) for integer labels, the mean absolute error for others."""
        said, true, weights = outputs.get("output"), samples[LABELS], samples.weights
        if said is None or isinstance(true, Ragged) or len(said) != len(true):
            return {}
        if true.dtype.kind in "iub" and true.ndim == 1:
            flat = said[:, 0] if said.ndim == 2 and said.shape[1] == 1 else said
            if flat.ndim == 1:
                right = (flat > 0) == (true > 0)
                score = 1 / (1 + np.exp(-flat.astype(np.float64)))
                return {"accuracy": tally.Ratio.of(right, weights), "auc": tally.Roc.of(score, true > 0, weights)}
            return _of_classes(flat, true, weights) if flat.ndim == 2 else {}
        if true.size != said.size:
            return {}
        errors = np.abs(said.reshape(len(true), -1) - true.reshape(len(true), -1)).mean(1)
        return {"mae": tally.Mean(float((errors * weights).sum()), float(weights.sum()))}

    def _needed(self) -> list[str]:
        chosen = self.config.columns
        if not chosen.features or not chosen.labels:
            raise ConfigError("say which columns the model gets and which it learns: --features X --labels Y")
        asked = [Expression(text).names for text in (chosen.select, chosen.weight) if text]
        return list(dict.fromkeys([*chosen.features, *chosen.labels, *(name for names in asked for name in names)]))


def _of_classes(scores: Any, true: Any, weights: Any) -> dict[str, tally.Tally]:
    """Metrics of one score (a logit) a class."""
    said, classes = scores.argmax(1), scores.shape[1]
    found: dict[str, tally.Tally] = {"accuracy": tally.Ratio.of(said == true, weights)}
    if classes == 2:
        odds = np.clip((scores[:, 1] - scores[:, 0]).astype(np.float64), -60, 60)
        found["auc"] = tally.Roc.of(1 / (1 + np.exp(-odds)), true > 0, weights)
    if classes <= MOST_CLASSES:
        found["confusion"] = tally.Confusion.of(said, true, map(str, range(classes)), weights)
    return found


def guess(table: Table) -> tuple[str, str]:
    """The usual names of features and labels, where a table has them.

    Raises:
        ConfigError: it does not.
    """
    for features, labels in USUAL:
        if features in table and labels in table:
            return features, labels
    raise ConfigError(f"say which columns are features= and which are labels=; there are {', '.join(table)}")


def _unpacked(config: dict[str, Any], model: bytes) -> Columns:
    import cloudpickle

    return Columns(Settings.model_validate(config), model=cloudpickle.loads(model))


def _joined(events: Table, names: Sequence[str], together: str, *, alone: bool = False) -> dict[str, Any]:
    """Scalars side by side (one `alone` stays as it is), or a column of another shape; floats in single precision."""
    columns = [events[name] for name in names]
    if len(columns) == 1 and (alone or _values(columns[0]).ndim > 1):
        return {together: _single(columns[0])}
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if len(ragged) not in (0, len(columns)):
        raise DataError(f"columns {', '.join(names)}: ragged ones and others cannot stand side by side")
    for name, column in zip(names, columns, strict=True):
        if _values(column).ndim > 1:
            raise DataError(f"column '{name}' has more than one number: several {together} must be scalars")
        if isinstance(column, Ragged) and column.offsets is not ragged[0].offsets:
            raise DataError(f"columns '{names[0]}' and '{name}' do not describe the same items")
    if not ragged:
        return {together: _single(np.stack([np.asarray(column) for column in columns], axis=1))}
    return {together: _single(ragged[0].share(np.stack([column.values for column in ragged], axis=1)))}


def _values(column: Column) -> Any:
    return column.values if isinstance(column, Ragged) else column


def _single(column: Any) -> Any:
    values = _values(column)
    if values.dtype != np.float64:
        return column
    return column.share(values.astype(np.float32)) if isinstance(column, Ragged) else values.astype(np.float32)


def _inputs(batch: Batch) -> tuple[Tensor, ...]:
    """What the model is called with, in its number format."""
    column = batch.columns[FEATURES]
    if hasattr(column, "padded"):
        values, mask = column.padded()
        return values if values.is_floating_point() else values.float(), mask
    return (column if column.is_floating_point() else column.float(),)
