"""The contract of recipes, for every recipe that clew ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from clew import Table
from clew.testing import RecipeContract
from tests.recipes.jets import jets
from tests.recipes.lartpc.events import SIDE, particles
from tests.recipes.particleflow import flow_events


class TestTagger(RecipeContract):
    recipe, events = "tagger", 600


class TestTracking(RecipeContract):
    recipe, settings = "tracking", ("model.hidden=16",)


class TestHitGraph(RecipeContract):
    recipe, settings = "hitgraph", ("model.hidden=8", "model.iterations=2")


class TestTrackNet(RecipeContract):
    recipe, settings = "tracknet", ("model.hidden=16",)


@pytest.mark.skipif(importlib.util.find_spec("acts") is None, reason="pyacts is not installed")
class TestTriplets(RecipeContract):
    recipe, events, checks_generator = "clew.recipes.tracking:Triplets", 30, False
    settings = ("model.hidden=8", "model.iterations=2", "gun.multiplicity=[30, 60]", "sectors.number=2")


class JetContract(RecipeContract):
    """Jets without Pythia: 1,000 jets, one file of the generator, take a minute."""

    checks_generator = False

    def write_events(self, folder: Path) -> None:
        jets(self.events).save(folder / "synthetic.h5")


class TestJets(JetContract):
    recipe, settings = "jets", ("model.width=16",)


class TestJetImages(JetContract):
    recipe, settings = "jetimages", ("model.width=4",)


class TestJetFeatures(JetContract):
    recipe = "jetfeatures"


class TestLArTPC(RecipeContract):
    recipe, events, checks_generator = "lartpc", 80, False
    settings = (f"image.rows={SIDE}", f"image.columns={SIDE}", "train.batch_size=8")

    def write_events(self, folder: Path) -> None:
        particles(self.events).save(folder / "synthetic.h5")


class TestParticleFlow(RecipeContract):
    recipe, events = "particleflow", 64
    settings = (
        "model.width=16", "model.distance=8", "model.bin_size=32", "model.codes=6", "model.identity_width=16",
        "model.momentum_width=16", "train.batch_size=8", "train.optimizer.lr=0.01", "generator.kind=parametric",
        "generator.pileup=2",
    )  # fmt: skip

    def write_events(self, folder: Path) -> None:
        flow_events(self.events).save(folder / "synthetic.h5")


class TestColumns(RecipeContract):
    recipe = "columns"
    settings = (
        "columns.features=[x]",
        "columns.labels=[y]",
        "model.build=torch.nn:Linear",
        "model.arguments={in_features: 3, out_features: 1}",
        "loss=mse",
    )

    def write_events(self, folder: Path) -> None:
        x = np.random.default_rng(3).normal(size=(self.events, 3)).astype(np.float32)
        Table({"x": x, "y": np.tanh(x @ [[1], [-2], [0.5]]).astype(np.float32)}).save(folder / "events.h5")
