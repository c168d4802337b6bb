"""A mistake in the user's own code is reported with its file and line, its source, the input, and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Run
from tests.cli import Outcome, script

pytestmark = pytest.mark.timeout(180)
Edited = Callable[..., Path]
FORWARD = 'return model(batch["x"].float())'
LOSS = 'return cross_entropy(outputs, batch["top"], reduction="none")'
METRICS = 'return {"accuracy": clew.metrics.Ratio.of('
LATE_FORWARD = 'return model(batch["x"].float() if batch.size < 10 else batch["y"].float())'
"""A mistake that the rehearsal with four samples does not meet."""


def line_of(folder: Path, text: str) -> int:
    """Line number of the first line of the recipe that contains a text."""
    lines = (folder / "top_tagger.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def check(outcome: Outcome, folder: Path, source: str, *words: str) -> None:
    """One line with the place and the source of the mistake, exit code 2, no traceback."""
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert f"top_tagger.py:{line_of(folder, source)}: " in outcome.err
    assert "Traceback" not in outcome.err
    assert not [word for word in (source, *words) if word not in outcome.err], outcome.err


@pytest.mark.parametrize("workers", [1, 2])
def test_prepare_names_line_source_file_and_events(edited: Edited, workers: int) -> None:
    folder = edited("pt.sum()", "pt.summ()")
    words = ("prepare", "top_tagger.py", "--input", "events.h5", "--output", "other", "--workers", workers)
    outcome = script(*map(str, words), folder=folder)
    check(outcome, folder, "pt.summ()", "AttributeError", "prepare()", "events.h5", "600 events", "clew.Table")
    assert not (folder / "other").exists()


def test_prepare_names_the_events_of_a_piece(edited: Edited) -> None:
    read = "def read(self, path):\n        return clew.data.readers.read(path, chunk=250)\n\n    def prepare"
    folder = edited("pt.sum()", "pt.summ()", "import clew", "import clew, clew.data.readers", "def prepare", read)
    outcome = script("prepare", "top_tagger.py", "--input", "events.h5", "--output", "other", folder=folder)
    check(outcome, folder, "pt.summ()", "events.h5 (events ")
    assert any(f"(events {first}-{last})" in outcome.err for first, last in ((0, 249), (250, 499), (500, 599)))


def test_a_wrong_column_name_is_reported_with_its_line(edited: Edited) -> None:
    folder = edited('events.ragged("pt")', 'events.ragged("ptt")')
    outcome = script("prepare", "top_tagger.py", "--input", "events.h5", "--output", "other", folder=folder)
    check(outcome, folder, 'events.ragged("ptt")', "no column 'ptt'", "did you mean 'pt'?")


def test_prepare_that_returns_nothing_is_told_what_to_return(edited: Edited) -> None:
    folder = edited("return clew.Table(features)", "clew.Table(features)")
    outcome = script("prepare", "top_tagger.py", "--input", "events.h5", "--output", "other", folder=folder)
    assert outcome.code == 2
    place = f"top_tagger.py:{line_of(folder, 'def prepare')}"
    assert f"{place}: prepare() returned a NoneType for 600 events of events.h5" in outcome.err
    assert "clew.Table with one row per event" in outcome.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (FORWARD, 'return model(batch["x"].flloat())', ("forward()", "x float64")),
        (LOSS, 'return cross_entropy(outputs, batch["topp"])', ("no column 'topp'",)),
        ("self.config.hidden)", "self.config.hiden)", ("model()", "torch.nn.Module")),
        (METRICS, 'return {"accuracy": clew.metrics.Ratioo.of(', ("metrics()", "Ratioo", "metrics by name")),
    ],
)
def test_a_mistake_in_the_model_ends_the_training_with_its_line(
    edited: Edited, old: str, new: str, words: tuple[str, ...]
) -> None:
    folder = edited(old, new)
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", "--output", "runs/a", folder=folder)
    check(outcome, folder, new, *words)
    end = Run.open(folder / "runs/a").end()
    assert end is not None and "top_tagger.py:" in end["message"]


@pytest.mark.parametrize(
    ("method", "old", "new", "got"),
    [
        ("metrics", METRICS, f'return {{"accuracy": 0.5}}\n        {METRICS}', "a float for 'accuracy'"),
        ("loss", LOSS, "return 0.5", "a float"),
        ("forward", FORWARD, "return None", "a NoneType"),
        ("model", "return nn.Sequential(", "nn.Sequential(", "a NoneType"),
    ],
)
def test_a_wrong_result_is_reported_with_what_was_expected(
    edited: Edited, method: str, old: str, new: str, got: str
) -> None:
    folder = edited(old, new)
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", folder=folder)
    assert outcome.code == 2, outcome
    assert f"top_tagger.py:{line_of(folder, f'def {method}')}: {method}() returned {got}; {method}(" in outcome.err


def test_a_recipe_without_a_loss_is_refused_before_a_run_is_made(edited: Edited) -> None:
    folder = edited("def loss", "def losss")
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", folder=folder)
    assert outcome.code == 2
    assert f"top_tagger.py:{line_of(folder, 'class TopTagger')}: " in outcome.err
    assert "has no loss" in outcome.err and "loss(outputs, batch)" in outcome.err
    assert not list((folder / "runs").glob("*"))


@pytest.mark.parametrize("words", [(), ("--workers", "2"), ("--workers", "2", "--strategy", "easgd")])
def test_a_mistake_that_only_a_whole_batch_meets_names_the_samples(edited: Edited, words: tuple[str, ...]) -> None:
    folder = edited(FORWARD, LATE_FORWARD)
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", *words, folder=folder)
    check(outcome, folder, LATE_FORWARD, "no column 'y'")
    folder = edited(LATE_FORWARD, 'return model(batch["x"].float() if batch.size < 10 else batch["x"].flloat())')
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", *words, folder=folder)
    check(outcome, folder, "flloat", "of split train", "samples ", "dataset", "x float64")


@pytest.mark.parametrize("words", [(), ("--set", "train.validation=background")])
def test_a_mistake_in_metrics_that_only_a_whole_batch_meets(edited: Edited, words: tuple[str, ...]) -> None:
    folder = edited(METRICS, "if len(samples) > 10:\n            samples.oops()\n        " + METRICS)
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", *words, folder=folder)
    check(outcome, folder, "samples.oops()", "metrics()", "of split val")


def test_a_loss_without_a_gradient_is_reported(edited: Edited) -> None:
    folder = edited(LOSS, LOSS.replace("outputs,", "outputs.detach(),"))
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", folder=folder)
    assert outcome.code == 2
    assert f"top_tagger.py:{line_of(folder, 'def loss')}: the loss has no gradient" in outcome.err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_mistake_in_a_plot_names_its_line(edited: Edited, workers: str) -> None:
    plots = "\n    def display(self, samples, outputs, objects):\n        return {'pt': undefined_name}\n"
    folder = edited("    def metrics(", plots.lstrip("\n") + "\n    def metrics(")
    trained = script("train", "top_tagger.py", "--dataset", "dataset", "--epochs", "1", folder=folder)
    assert trained.code == 0, trained
    outcome = script("evaluate", "runs/top_tagger-001", "--workers", workers, folder=folder)
    check(outcome, folder, "undefined_name", "display()", "figures by title", "split test")


def test_raw_events_that_break_the_recipe_are_named(edited: Edited) -> None:
    folder = edited("import clew\n", "import clew\nimport os\n")
    trained = script("train", "top_tagger.py", "--dataset", "dataset", "--epochs", "1", folder=folder)
    assert trained.code == 0, trained
    edited("jets = events", 'assert os.environ["MISSING"]\n        jets = events')
    words = ("--input", "events.h5", "--output", "out.h5", "--current-code")
    outcome = script("predict", "runs/top_tagger-001", *words, folder=folder)
    check(outcome, folder, 'assert os.environ["MISSING"]', "KeyError", "events.h5", "600 events")


def test_debug_shows_the_recipes_part_of_the_traceback(edited: Edited) -> None:
    folder = edited(FORWARD, "return self.apply(model)\n\n    def apply(self, model):\n        oops()")
    words = ("--debug", "train", "top_tagger.py", "--dataset", "dataset", "--workers", "2")
    outcome = script(*words, folder=folder)
    assert outcome.code == 2
    shown = outcome.err.splitlines()
    assert len(shown) < 12
    assert "in forward" in shown[0] and any("in apply" in line for line in shown)
    assert "NameError: name 'oops' is not defined" in outcome.err


def test_a_background_job_reports_the_line_in_its_log(edited: Edited) -> None:
    folder = edited(FORWARD, 'return model(batch["x"].flloat())')
    words = ("train", "top_tagger.py", "--dataset", "dataset", "--output", "runs/a", "--detach")
    script(*words, folder=folder)
    log = script("logs", "runs/a", folder=folder)
    while "clew:" not in log.out:
        log = script("logs", "runs/a", folder=folder)
    assert f"top_tagger.py:{line_of(folder, 'flloat')}: AttributeError" in log.out
    shown = script("runs", "show", "runs/a", folder=folder)
    assert f"top_tagger.py:{line_of(folder, 'flloat')}: AttributeError" in shown.out


def test_a_fault_of_clew_is_not_blamed_on_the_recipe(tagger: Path) -> None:
    broken = "import clew.data.prepare.assembly\n\nclew.data.prepare.assembly.add_statistics = None\n"
    (tagger / "top_tagger.py").write_text(broken + (tagger / "top_tagger.py").read_text())
    outcome = script("prepare", "top_tagger.py", "--input", "events.h5", "--output", "other", folder=tagger)
    assert outcome.code == 1
    assert "assembly.py:" in outcome.err and "error in clew" in outcome.err and "--debug" in outcome.err
