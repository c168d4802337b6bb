"""The contract of synchronous strategies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from clew.data.dataset import Dataset
from clew.errors import ClewError, ConfigError, RecipeError, StoppedError
from clew.runs import Run
from clew.testing import toys
from clew.testing.suite import required

_EPOCHS = 2


class StrategyContract:
    """Tests of a synchronous strategy, on local worker processes. Subclass it and set `strategy`.

    The strategy trains a small regression, and two adversarial networks with an optimiser each, of which one takes two
    steps per batch.

    Example:
        >>> class TestAllReduce(StrategyContract):
        ...     strategy = "allreduce"
    """

    strategy: ClassVar[str | None] = None
    """The value of `train.strategy`. Workers look it up, so it must be registered (entry point `clew.strategies`)."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Further settings of `train`."""
    workers: ClassVar[int] = 2
    """How many processes train."""
    tolerance: ClassVar[tuple[float, float]] = (1e-4, 2e-5)
    """Relative and absolute difference of a weight that rounding may cause."""
    model: ClassVar[Literal["regression", "branches"]] = "regression"
    """The model of the regression: a chain of layers, or one with two branches (`clew.testing.toys.ToyBranches`)."""
    alternates: ClassVar[bool] = True
    """Whether a `step` that alternates between optimisers is supported. If not, it must be refused."""

    @classmethod
    def _train(cls, toy: str, dataset: Dataset, folder: Path, workers: int, **settings: Any) -> Run:
        train: dict[str, Any] = {
            "epochs": _EPOCHS,
            "batch_size": 25,
            "threads": 1,
            "log_every": 1,
            "clip": 0.5,
            "ema": 0.9,
            "optimizer": {"lr": 0.01},
            "schedule": {"name": "cosine", "warmup": 0.1},
            "strategy": required(cls, "strategy", '"my_strategy"'),
            "workers": workers,
            **cls.settings,
        }
        return toys.train_toy(cls.model if toy == "regression" else toy, dataset, folder, train, **settings)

    @pytest.fixture(scope="class")
    @classmethod
    def toy_dataset(cls, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
        """The samples of the toys."""
        return toys.make_dataset(tmp_path_factory.mktemp("toys"))

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Run]:
        """Returns the run of a toy on a number of processes, which is trained once."""
        folder = tmp_path_factory.mktemp("strategy")
        return functools.cache(lambda toy, workers: cls._train(toy, toy_dataset, folder / f"{toy}-{workers}", workers))

    @pytest.mark.parametrize("toy", toys.TOYS)
    def test_ranks_train_as_one_process(
        self, toy: str, toy_dataset: Dataset, trained: Callable[[str, int], Run], tmp_path: Path
    ) -> None:
        if toy == "adversarial" and not self.alternates:
            with pytest.raises((ConfigError, RecipeError)):
                self._train(toy, toy_dataset, tmp_path, self.workers)
            return
        several, one = trained(toy, self.workers), trained(toy, 1)
        toys.check_run(several, toy_dataset, epochs=_EPOCHS, processes=self.workers)
        self._check_weights(several, one)
        for kind, key in (("step", "loss"), ("validation", "metrics")):
            for record, reference in zip(several.records("rank-0", kind), one.records("rank-0", kind), strict=True):
                assert record[key] == pytest.approx(reference[key], rel=10 * self.tolerance[0]), f"{key} differs"

    @pytest.mark.parametrize("toy", toys.TOYS)
    def test_a_stopped_run_resumes_to_the_bit(
        self, toy: str, toy_dataset: Dataset, trained: Callable[[str, int], Run], tmp_path: Path
    ) -> None:
        """With the optimisers of all networks: the moments of one that is lost change the weights."""
        if toy == "adversarial" and not self.alternates:
            pytest.skip("the strategy does not support a step that alternates between optimisers")
        resumed = self._stop_and_resume(toy, toy_dataset, tmp_path)
        weights = toys.saved_weights(resumed)
        for name, tensor in toys.saved_weights(trained(toy, self.workers)).items():
            assert tensor.equal(weights[name]), f"{name} is not the same after a resume"

    def test_a_stopped_run_resumes_on_one_process(
        self, toy_dataset: Dataset, trained: Callable[[str, int], Run], tmp_path: Path
    ) -> None:
        """A checkpoint has the complete model and optimiser, whatever part each rank holds."""
        resumed = self._stop_and_resume("regression", toy_dataset, tmp_path, workers=1)
        self._check_weights(resumed, trained("regression", 1))

    def test_a_failing_rank_fails_the_run_with_its_message(self, toy_dataset: Dataset, tmp_path: Path) -> None:
        with pytest.raises(ClewError, match="boom on purpose"):
            self._train("regression", toy_dataset, tmp_path, self.workers, fault="raise")
        assert Run.open(tmp_path / "run").state == "failed"

    def _stop_and_resume(self, toy: str, dataset: Dataset, folder: Path, **settings: Any) -> Run:
        from clew.training.api import resume

        with pytest.raises(StoppedError):
            self._train(toy, dataset, folder, self.workers, fault="stop")
        run = resume(folder / "run", **settings)
        steps = [record["step"] for record in run.records(kind="resume")]
        assert len(steps) == 1 and steps[0] > 0, "the run did not continue from a checkpoint"
        return run

    def _check_weights(self, run: Run, reference: Run) -> None:
        import torch

        weights, (relative, absolute) = toys.saved_weights(run), self.tolerance
        for name, tensor in toys.saved_weights(reference).items():
            torch.testing.assert_close(weights[name], tensor, rtol=relative, atol=absolute, msg=f"{name} differs")
