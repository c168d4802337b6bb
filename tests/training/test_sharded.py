"""Sharded training of networks whose output is a view."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Dataset, Run
from tests.cli import script


@pytest.mark.timeout(240)
def test_a_network_that_returns_a_view_trains_without_a_warning(dataset: Dataset, tmp_path: Path) -> None:
    losses = {}
    for strategy in ("allreduce", "sharded"):
        options = ("--workers", "2", "--strategy", strategy, "--epochs", "1", "--set", "train.threads=1")
        words = ("train", "tracking", "--dataset", dataset.path, "--output", strategy, *options)
        outcome = script(*words, folder=tmp_path)
        assert outcome.code == 0 and "Warning" not in outcome.err, outcome.err
        validation = Run.open(tmp_path / strategy).last("validation")
        assert validation is not None
        losses[strategy] = validation["metrics"]["loss"]
    assert losses["sharded"] == pytest.approx(losses["allreduce"], rel=1e-4)
