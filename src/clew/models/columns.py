"""Training without a recipe: a model, input columns, label columns, and a loss by name.

This is a recipe made from settings. `clew train --model` and `clew.train(model, ...)` set them.
"""

from __future__ import annotations

import warnings
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
from clew.models.loss_names import KERAS_NAMES
from clew.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.data.dataset import Dataset
    from clew.data.dataset.batch import Batch

FEATURES, LABELS = "features", "labels"
USUAL_NAMES = ((FEATURES, LABELS), ("X", "Y"), ("X", "y"), ("x", "y"))
"""Names of features and labels that are recognised."""
SCALES: dict[str, type[Standard | MinMax]] = {"standard": Standard, "min_max": MinMax}
EVENT_OF_LINE = {"auto": None, "event": "", "item": "event"}
"""The text reader's setting `event` for each meaning of a line."""
MAX_CONFUSION_CLASSES = 50
"""Largest number of classes for which a confusion matrix is drawn."""

_SEEN_VALUES, _MAX_RATIO = 10_000, 30.0
"""Rows from which the sizes of features are found, and the ratio of two sizes from which a warning is given."""


class InputColumns(Section):
    """The columns that are used, and the selection of events."""

    features: tuple[str, ...] = ()
    """Scalars become one tensor (events, columns); a single column of any shape is used unchanged. Ragged columns
    become a padded tensor and a mask of the real items."""
    labels: tuple[str, ...] = ()
    """Columns with the true values."""
    weight: str | None = None
    """Event weights: a column, or an expression of columns."""
    select: str | None = None
    """Selection of events: `pt > 20 && abs(eta) < 2.5`."""
    scale: Literal["none", "standard", "min_max"] = "none"
    """Scaling of each feature, fitted to the training data: mean 0 and standard deviation 1, or the range [-1, 1].
    An exported model includes it."""
    line: Literal["auto", "event", "item"] = "auto"
    """What a line of a text file is. item: an item of the event whose number is in the column `event`; other columns
    are ragged. auto: an item if there is a column `event`, else an event."""


class ModelSource(Section):
    """The source of the model: `build` or `estimator`."""

    build: str = ""
    """`file.py:name` or `module:name` of a function or class that makes it, a `.keras`, `.h5` or Keras `.json` file, or
    a `.pt2` that `torch.export.save` wrote; empty for a model passed in Python."""
    arguments: dict[str, Any] = {}
    """Arguments of the function or class in `build`, or parameters of the estimator."""
    outputs: Literal["auto", "logits", "probabilities"] = "auto"
    """What the outputs are, for cross-entropies and metrics. auto: probabilities if the last layer is a softmax or a
    sigmoid, else logits."""
    estimator: str = ""
    """Instead of `build`: `xgboost`, `lightgbm`, `module:Class` of an estimator with the interface of scikit-learn, or
    `file.py:name` of a function that makes one. `arguments` are its parameters."""
    negative_weights: Literal["refuse", "absolute", "zero", "keep"] = "refuse"
    """Negative event weights of an estimator. absolute: train with the absolute value. zero: ignore such events in the
    training. keep: pass them on (only scikit-learn accepts them). Metrics always use the weights as they are."""
    penalties: Literal["refuse", "ignore"] = "refuse"
    """What to do with a Keras model that has regularizers or constraints, which clew does not apply."""
    batch: Literal["tuple", "dict"] = "tuple"
    """What the steps of a LightningModule get. tuple: (features, labels), for ragged features (features, mask, labels),
    and event weights last. dict: the same by name: the feature column, `mask`, the label column, `weight`."""


class ColumnsConfig(Section):
    """The settings of a training without a recipe."""

    columns: InputColumns = InputColumns()
    model: ModelSource = ModelSource()
    loss: str = "auto"
    """cross_entropy, binary_cross_entropy, mse, mae, huber, or `file.py:name` of a function of outputs and labels with
    one value per event. auto: cross-entropy for integer labels and for labels that are all 0 or 1, mse for others."""


class Columns(Recipe):
    """A model trained on columns of tables."""

    Config = ColumnsConfig
    defaults: ClassVar[Mapping[str, Any]] = {"train": {"batch_size": 128}}
    columns = (FEATURES, LABELS)

    def __init__(self, config: Section | None = None, *, model: Any = None) -> None:
        """Create the recipe; `model` is an `nn.Module` or a Keras model that was passed in Python."""
        super().__init__(config)
        self._model = model
        self._gives_probabilities: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a model that was typed into a notebook as code and weights."""
        if self._model is None:
            return super().__reduce__()
        import cloudpickle

        config = self.config.model_dump(mode="json")
        if loading.is_keras(self._model):
            from clew.models import keras

            return _unpickle, (type(self), config, keras.to_bytes(self._model), True)
        return _unpickle, (type(self), config, cloudpickle.dumps(self._model), False)

    def read(self, path: str) -> Iterable[Table]:
        kind = readers.kind_of(path)
        if kind in ("text", "trackml"):
            return readers.read(path, **({"event": EVENT_OF_LINE[self.config.columns.line]} if kind == "text" else {}))
        needed = self._input_columns()
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
        needed = (*chosen.labels, *(Expression(chosen.weight).names if chosen.weight else ()))
        return [name for name in dict.fromkeys(needed) if name not in used]

    def event_columns(self) -> Sequence[str]:
        return [*self._input_columns(), *EVENT_COLUMNS]

    def passthrough_columns(self) -> Mapping[str, Sequence[str]]:
        return {FEATURES: self.config.columns.features}

    def prepare(self, events: Table) -> Table:
        chosen = self.config.columns
        weight = {"weight": events.fixed("weight")} if chosen.weight and "weight" in events else {}
        labelled = all(name in events for name in chosen.labels)
        labels = _join_columns(events, chosen.labels, LABELS, alone=True) if labelled else {}
        if tuple(chosen.features) == (FEATURES,) and FEATURES not in events:
            raise DataError(f"the model was trained on an array; pass an array too, or a column '{FEATURES}'")
        features = _join_columns(events, chosen.features, FEATURES)
        return Table({**features, **labels, **weight, **_identifiers(events)})

    def model(self) -> nn.Module:
        settings = self.config.model
        if self._model is not None:
            model = loading.as_module(self._model, penalties=settings.penalties)
        elif settings.estimator:
            model = loading.estimator_module(self.estimator(), FEATURES)
        elif settings.build:
            model = loading.load_model(settings.build, settings.arguments, penalties=settings.penalties)
        else:
            raise RecipeError("the model was passed in Python; pass it again, as recipe=model")
        if loading.is_lightning(model) and type(self) is Columns:
            raise ConfigError(f"{type(model).__name__} is a LightningModule; train it with the recipe lightning")
        self._gives_probabilities = loading.gives_probabilities(model)
        return model

    def estimator(self) -> Any:
        settings, name = self.config.model, KERAS_NAMES.get(self.config.loss, self.config.loss)
        classes = name in ("cross_entropy", "binary_cross_entropy")
        return loading.load_estimator(settings.estimator, settings.arguments, classes=classes)

    @property
    def has_estimator(self) -> bool:
        return bool(self.config.model.estimator)

    def estimator_weights(self, weights: Any) -> Any:
        kind, negative = self.config.model.negative_weights, weights < 0
        if kind == "keep" or not negative.any():
            return weights
        if kind == "refuse":
            share = f"{int(negative.sum()):,} of {len(weights):,} event weights are negative"
            raise DataError(f"{share}; choose with --set model.negative_weights=absolute, zero or keep")
        return np.abs(weights) if kind == "absolute" else np.where(negative, 0.0, weights)

    @property
    def model_object(self) -> Any:
        """The model that was passed in Python, if any."""
        return self._model

    @property
    def probabilities(self) -> bool:
        """Whether outputs are probabilities, by the settings or by the last layer of the model."""
        kind = self.config.model.outputs
        if kind == "auto" and self._gives_probabilities is None:
            self.model()
        return kind == "probabilities" or (kind == "auto" and bool(self._gives_probabilities))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(*model_inputs(batch))

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        from clew.models.losses import loss_by_name

        return loss_by_name(self.config.loss, probabilities=self.probabilities)(outputs, batch[LABELS])

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """Accuracy, confusion (and the ROC of two classes) for classes, the mean absolute error for other labels."""
        predicted, true, weights = outputs.get("output"), samples[LABELS], samples.weights
        if predicted is None or isinstance(true, Ragged) or len(predicted) != len(true):
            return {}
        classes = self._classes(true, predicted)
        if classes is not None:
            predicted = _logits(predicted) if self.probabilities else predicted
            flat = predicted[:, 0] if predicted.ndim == 2 and predicted.shape[1] == 1 else predicted
            if flat.ndim == 1:
                right = (flat > 0) == (classes > 0)
                score = 1 / (1 + np.exp(-np.clip(flat.astype(np.float64), -60, 60)))
                return {"accuracy": Ratio.of(right, weights), "auc": Roc.of(score, classes > 0, weights)}
            return _class_metrics(flat, classes, weights) if flat.ndim == 2 else {}
        if true.size != predicted.size:
            return {}
        errors = np.abs(predicted.reshape(len(true), -1) - true.reshape(len(true), -1)).mean(1)
        return {"mae": Mean(float((errors * weights).sum()), float(weights.sum()))}

    def _classes(self, true: Any, predicted: Any) -> Any:
        """Labels as class numbers, or None if they are not classes."""
        true = true[:, 0] if true.ndim == 2 and true.shape[1] == 1 and predicted.shape != true.shape else true
        one_hot = true.ndim == 2 and true.shape == predicted.shape
        categorical = true.dtype.kind in "iub" or "crossentropy" in self.config.loss.replace("_", "")
        if not categorical and not (one_hot and self.config.loss == "auto" and self.probabilities):
            return None
        if one_hot:
            return true.argmax(1) if true.shape[1] > 1 else (true[:, 0] > 0.5).astype(np.int64)
        if true.ndim != 1:
            return None
        return true if true.dtype.kind in "iub" else (true > 0.5).astype(np.int64)

    def _input_columns(self) -> list[str]:
        chosen = self.config.columns
        if not chosen.features or not chosen.labels:
            raise ConfigError("name the input and label columns of the model: --features X --labels Y")
        expressions = [Expression(text).names for text in (chosen.select, chosen.weight) if text]
        return list(
            dict.fromkeys([*chosen.features, *chosen.labels, *(name for names in expressions for name in names)])
        )


def _identifiers(events: Table) -> dict[str, Any]:
    """The integers that identify an event: predictions contain them."""
    columns = {name: events[name] for name in EVENT_COLUMNS if name in events}
    return {
        name: column
        for name, column in columns.items()
        if not isinstance(column, Ragged) and column.ndim == 1 and column.dtype.kind in "iu"
    }


def _logits(probabilities: Any) -> Any:
    """The logits of probabilities."""
    clipped = np.clip(probabilities.astype(np.float64), 1e-30, 1.0)
    one = clipped.ndim == 1 or clipped.shape[1] == 1
    return np.log(clipped) - np.log(np.maximum(1 - clipped, 1e-16)) if one else np.log(clipped)


def _class_metrics(scores: Any, true: Any, weights: Any) -> dict[str, Metric]:
    """Metrics of one logit per class."""
    predicted, classes = scores.argmax(1), scores.shape[1]
    metrics: dict[str, Metric] = {"accuracy": Ratio.of(predicted == true, weights)}
    if classes == 2:
        odds = np.clip((scores[:, 1] - scores[:, 0]).astype(np.float64), -60, 60)
        metrics["auc"] = Roc.of(1 / (1 + np.exp(-odds)), true > 0, weights)
    if classes <= MAX_CONFUSION_CLASSES:
        metrics["confusion"] = Confusion.of(predicted, true, map(str, range(classes)), weights)
    return metrics


def guess_columns(table: Table) -> tuple[str, str]:
    """Return the names of features and labels, if a table has one of the usual pairs.

    Raises:
        ConfigError: It has none.
    """
    for features, labels in USUAL_NAMES:
        if features in table and labels in table:
            return features, labels
    raise ConfigError(f"name the columns with features= and labels=; there are {list_names(table)}")


def warn_about_scale(recipe: Recipe, dataset: Dataset) -> None:
    """Warn if the features of a network differ much in size, or are far from zero, and are not scaled."""
    if not isinstance(recipe, Columns) or recipe.has_estimator or recipe.config.columns.scale != "none":
        return
    names = recipe.config.columns.features
    if len(names) < 2:
        return
    first = next(iter(dataset.shards("train", columns=[FEATURES])))
    values = _values(first[FEATURES])[:_SEEN_VALUES].astype(np.float64)
    with np.errstate(all="ignore"):
        sizes = np.abs(values.mean(0)) + values.std(0)
    sizes = np.where(np.isfinite(sizes) & (values.std(0) > 0), sizes, 1.0)
    small, large = int(sizes.argmin()), int(sizes.argmax())
    if sizes[large] > _MAX_RATIO * max(sizes[small], 1.0 / _MAX_RATIO):
        what = f"{names[large]} is about {sizes[large]:.3g}, {names[small]} about {sizes[small]:.3g}"
        message = f"features differ in size ({what}), and most networks train badly then; try --scale standard"
        warnings.warn(f"{message} (in Python scale='standard')", stacklevel=4)


def _unpickle(kind: type[Columns], config: dict[str, Any], model: bytes, of_keras: bool) -> Columns:
    import cloudpickle

    from clew.models import keras

    return kind(kind.Config.model_validate(config), model=(keras.from_bytes if of_keras else cloudpickle.loads)(model))


def _join_columns(events: Table, names: Sequence[str], target: str, *, alone: bool = False) -> dict[str, Any]:
    """Scalars as one column (with `alone` a single one stays 1-dimensional), or one column of another shape.

    Double precision becomes single precision.
    """
    columns = [events[name] for name in names]
    if len(columns) == 1 and (alone or _values(columns[0]).ndim > 1):
        return {target: _single_precision(columns[0])}
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if len(ragged) not in (0, len(columns)):
        raise DataError(f"columns {', '.join(names)}: ragged and fixed columns cannot be combined")
    for name, column in zip(names, columns, strict=True):
        if _values(column).ndim > 1:
            raise DataError(f"column '{name}' has more than one number: several {target} must be scalars")
        if isinstance(column, Ragged) and column.offsets is not ragged[0].offsets:
            raise DataError(f"columns {different_items(names[0], ragged[0], name, column)}")
    if not ragged:
        return {target: _single_precision(np.stack([np.asarray(column) for column in columns], axis=1))}
    return {target: _single_precision(ragged[0].share(np.stack([column.values for column in ragged], axis=1)))}


def _values(column: Column) -> Any:
    return column.values if isinstance(column, Ragged) else column


def _single_precision(column: Any) -> Any:
    values = _values(column)
    if values.dtype != np.float64:
        return column
    return column.share(values.astype(np.float32)) if isinstance(column, Ragged) else values.astype(np.float32)


def model_inputs(batch: Batch) -> tuple[Tensor, ...]:
    """The arguments of the model, as floating-point tensors."""
    column = batch.columns[FEATURES]
    if hasattr(column, "padded"):
        values, mask = column.padded()
        return values if values.is_floating_point() else values.float(), mask
    return (column if column.is_floating_point() else column.float(),)
