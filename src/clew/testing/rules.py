"""The contract of asynchronous rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from clew.data.dataset import Dataset
from clew.errors import ClewError, StoppedError
from clew.runs import Run
from clew.testing import toys
from clew.testing.suite import required

_STOP_AT, _EPOCHS = 40, 40
"""A stop request is noticed within a tenth of a second, during which training continues: many short epochs."""


class RuleContract:
    """Tests of an asynchronous rule, on local processes: a master and workers. Subclass it and set `rule`.

    The rule trains a small regression, and two adversarial networks with an optimiser each, of which one takes two
    steps per batch.

    Example:
        >>> class TestDownpour(RuleContract):
        ...     rule = "downpour"
        ...     one_worker_is_single = True
    """

    rule: ClassVar[str | None] = None
    """The value of `train.strategy`. Workers look it up, so it must be registered (entry point `clew.rules`)."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Further settings of `train`. `asynchronous` has the settings of the rule."""
    workers: ClassVar[int] = 2
    """How many workers train, besides one master."""
    limit: ClassVar[float] = 0.1
    """The regression's loss after 40 epochs in one process must be below this. A model that predicts 0 has 0.7."""
    one_worker_is_single: ClassVar[bool] = False
    """Whether one worker that exchanges after every batch takes the steps of a training without masters."""

    @classmethod
    def _train(cls, toy: str, dataset: Dataset, folder: Path, *, fault: str = "none", **more: Any) -> Run:
        train: dict[str, Any] = {
            "epochs": 2,
            "batch_size": 16,
            "threads": 1,
            "optimizer": {"lr": 0.01},
            "strategy": required(cls, "rule", '"my_rule"'),
            "workers": cls.workers,
            **cls.settings,
            **more,
        }
        return toys.train_toy(toy, dataset, folder, train, fault=fault, stop_at=_STOP_AT)

    @classmethod
    def _in_one_process(cls) -> dict[str, Any]:
        """Settings: one process is worker and master, so the result does not depend on timing."""
        settings = {**cls.settings.get("asynchronous", {}), "masters": 0, "sync_every": 1}
        return {"workers": 1, "asynchronous": settings}

    @pytest.fixture(scope="class")
    @classmethod
    def toy_dataset(cls, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
        """The samples of the toys."""
        return toys.make_dataset(tmp_path_factory.mktemp("toys"))

    @pytest.mark.parametrize("toy", toys.TOYS)
    def test_every_sample_is_used_once_per_epoch(self, toy: str, toy_dataset: Dataset, tmp_path: Path) -> None:
        run = self._train(toy, toy_dataset, tmp_path)
        toys.check_run(run, toy_dataset, epochs=2, processes=self.workers + 1)
        record = run.last("workers")
        assert record is not None and sum(record["staleness"].values()) > 0, "no update reached the master"
        start = toys.first_weights(toy)
        still = [name for name, tensor in toys.saved_weights(run).items() if tensor.equal(start[name])]
        assert not still, f"{', '.join(still)} did not change: not every network was exchanged"

    def test_one_process_learns_the_regression(self, toy_dataset: Dataset, tmp_path: Path) -> None:
        alone = {**self.settings.get("asynchronous", {}), "masters": 0}
        run = self._train("regression", toy_dataset, tmp_path, workers=1, asynchronous=alone, epochs=_EPOCHS)
        *_, last = run.records(kind="validation")
        assert last["metrics"]["loss"] < self.limit, "the regression is not learned"

    @pytest.mark.parametrize("toy", toys.TOYS)
    def test_one_worker_takes_the_steps_of_a_single_process(
        self, toy: str, toy_dataset: Dataset, tmp_path: Path
    ) -> None:
        import torch

        if not self.one_worker_is_single:
            pytest.skip("the steps of this rule differ from those of a single process")
        run = self._train(toy, toy_dataset, tmp_path / "rule", **self._in_one_process())
        plain: dict[str, Any] = {"workers": 1, "strategy": "single", "asynchronous": {}}
        single = self._train(toy, toy_dataset, tmp_path / "single", **plain)
        weights = toys.saved_weights(run)
        for name, tensor in toys.saved_weights(single).items():
            torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5, msg=f"{name} differs")

    @pytest.mark.parametrize("toy", toys.TOYS)
    def test_a_stopped_run_resumes_to_the_bit(self, toy: str, toy_dataset: Dataset, tmp_path: Path) -> None:
        """In one process. The optimisers of master and worker, the position and the random numbers are restored."""
        from clew.training.api import resume

        settings = {**self._in_one_process(), "epochs": _EPOCHS}
        whole = self._train(toy, toy_dataset, tmp_path / "whole", **settings)
        with pytest.raises(StoppedError):
            self._train(toy, toy_dataset, tmp_path / "stopped", fault="stop", **settings)
        run = resume(tmp_path / "stopped" / "run")
        steps = [record["step"] for record in run.records(kind="resume")]
        assert len(steps) == 1 and steps[0] >= _STOP_AT, "the run did not continue from a checkpoint"
        weights = toys.saved_weights(run)
        for name, tensor in toys.saved_weights(whole).items():
            assert tensor.equal(weights[name]), f"{name} is not the same after a resume"

    def test_a_failing_worker_fails_the_run_with_its_message(self, toy_dataset: Dataset, tmp_path: Path) -> None:
        with pytest.raises(ClewError, match="boom on purpose"):
            self._train("regression", toy_dataset, tmp_path, fault="raise")
        assert Run.open(tmp_path / "run").state == "failed"
