"""`clew.train(device=...)`, `train.device`."""

from __future__ import annotations

from pathlib import Path

import pytest

import clew
from clew import Dataset
from clew.errors import ConfigError
from clew.training.device import find_device
from tests.training import recipe


def test_a_run_computes_on_the_requested_device(flat: Dataset, tmp_path: Path) -> None:
    run = clew.train(recipe("line"), flat, epochs=1, device="cpu", output=tmp_path / "run")
    assert run.config().data["train"]["device"] == "cpu"
    plan = run.last("plan")
    assert plan is not None and plan["device"] == "cpu"
    assert clew.evaluate(run).events


@pytest.mark.parametrize("name", ["cuda:99", "hpu"])
def test_a_missing_device_is_reported_before_a_run_is_made(name: str, flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"train.device {name}: no such device here; torch finds cpu"):
        clew.train(recipe("line"), flat, epochs=1, device=name, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrong_name_is_reported(flat: Dataset) -> None:
    with pytest.raises(ConfigError, match="device is 'GPU 1'; it must be auto, cpu, cuda, cuda:1 or mps"):
        clew.train(recipe("line"), flat, device="GPU 1")


def test_the_default_is_a_device_that_exists() -> None:
    assert find_device().type == find_device(3, "auto").type
