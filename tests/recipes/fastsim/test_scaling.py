"""Scaling and tuning of the GAN by the commands of the documentation, with tiny showers."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from tests.cli import clew, done

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of settings with a dataset of 64 showers of 4x3x3 voxels."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    with h5py.File("grid.h5", "w") as file:
        file["energy"] = 10 ** random.random(64)
        file["ECAL"] = random.gamma(2.0, 0.02, (64, 4, 3, 3))
    document = {
        "recipe": "fastsim",
        "geometry": {"kind": "grid", "cells": [4, 3, 3]},
        "model": {"channels": 2, "latent": 4},
        "train": {"dataset": "dataset", "epochs": 1, "batch_size": 16, "threads": 1},
        "tune": {
            "space": {"train.optimizer.lr": {"log": [1e-4, 1e-2]}},
            "objective": "val/separation/layers",
            "direction": "minimize",
            "trials": 2,
            "packed": 2,
        },
    }
    path = tmp_path / "gan.yaml"
    path.write_text(yaml.safe_dump(document))
    done("prepare", path, "--input", "grid.h5", "--output", "dataset")
    return path


def test_the_gan_is_scaled_to_two_workers(settings: Path) -> None:
    outcome = clew("bench", "scale", settings, "--workers", "1,2")
    assert outcome.code == 0, outcome
    assert "allreduce on 1" in outcome.out and "allreduce on 2" in outcome.out and "failed" not in outcome.out


def test_trials_of_the_gan_cannot_be_packed_and_say_why(settings: Path) -> None:
    outcome = clew("tune", "run", settings)
    assert outcome.code == 0, outcome
    assert "2 complete" in outcome.out
    assert "2 trials not packed: the recipe has a step() of its own" in outcome.out
