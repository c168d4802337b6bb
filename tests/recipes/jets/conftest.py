"""Runs of every jet network, a few steps each, made on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import clew
from clew import Run
from clew.settings import load_settings

from . import jets
from .test_recipe import KINDS

Trained = Callable[[str], Run]


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled") / "synthetic.h5"
    jets(200).save(path)
    return path


@pytest.fixture(scope="session")
def trained(labelled: Path) -> Trained:
    @cache
    def make(kind: str) -> Run:
        name, settings = KINDS[kind]
        more = ["train.threads=1", "train.epochs=1", "train.steps=3", "reweight={columns: {jet_mass: [0, 80, 200]}}"]
        loaded = load_settings(name, [*settings, *more, "data.weight=1 + 0 * label"])
        place, where = labelled.parent / kind, [str(labelled)]
        data = clew.prepare(loaded.recipe, loaded.prepare, input=where, output=str(place / "data"), workers=1)
        return clew.train(loaded.recipe, data, config=loaded.train, output=place / "run")

    return make
