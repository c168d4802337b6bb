"""The contract of a recipe: what a researcher writes for one physics task."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from clew.core.config import Section, to_data
from clew.errors import DataError, RecipeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from clew.data.dataset import Dataset
    from clew.data.dataset.batch import Batch
    from clew.data.table import Table
    from clew.data.transforms import Transform
    from clew.data.writers import TableWriter
    from clew.figure import Figure
    from clew.metrics import Metric
    from clew.recipe.hooks import TrainingHooks, TrainingPlan


class Loss(NamedTuple):
    """A loss that averages exactly for any split of a batch.

    The gradient of a step is the gradient of `total` summed over ranks, divided by `weight` summed over ranks.

    Args:
        total: Sum of the loss over its terms (a scalar tensor with a gradient).
        weight: Number of terms.
    """

    total: Tensor
    weight: float | Tensor


class Recipe:
    """Everything about one physics task. Write a subclass; only `prepare` and `model` (or `estimator`) are required.

    The data methods (`read`, `transforms`, `prepare`, `reconstruct`, `metrics`, `sample_plots`, `display`) work on
    NumPy tables. The file must not import torch at module level for them: `clew prepare` never loads torch. The model
    methods get torch tensors. Every process builds the recipe anew, so it must hold nothing but its settings.

    Example:
        >>> import clew
        >>> class Sum(clew.Recipe):
        ...     def prepare(self, events):
        ...         return events
        ...     def model(self):
        ...         from torch import nn
        ...         return nn.Linear(2, 1)
        >>> Sum().label_columns()
        ()
    """

    Config: ClassVar[type[Section]] = Section
    """Class of the recipe's own settings, one field per YAML section. `self.config` is an instance of it."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults for clew's own sections: `{"train": {"batch_size": 64}}`."""

    version: ClassVar[str] = "1"
    """Change it when the meaning of prepared data changes and the code of the recipe does not show it."""

    columns: ClassVar[Sequence[str] | None] = None
    """The columns that become tensors for the model and the loss; None means all."""

    events_per_file: ClassVar[int] = 256
    """Number of events per file that `generate` writes; files may hold a multiple of it."""

    inference_batch_size: ClassVar[int] = 256
    """Smallest batch size for evaluation and prediction. Choose a smaller one if a single sample is large."""

    discrete_outputs: ClassVar[Sequence[str]] = ()
    """Names of outputs that contain decisions, such as which voxels have energy. Rounding may change a few of them, so
    1% of the values of these outputs may differ between the model and an exported file."""

    timed_batches: ClassVar[Sequence[int]] = ()
    """Batch sizes for which `clew evaluate` measures the time per sample, as for generative models. Default: none."""

    estimator_columns: ClassVar[tuple[str, str]] = ("features", "labels")
    """The columns of samples that an estimator gets: features, shape (events, features), and labels."""

    makes_optimizers: ClassVar[str] = ""
    """What makes the optimisers, if `train.optimizer` has no influence on them: the name of a function."""

    location: ClassVar[str] = ""
    """Name or file of the class, from which `clew.recipe.find` loads it. Set by clew."""

    def __init__(self, config: Section | None = None) -> None:
        self.config: Any = self.Config() if config is None else config

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as location and settings, so that a recipe from a file can be loaded in another process."""
        if vars(type(self)).get("location"):
            from clew.recipe.lookup import rebuild  # which imports this module

            return rebuild, (self.location, to_data(self.config))
        return type(self), (self.config,)

    def read(self, path: str) -> Iterable[Table]:
        """Read the events of one input file.

        Args:
            path: A path or a URL.

        Returns:
            Tables of bounded size: a generator, or a lazy sequence such as `clew.readers.read` returns. The pieces of
            a lazy sequence are read in parallel. By default the reader is chosen by the file's ending.
        """
        from clew import readers

        return readers.read(path)

    def transforms(self) -> Sequence[Transform]:
        """The transforms applied to events, in order, before `prepare`. The default is none."""
        return ()

    def prepare(self, events: Table) -> Table:
        """Turn events into samples, one sample per event.

        It must depend on the events and the settings only. It is never called with an empty table.
        """
        raise RecipeError(f"recipe {type(self).__name__} must define prepare(events) -> Table")

    def label_columns(self) -> Sequence[str]:
        """The columns of raw events that only losses, metrics and event weights need, such as labels.

        Events to predict may lack these columns. Transforms that need them are then skipped, and `prepare` must work
        without the columns that those transforms add. In all other cases clew checks that the columns are present.
        """
        return ()

    def event_columns(self) -> Sequence[str] | None:
        """The columns of raw events that are used; None if it may be all. Only these are read from lazy events."""
        return None

    def passthrough_columns(self) -> Mapping[str, Sequence[str]]:
        """The sample columns that `prepare` copies from the events without a change.

        Returns:
            Names of event columns by sample column, for example `{"features": ("pt", "eta")}` for two scalars stored
            side by side. An exported model applies the scaling transforms of these columns itself.
        """
        return {}

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Write synthetic raw events that `read` can read.

        The same seed must give the same events, and event number `first` must not depend on the events before it:
        several processes share the work in pieces of `events_per_file`.

        Args:
            events: Number of events to write.
            seed: Seed of the random numbers.
            folder: Where to write the files. File names contain the word `synthetic`.
            first: Number of the first event.

        Yields:
            The path of each file and its number of events.
        """
        raise RecipeError(f"recipe {type(self).__name__} has no generator of events")

    def draw_inputs(self, numbers: NDArray[np.int64], seed: int, ranges: Mapping[str, tuple[float, float]]) -> Table:
        """Draw samples without labels for which `clew generate` runs a trained model (`generate` needs no model).

        Args:
            numbers: Numbers of the events. An event depends on its number and the seed only.
            seed: Seed of the random numbers.
            ranges: Lowest and highest value by name (`energy` in GeV, `theta` in degrees), as far as the user set them.

        Returns:
            Samples with the columns that `forward` and `reconstruct` need.
        """
        raise RecipeError(f"recipe {type(self).__name__} generates nothing: it does not define draw_inputs()")

    def check_ranges(self, model: nn.Module | None, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Check the ranges of `draw_inputs`, and warn if the model was not trained on them.

        `model` is the trained model, or None for an exported file.
        """

    def generated_writer(self, path: Path) -> type[TableWriter]:
        """Return the class that writes a file of `clew generate`. The default writes tables, by the file's ending."""
        from clew.data import writers

        return writers.find(path)

    def model(self) -> nn.Module:
        """A new network. Every process builds one; rank 0 sends its weights to the others."""
        raise RecipeError(f"recipe {type(self).__name__} must define model() -> torch.nn.Module")

    def estimator(self) -> Any:
        """A new estimator with the interface of scikit-learn, for example `xgboost.XGBClassifier()`.

        A recipe that defines it needs neither `model` nor `loss`. The outputs of `forward` are the probabilities of the
        classes, shape (events, classes), or the predicted values, shape (events, labels).
        """
        raise RecipeError(f"recipe {type(self).__name__} has no estimator")

    @property
    def has_estimator(self) -> bool:
        """Whether the recipe trains an estimator and no network."""
        return type(self).estimator is not Recipe.estimator

    def estimator_weights(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The event weights with which an estimator is trained. Metrics use the weights of the samples.

        Args:
            weights: The weights of the samples.

        Raises:
            DataError: There are negative weights. Return `abs(weights)`, or zero for them, to accept such events.
        """
        negative = int((weights < 0).sum())
        if negative:
            raise DataError(f"{negative:,} of {len(weights):,} event weights are negative; define estimator_weights()")
        return weights

    def adapt(self, model: nn.Module, dataset: Dataset) -> None:
        """Adapt a new network to the dataset on which it is trained, for example by setting its tables of scales.

        Called before a new training, but not when a run is resumed or starts from other weights (`--from`), nor by
        evaluation, prediction or export. It must set the same values in every process. Values that later uses of the
        model need are buffers of the network, which are saved with its weights. The default does nothing.
        """

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Apply the network to a batch.

        Returns:
            A tensor, or tensors by name. The default is `model(batch)`; for a network that takes a plain tensor write
            `return model(batch["x"])`.
        """
        return model(batch)

    def loss(self, outputs: Any, batch: Batch) -> Tensor | Loss:
        """The loss of a batch.

        Returns:
            One value per event, shape (events,), to which event weights are applied; a scalar mean; or a `Loss`.
        """
        raise RecipeError(f"recipe {type(self).__name__} must define loss(outputs, batch), or step(model, batch)")

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | Loss] | Iterable[tuple[str, Tensor | Loss]]:
        """The losses of one training step, by the name of the optimiser that uses each.

        Returns:
            A mapping: all losses are computed first, then all optimisers step. Or a generator of (name, loss) pairs:
            each optimiser steps before the next loss is computed, as adversarial training needs it. The default is
            one loss, from `loss`.
        """
        return {"loss": self.loss(self.forward(model, batch), batch)}

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        """Sizes of the buffers for ragged columns, if the training step can be recorded as a CUDA graph.

        On an NVIDIA GPU, `step` and its backward pass are recorded once for all batches with the same capacities and
        then replayed: one launch replaces hundreds. The step must do the same work for every batch of a size, must not
        read a number from the device, must keep no state between steps, and must ignore items after the last offset
        (they are zero).

        Args:
            batch: The batch, still in CPU memory.
            precision: The setting `train.precision`.

        Returns:
            The number of items per ragged column (at least that of the batch); `{}` for fixed columns only; None (the
            default) if the step cannot be recorded.
        """
        return None

    def sample_costs(self, lengths: Mapping[str, NDArray[np.integer]]) -> NDArray[np.floating]:
        """The cost of a training step per sample, in any unit. Workers share every batch so that their costs are equal.

        It must not depend on anything but the lengths and the settings: every worker calls it and must get the same.

        Args:
            lengths: Number of items per sample, shape (samples,), for every ragged column in `columns`. Columns that
                describe the same items have the same array.

        Returns:
            Shape (samples,), all above 0. The default is 1 plus the number of all items.
        """
        import numpy as np

        distinct = {id(array): array for array in lengths.values()}
        return np.asarray(1.0 + np.sum(list(distinct.values()), axis=0, dtype=np.float64))

    def optimizers(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter] | Optimizer]:
        """The optimisers by name. `step` uses the same names for its losses.

        Returns:
            For each name either parameters, for which an optimiser is built from `train.optimizer`, or an optimiser.
        """
        return {"loss": model.parameters()}

    def alternates(self, model: nn.Module) -> bool:
        """Whether `step` takes the step of one optimiser before it computes the next loss."""
        return inspect.isgeneratorfunction(self.step)

    def hooks(self, model: nn.Module, plan: TrainingPlan) -> TrainingHooks:
        """The hooks of a training of this network, for what happens besides steps. Called before `optimizers`."""
        from clew.recipe.hooks import TrainingHooks

        return TrainingHooks()

    def validation_metrics(self, model: nn.Module, batch: Batch, *, test: bool) -> Mapping[str, Metric] | None:
        """The metrics of a batch, one of them `loss`, for a network that computes them itself, in evaluation mode.

        The default, None: clew uses `forward`, `loss` and `metrics`. With `test`, after the training, `metrics` too.
        """
        return None

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """Build physics objects, such as tracks, from a batch of samples and the outputs of the network.

        The result for an event must not depend on the other events of the batch: number objects from 0 in each event.

        Args:
            samples: The samples of the batch.
            outputs: NumPy arrays by name.

        Returns:
            One row per event. The default is the outputs that have one row per event.
        """
        from clew.data.table import Table

        return Table({name: value for name, value in outputs.items() if len(value) == len(samples)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """The metrics of a batch by name (see `clew.metrics`). Clew adds them over batches and ranks.

        Args:
            samples: The samples of the batch.
            outputs: The outputs of the network, NumPy arrays by name.
            objects: What `reconstruct` returned.
        """
        return {}

    def evaluation_metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """Further metrics that only `clew evaluate` computes, not every validation: those that take long, or those of
        another method on the same samples. The arguments are those of `metrics`."""
        return {}

    def sample_plots(self, samples: Table) -> Mapping[str, Figure]:
        """Plots of single samples by title, for the page of `clew data inspect`. Called with the first few samples."""
        return {}

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Figure]:
        """Event displays by title, for the report. Called with a few samples; the arguments are those of `metrics`."""
        return {}

    def comparison_size(self) -> int:
        """Largest number of samples of each source that `compare` uses. 0, the default: there is no comparison."""
        return 0

    def compare(self, true: Table, generated: Table) -> tuple[Mapping[str, Metric], Mapping[str, Figure]]:
        """Compare two sources of samples as a whole, where sums over batches are not enough.

        Called at the end of `clew evaluate RUN` with the samples and what `reconstruct` returned for them, and by
        `clew evaluate FILE --against FILE` with the samples of both files.

        Args:
            true: Up to `comparison_size` samples.
            generated: Up to as many of the other source.

        Returns:
            Metrics by name, and plots by name. A plot whose layout has `meta: {"task": NAME}` is shown in a section of
            that name.
        """
        raise RecipeError(f"recipe {type(self).__name__} has no comparison of two sources")

    def reference_times(self) -> Mapping[str, float]:
        """Seconds per sample of what the model replaces, by name, for the table of times (see `timed_batches`)."""
        return {}

    def benchmark_outputs(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Return discrete outputs that a benchmark compares between devices and numbers of threads.

        Args:
            model: The trained network, on the device of the batch.
            batch: A few validation events.

        Returns:
            Tensors by name whose last dimension counts items: integers (classes, bins), whose differences are counted,
            or booleans (is the prediction correct?), whose means are compared as well. The default returns none.
        """
        return {}

    def benchmark_facts(self, dataset: Dataset) -> Mapping[str, float]:
        """Return numbers about a dataset that the report of a benchmark shows. The default returns none."""
        return {}
