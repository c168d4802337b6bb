"""The contract of recipes."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import clew
from clew.data.dataset import Dataset
from clew.data.table import Ragged, Table, concat
from clew.data.transforms.base import apply, fit
from clew.metrics import Metric, add_metrics
from clew.recipe import Recipe
from clew.runs import Run
from clew.settings import Settings, load_settings
from clew.testing.suite import required
from clew.testing.tables import assert_same_table

if TYPE_CHECKING:
    from torch import nn

_PREPARE = """
import sys, clew
from clew.settings import load_settings
loaded = load_settings({recipe!r}, {settings!r})
clew.prepare(loaded.recipe, loaded.prepare, input={files!r}, output={output!r}, workers=1)
assert "torch" not in sys.modules, "preparing data imports torch: import it in model(), forward() and loss()"
"""
_SIZE = 12
"""Events of the batches that are compared, whole and in two parts."""


class RecipeContract:
    """Tests of a recipe, from events to predictions. Subclass it and set `recipe`.

    A recipe without `generate` also needs `write_events`.

    Example:
        >>> class TestTagger(RecipeContract):
        ...     recipe = "tagger"
        ...     settings = ("train.batch_size=64",)
        ...     events = 600
    """

    recipe: ClassVar[str | None] = None
    """Name of the recipe, or a file (`.py`, or `.yaml` with settings), relative to the folder of the test file."""
    settings: ClassVar[Sequence[str]] = ()
    """Settings as on the command line, `KEY=VALUE`: a small network makes the tests fast."""
    events: ClassVar[int] = 200
    """Number of events."""
    epochs: ClassVar[int] = 3
    """Epochs after which the loss of the validation must have decreased."""
    tolerance: ClassVar[float] = 1e-4
    """Relative difference that rounding may cause between a batch and its parts."""

    checks_generator: ClassVar[bool] = True
    """Whether `generate` is tested, which generates `Recipe.events_per_file` events. Set False if that takes long."""

    def write_events(self, folder: Path) -> None:
        """Write `events` events that the recipe can read into a folder. The default calls `generate`."""
        list(self._load().recipe.generate(self.events, 1, folder))

    @classmethod
    def _load(cls) -> Settings:
        name: str = required(cls, "recipe", '"my_recipe.py"')
        file = Path(inspect.getfile(cls)).parent / name
        threads = "train.threads=1"
        return load_settings(str(file) if file.is_file() else name, [threads, *cls.settings])

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls) -> Settings:
        """The recipe and its settings."""
        return cls._load()

    @pytest.fixture(scope="class")
    @classmethod
    def files(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder of raw events."""
        folder = tmp_path_factory.mktemp("recipe") / "events"
        folder.mkdir()
        cls().write_events(folder)
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def table(cls, loaded: Settings, files: Path) -> Table:
        """All events, transformed as for `prepare`."""
        raw = _read(loaded.recipe, files)
        return apply(fit(loaded.recipe.transforms(), lambda: [raw]), raw)

    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, loaded: Settings, files: Path) -> Dataset:
        """The dataset of all events."""
        output = str(files.parent / "dataset")
        return clew.prepare(loaded.recipe, loaded.prepare, input=[str(files)], output=output, workers=1)

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, loaded: Settings, dataset: Dataset) -> Run:
        """A short training."""
        config = loaded.train.model_copy(update={"epochs": cls.epochs})
        return clew.train(loaded.recipe, dataset, config=config, output=dataset.path.parent / "run")

    @pytest.fixture(scope="class")
    @classmethod
    def samples(cls, dataset: Dataset) -> Table:
        """A few samples."""
        return dataset.read("train").slice(0, _SIZE)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, loaded: Settings) -> nn.Module:
        """A new network, in evaluation mode."""
        import torch

        torch.manual_seed(1)
        return loaded.recipe.model().eval()

    def test_it_can_be_sent_to_other_processes(self, loaded: Settings) -> None:
        received = pickle.loads(pickle.dumps(loaded.recipe))
        assert type(received) is type(loaded.recipe)
        assert received.config == loaded.recipe.config

    def test_generated_events_do_not_depend_on_the_events_before_them(self, loaded: Settings, tmp_path: Path) -> None:
        recipe, several = loaded.recipe, 3
        if type(recipe).generate is Recipe.generate or not self.checks_generator:
            return
        whole = list(recipe.generate(recipe.events_per_file + several, 5, tmp_path / "whole"))
        assert sum(count for _, count in whole) == recipe.events_per_file + several
        assert all("synthetic" in path.name for path, _ in whole), "file names must contain the word synthetic"
        list(recipe.generate(several, 5, tmp_path / "last", first=recipe.events_per_file))
        last = _read(recipe, tmp_path / "whole").slice(recipe.events_per_file)
        assert_same_table(_read(recipe, tmp_path / "last"), last)

    def test_preparing_does_not_load_torch(self, loaded: Settings, files: Path, tmp_path: Path) -> None:
        name, settings, output = loaded.recipe.location, list(self.settings), str(tmp_path / "dataset")
        code = _PREPARE.format(recipe=name, settings=settings, files=[str(files)], output=output)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr.splitlines()[-1]

    def test_prepare_makes_one_sample_per_event_and_changes_no_event(self, loaded: Settings, table: Table) -> None:
        before = _copy(table)
        samples = loaded.recipe.prepare(table)
        assert len(samples) == len(table), "prepare must return one sample per event"
        assert_same_table(table, before)
        assert_same_table(loaded.recipe.prepare(table), samples)

    def test_prepare_treats_every_event_alone(self, loaded: Settings, table: Table) -> None:
        middle = len(table) // 3
        parts = [loaded.recipe.prepare(part) for part in (table.slice(0, middle), table.slice(middle))]
        assert_same_table(concat(parts), loaded.recipe.prepare(table))

    def test_the_loss_of_a_batch_is_the_sum_over_its_parts(
        self, loaded: Settings, samples: Table, model: nn.Module
    ) -> None:
        whole, parts = self._losses(loaded.recipe, model, samples), []
        for part in (samples.slice(0, 5), samples.slice(5)):
            parts.append(self._losses(loaded.recipe, model, part))
        self._check_equal(add_metrics(parts), whole)

    def test_the_metrics_of_a_batch_are_the_sum_over_its_parts(
        self, loaded: Settings, samples: Table, model: nn.Module
    ) -> None:
        parts = [self._metrics(loaded.recipe, model, part) for part in (samples.slice(0, 5), samples.slice(5))]
        self._check_equal(add_metrics(parts), self._metrics(loaded.recipe, model, samples))

    def test_objects_of_an_event_do_not_depend_on_other_events(
        self, loaded: Settings, samples: Table, model: nn.Module
    ) -> None:
        whole = self._objects(loaded.recipe, model, samples)
        assert len(whole) == len(samples), "reconstruct must return one row per event"
        parts = concat([self._objects(loaded.recipe, model, part) for part in (samples.slice(0, 5), samples.slice(5))])
        assert list(parts) == list(whole)
        for name in whole:
            self._check_close(_values(parts[name]), _values(whole[name]), name)

    def test_the_capacity_of_a_recorded_step_holds_the_batch(self, loaded: Settings, samples: Table) -> None:
        from clew.data.dataset.batch import RaggedTensor, to_batch

        batch = to_batch(samples, loaded.recipe.columns)
        capacity = loaded.recipe.graph_capacity(batch, "bf16")
        if capacity is not None:
            ragged = {name: column for name, column in batch.columns.items() if isinstance(column, RaggedTensor)}
            assert capacity.keys() >= ragged.keys()
            assert all(capacity[name] >= len(column.values) for name, column in ragged.items())

    def test_it_learns(self, run: Run) -> None:
        losses = [record["metrics"]["loss"] for record in run.records(kind="validation")]
        assert len(losses) == self.epochs and np.isfinite(losses).all()
        assert losses[-1] < losses[0], f"the loss of the validation did not decrease: {losses}"

    def test_it_is_evaluated(self, run: Run) -> None:
        evaluation = clew.evaluate(run, split="val")
        assert np.isfinite(evaluation.metrics["loss"].value)

    def test_it_predicts_events_without_labels(self, run: Run, loaded: Settings, files: Path) -> None:
        events = _read(loaded.recipe, files).slice(0, _SIZE)
        labels = [name for name in loaded.recipe.label_columns() if name in events]
        assert len(clew.predict(run, events.drop(*labels))) == len(events)

    def test_plots_of_samples_are_figures(self, loaded: Settings, samples: Table) -> None:
        figures = loaded.recipe.sample_plots(samples.slice(0, 3))
        assert all("data" in figure for figure in figures.values())

    def _losses(self, recipe: Recipe, model: nn.Module, samples: Table) -> dict[str, Metric]:
        return dict(_forward(recipe, model, samples)[1])

    def _metrics(self, recipe: Recipe, model: nn.Module, samples: Table) -> dict[str, Metric]:
        from clew.training.validation import recipe_metrics

        return recipe_metrics(recipe, samples, _forward(recipe, model, samples)[0])

    def _objects(self, recipe: Recipe, model: nn.Module, samples: Table) -> Table:
        return recipe.reconstruct(samples, _forward(recipe, model, samples)[0])

    def _check_equal(self, parts: Mapping[str, Metric], whole: Mapping[str, Metric]) -> None:
        assert parts.keys() == whole.keys()
        for name, metric in whole.items():
            if metric.scalar:
                self._check_close(parts[name].value, metric.value, name)

    def _check_close(self, one: Any, other: Any, name: str) -> None:
        np.testing.assert_allclose(one, other, rtol=self.tolerance, atol=self.tolerance, err_msg=name)


def _read(recipe: Recipe, folder: Path) -> Table:
    return concat([events for path in sorted(folder.iterdir()) for events in recipe.read(str(path))])


def _forward(recipe: Recipe, model: nn.Module, samples: Table) -> Any:
    import torch

    from clew.training.validation import forward

    return forward(recipe, model, samples, torch.device("cpu"))


def _copy(table: Table) -> Table:
    return pickle.loads(pickle.dumps(table))  # type: ignore[no-any-return]


def _values(column: Any) -> Any:
    values = column.values if isinstance(column, Ragged) else np.asarray(column)
    return values.astype(float)
