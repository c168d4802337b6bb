"""Training without a recipe: a model, columns that go in, columns that should come out, and a loss by name.

This is a recipe like any other, made from settings; `clew train --model` and `clew.train(model, ...)` fill them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from clew import readers
from clew.core.config import Section
from clew.data.expression import Expression
from clew.data.table import EVENT_COLUMNS, Column, Ragged, Table, different_items
from clew.data.transforms import Compute, MinMax, Select, Standard, Transform
from clew.errors import ConfigError, DataError, RecipeError, list_names
from clew.metrics import Confusion, Mean, Metric, Ratio, Roc
from clew.models import loading
from clew.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.data.dataset.batch import Batch

FEATURES, LABELS = "features", "labels"
USUAL_NAMES = ((FEATURES, LABELS), ("X", "Y"), ("X", "y"), ("x", "y"))
"""Names of columns that need not be told."""
SCALES: dict[str, type[Standard | MinMax]] = {"standard": Standard, "min_max": MinMax}
MAX_CONFUSION_CLASSES = 50
"""For which a confusion is drawn."""


class InputColumns(Section):
    """Which columns are used, and of which events."""

    features: tuple[str, ...] = ()
    """Scalars become one tensor (events, columns); a single column of any shape is taken as it is. Ragged ones come
    as a padded tensor and a mask of where there is something."""
    labels: tuple[str, ...] = ()
    weight: str | None = None
    """Event weights: a column, or an expression of columns."""
    select: str | None = None
    """Which events: `pt > 20 && abs(eta) < 2.5`."""
    scale: Literal["none", "standard", "min_max"] = "none"
    """What is done to each feature first, with numbers found in the training data: mean 0 and deviation 1, or into
    [-1, 1]. An exported model does it itself."""


class ModelSource(Section):
    """Where the model comes from."""

    build: str = ""
    """`file.py:name` or `module:name` of a function or class that makes it, a `.keras`, `.h5` or Keras `.json` file, or
    a `.pt2` that `torch.export.save` wrote; empty for one handed over in Python."""
    arguments: dict[str, Any] = {}
    outputs: Literal["auto", "logits", "probabilities"] = "auto"
    """What cross-entropies and metrics take its outputs for. auto: probabilities where its last layer is a softmax or a
    sigmoid, else logits."""
    penalties: Literal["refuse", "ignore"] = "refuse"
    """Of a Keras model with regularizers or constraints, which clew does not apply."""


class ColumnsConfig(Section):
    """What a recipe would have said."""

    columns: InputColumns = InputColumns()
    model: ModelSource = ModelSource()
    loss: str = "auto"
    """cross_entropy, binary_cross_entropy, mse, mae, huber, or `file.py:name` of a function of outputs and labels with
    one value an event. auto: by the labels, cross-entropy for integers and for labels that are all 0 or 1, mse for
    others."""


class Columns(Recipe):
    """Any model on any columns."""

    Config = ColumnsConfig
    defaults: ClassVar[Mapping[str, Any]] = {"train": {"batch_size": 128}}
    columns = (FEATURES, LABELS)

    def __init__(self, config: Section | None = None, *, model: Any = None) -> None:
        """`model`: an `nn.Module` or a Keras model, for one that is not built from its place."""
        super().__init__(config)
        self._model = model
        self._probable: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A model typed into a notebook travels as code and weights."""
        if self._model is None:
            return super().__reduce__()
        import cloudpickle

        config = self.config.model_dump(mode="json")
        if loading.is_keras(self._model):
            from clew.models import keras

            return _unpacked, (config, keras.to_bytes(self._model), True)
        return _unpacked, (config, cloudpickle.dumps(self._model), False)

    def read(self, path: str) -> Iterable[Table]:
        if readers.kind_of(path) in ("text", "trackml"):
            return readers.read(path)
        needed = self._needed()
        return readers.read(path, columns=needed, optional=[name for name in EVENT_COLUMNS if name not in needed])

    def transforms(self) -> Sequence[Transform]:
        chosen = self.config.columns
        select = [Select(where=chosen.select)] if chosen.select else []
        weight = [Compute(column="weight", expression=chosen.weight)] if chosen.weight else []
        scale = [SCALES[chosen.scale](columns=chosen.features)] if chosen.scale != "none" else []
        return [*select, *weight, *scale]

    def label_columns(self) -> Sequence[str]:
        chosen = self.config.columns
        used = {*chosen.features, *(Expression(chosen.select).names if chosen.select else ())}
        asked = (*chosen.labels, *(Expression(chosen.weight).names if chosen.weight else ()))
        return [name for name in dict.fromkeys(asked) if name not in used]

    def passthrough_columns(self) -> Mapping[str, Sequence[str]]:
        return {FEATURES: self.config.columns.features}

    def prepare(self, events: Table) -> Table:
        chosen = self.config.columns
        weight = {"weight": events.fixed("weight")} if chosen.weight and "weight" in events else {}
        known = all(name in events for name in chosen.labels)
        labels = _joined(events, chosen.labels, LABELS, alone=True) if known else {}
        return Table({**_joined(events, chosen.features, FEATURES), **labels, **weight, **_identifiers(events)})

    def model(self) -> nn.Module:
        settings = self.config.model
        if self._model is not None:
            made = loading.as_module(self._model, penalties=settings.penalties)
        elif settings.build:
            made = loading.load_model(settings.build, settings.arguments, penalties=settings.penalties)
        else:
            raise RecipeError("the model was passed in Python; pass it again, as recipe=model")
        self._probable = loading.gives_probabilities(made)
        return made

    @property
    def model_object(self) -> Any:
        """The model that was handed over in Python, if one was."""
        return self._model

    @property
    def probabilities(self) -> bool:
        """Whether outputs are probabilities: told, or seen when the model was made."""
        told = self.config.model.outputs
        if told == "auto" and self._probable is None:
            self.model()
        return told == "probabilities" or (told == "auto" and bool(self._probable))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(*_inputs(batch))

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        from clew.models.losses import loss_by_name

        return loss_by_name(self.config.loss, probabilities=self.probabilities)(outputs, batch[LABELS])

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """Accuracy, confusion (and the ROC of two classes) for classes, the mean absolute error for other labels."""
        said, true, weights = outputs.get("output"), samples[LABELS], samples.weights
        if said is None or isinstance(true, Ragged) or len(said) != len(true):
            return {}
        classes = self._classes(true, said)
        if classes is not None:
            said = _logits(said) if self.probabilities else said
            flat = said[:, 0] if said.ndim == 2 and said.shape[1] == 1 else said
            if flat.ndim == 1:
                right = (flat > 0) == (classes > 0)
                score = 1 / (1 + np.exp(-np.clip(flat.astype(np.float64), -60, 60)))
                return {"accuracy": Ratio.of(right, weights), "auc": Roc.of(score, classes > 0, weights)}
            return _of_classes(flat, classes, weights) if flat.ndim == 2 else {}
        if true.size != said.size:
            return {}
        errors = np.abs(said.reshape(len(true), -1) - true.reshape(len(true), -1)).mean(1)
        return {"mae": Mean(float((errors * weights).sum()), float(weights.sum()))}

    def _classes(self, true: Any, said: Any) -> Any:
        """Labels as numbers of classes, or None where they are something else."""
        true = true[:, 0] if true.ndim == 2 and true.shape[1] == 1 and said.shape != true.shape else true
        columned = true.ndim == 2 and true.shape == said.shape
        told = true.dtype.kind in "iub" or "crossentropy" in self.config.loss.replace("_", "")
        if not told and not (columned and self.config.loss == "auto" and self.probabilities):
            return None
        if columned:
            return true.argmax(1) if true.shape[1] > 1 else (true[:, 0] > 0.5).astype(np.int64)
        if true.ndim != 1:
            return None
        return true if true.dtype.kind in "iub" else (true > 0.5).astype(np.int64)

    def _needed(self) -> list[str]:
        chosen = self.config.columns
        if not chosen.features or not chosen.labels:
            raise ConfigError("say which columns the model gets and which it learns: --features X --labels Y")
        asked = [Expression(text).names for text in (chosen.select, chosen.weight) if text]
        return list(dict.fromkeys([*chosen.features, *chosen.labels, *(name for names in asked for name in names)]))


def _identifiers(events: Table) -> dict[str, Any]:
    """The integers that identify an event: predictions contain them."""
    columns = {name: events[name] for name in EVENT_COLUMNS if name in events}
    return {
        name: column
        for name, column in columns.items()
        if not isinstance(column, Ragged) and column.ndim == 1 and column.dtype.kind in "iu"
    }


def _logits(probabilities: Any) -> Any:
    """What would have given these."""
    kept = np.clip(probabilities.astype(np.float64), 1e-30, 1.0)
    one = kept.ndim == 1 or kept.shape[1] == 1
    return np.log(kept) - np.log(np.maximum(1 - kept, 1e-16)) if one else np.log(kept)


def _of_classes(scores: Any, true: Any, weights: Any) -> dict[str, Metric]:
    """Metrics of one score (a logit) a class."""
    said, classes = scores.argmax(1), scores.shape[1]
    found: dict[str, Metric] = {"accuracy": Ratio.of(said == true, weights)}
    if classes == 2:
        odds = np.clip((scores[:, 1] - scores[:, 0]).astype(np.float64), -60, 60)
        found["auc"] = Roc.of(1 / (1 + np.exp(-odds)), true > 0, weights)
    if classes <= MAX_CONFUSION_CLASSES:
        found["confusion"] = Confusion.of(said, true, map(str, range(classes)), weights)
    return found


def guess_columns(table: Table) -> tuple[str, str]:
    """The usual names of features and labels, where a table has them.

    Raises:
        ConfigError: it does not.
    """
    for features, labels in USUAL_NAMES:
        if features in table and labels in table:
            return features, labels
    raise ConfigError(f"say which columns are features= and which are labels=; there are {list_names(table)}")


def _unpacked(config: dict[str, Any], model: bytes, of_keras: bool) -> Columns:
    import cloudpickle

    from clew.models import keras

    return Columns(
        ColumnsConfig.model_validate(config), model=(keras.from_bytes if of_keras else cloudpickle.loads)(model)
    )


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
            raise DataError(f"columns {different_items(names[0], ragged[0], name, column)}")
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
