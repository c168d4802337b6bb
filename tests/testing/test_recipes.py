"""The suite of recipes: each fault of a recipe fails the test that is about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing import failed_tests

RECIPE = """
import numpy as np
from clew import Recipe, Table
from clew.metrics import Ratio


class Line(Recipe):
    events_per_file = 20

    def generate(self, events, seed, folder, first=0):
        folder.mkdir(exist_ok=True)
        x = np.stack([np.random.default_rng((seed, n)).normal(size=3) for n in range(first, first + events)])
        path = folder / f"synthetic-{first}.h5"
        Table({"x": x.astype("f4"), "y": (x.sum(axis=1) > 0).astype("f4")}).save(path)
        yield path, events

    def label_columns(self):
        return ("y",)

    def prepare(self, events):
        return events

    def model(self):
        from torch import nn

        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return (outputs - batch["y"]) ** 2

    def metrics(self, samples, outputs, objects):
        return {"accuracy": Ratio.of((outputs["output"] > 0.5) == (samples["y"] > 0.5))}
"""
CENTRED = "events.join({'x': (events['x'] - events['x'].mean(axis=0)).astype('f4')})"
LABELLED = "events.join({'z': events['y'] * 2})"
RANDOM = "x = np.random.default_rng(seed).normal(size=(events, 3))"
STACKED = "x = np.stack([np.random.default_rng((seed, n)).normal(size=3) for n in range(first, first + events)])"
FAULTS = {
    "Correct": ("", ""),
    "Centres": ("return events\n", f"return {CENTRED}\n"),
    "Changes": ("return events\n", "events['x'][:] *= 0.5\n        return events\n"),
    "Shortens": ("return events\n", "return events.slice(1)\n"),
    "ImportsTorch": ("import numpy as np", "import numpy as np, torch"),
    "SumsLoss": ("return (outputs - batch['y']) ** 2", "return ((outputs - batch['y']) ** 2).sum()"),
    "Frozen": ("return (outputs - batch['y']) ** 2", "return (outputs - batch['y']) ** 2 * 0 + outputs * 0 + 1"),
    "Repeats": (STACKED, RANDOM),
    "NeedsLabels": ("return events\n", f"return {LABELLED}\n"),
}
SUITE = """
from clew.testing import RecipeContract

class Base(RecipeContract):
    epochs, events = 2, 100
    settings = ("train.optimizer.lr=0.01", "train.batch_size=10")
"""
ALONE, PURE = "test_prepare_treats_every_event_alone", "test_prepare_makes_one_sample_per_event_and_changes_no_event"
TORCH, LOSS = "test_preparing_does_not_load_torch", "test_the_loss_of_a_batch_is_the_sum_over_its_parts"
LEARNS, PREDICTS = "test_it_learns", "test_it_predicts_events_without_labels"
GENERATES = "test_generated_events_do_not_depend_on_the_events_before_them"
CHOSEN = {
    "TestCorrect": [ALONE, PURE, TORCH, LOSS, LEARNS, PREDICTS, GENERATES],
    "TestCentres": [ALONE, PURE],
    "TestChanges": [PURE],
    "TestShortens": [PURE],
    "TestImportsTorch": [TORCH],
    "TestSumsLoss": [LOSS],
    "TestFrozen": [LEARNS],
    "TestRepeats": [GENERATES],
    "TestNeedsLabels": [PREDICTS],
}


@pytest.mark.long
def test_each_fault_fails_its_test(tmp_path: Path) -> None:
    source = SUITE
    for name, (correct, wrong) in FAULTS.items():
        text = RECIPE.replace(correct.replace("'", '"'), wrong) if correct else RECIPE
        assert name == "Correct" or text != RECIPE, name
        (tmp_path / f"{name.lower()}.py").write_text(text)
        source += f"\nclass Test{name}(Base):\n    recipe = '{name.lower()}.py'\n"
    failed = failed_tests(tmp_path, source, CHOSEN)
    assert failed == {
        "TestCentres": {ALONE},
        "TestChanges": {PURE},
        "TestShortens": {PURE},
        "TestImportsTorch": {TORCH},
        "TestSumsLoss": {LOSS},
        "TestFrozen": {LEARNS},
        "TestRepeats": {GENERATES},
        "TestNeedsLabels": {PREDICTS},
    }
