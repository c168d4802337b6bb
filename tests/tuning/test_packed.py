"""Trials in packs, in real processes: the same runs as separate ones, also if some of them fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import clew
from clew import Dataset, Run, settings
from clew.core.config import Document, to_yaml
from clew.errors import ConfigError
from clew.training.api import resume
from clew.tuning.api import tune
from clew.tuning.study import Study
from tests.tuning import SMALL, tune_here

CLEW = str(Path(sys.executable).parent / "clew")
BEND = str(Path(__file__).parent / "recipes" / "bend.py")
SPACE: dict[str, Any] = {
    "train.optimizer.lr": {"log": [1e-3, 1e-1]},
    "train.seed": {"uniform": [0, 99], "integer": True},
    "part": {"uniform": [0.5, 2.0]},
}
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::clew.runs.saved_code.CodeWarning"),  # another recipe prepared the dataset
]


def template(
    flat: Dataset, *, train: dict[str, Any] | None = None, tuned: dict[str, Any] | None = None, **recipe_settings: Any
) -> Any:
    plain = {"space": SPACE, "trials": 6, "parallel": 2, "packed": 4, "sampler": {"name": "random", "seed": 1}}
    data = {
        "recipe": BEND,
        **recipe_settings,
        "train": {**SMALL, "dataset": str(flat.path), **(train or {})},
        "tune": {**plain, **(tuned or {})},
    }
    return settings.settings_from_document(Document(data))


def packs(study: Study) -> int:
    return len(list(study.folder.jobs.glob("pack-*")))


def sizes(study: Study) -> list[int]:
    """The size of the pack of each trial; 0 for a separate run."""
    return [(Run(path).last("plan") or {}).get("packed", 0) for path in sorted(study.folder.trials.iterdir())]


def notes(study: Study) -> list[str]:
    return [r["message"] for path in study.folder.trials.iterdir() for r in Run(path).records(kind="note")]


def test_packed_trials_are_the_runs_that_separate_ones_would_be(flat: Dataset, tmp_path: Path) -> None:
    study = tune_here(template(flat), tmp_path / "s")
    assert study.count()["complete"] == 6
    assert packs(study) == 2 and sizes(study) == [3] * 6 and not notes(study)
    for each in study.trials()[:2]:
        run = Run.open(study.folder.trials / each.name)
        assert (run.state, run.config().data["part"]) == ("finished", each.settings["part"])
        again = settings.load_settings(str(run.path))
        alone = clew.train(again.recipe, None, config=again.train, output=tmp_path / f"alone-{each.number}")
        for one, other in zip(run.records(kind="validation"), alone.records(kind="validation"), strict=True):
            assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-4, abs=1e-3)
        assert clew.evaluate(run, split="val").metrics["loss"].value == pytest.approx(each.values[0], rel=1e-4)
        assert len(clew.predict(run, split="val")) == flat.splits["val"]
    for leftover in (study.folder.leases, study.folder.owners, study.folder.coordinators):
        assert not list(leftover.iterdir())


def test_other_shapes_are_packed_separately_and_the_rest_is_trained_alone(flat: Dataset, tmp_path: Path) -> None:
    names = {
        "wide": {"choice": [3, 5]},
        "train.optimizer.name": {"choice": ["adam", "rmsprop"]},
        "dropout": {"choice": [0.0, 0.2]},
    }
    study = tune_here(
        template(flat, tuned={"space": names, "trials": 8, "sampler": "grid", "packed": 8}),
        tmp_path / "s",
    )
    assert study.count()["complete"] == 8
    assert sorted(sizes(study)) == [0, 0, 0, 0, 2, 2, 2, 2]
    assert set(notes(study)) == {"not packed: train.optimizer.name is rmsprop, not one of sgd, adam, adamw"}


def test_a_diverging_trial_fails_alone(flat: Dataset, tmp_path: Path) -> None:
    names = {"train.optimizer.lr": {"choice": [0.01, 0.02, 1e30, 0.03]}}
    train = {"optimizer": {"name": "sgd"}, "epochs": 6}
    study = tune(
        template(flat, train=train, tuned={"space": names, "trials": 4, "sampler": "grid", "parallel": 1}),
        tmp_path / "s",
    )
    bad = [each for each in study.trials() if each.state == "failed"]
    assert [each.settings["train.optimizer.lr"] for each in bad] == [1e30] and study.count()["complete"] == 3
    assert "lower train.optimizer.lr" in bad[0].reason
    assert all(0 < each.values[0] < 10 for each in study.trials() if each.state == "complete")


def test_a_pruned_trial_leaves_its_pack_and_can_be_resumed(flat: Dataset, tmp_path: Path) -> None:
    names = {"train.optimizer.lr": {"choice": [0.05, 0.04, 1e-6, 1e-7]}}
    tuned = {"space": names, "trials": 4, "sampler": "grid", "parallel": 1, "pruner": {"name": "asha", "reduction": 2}}
    study = tune(template(flat, train={"epochs": 30}, tuned=tuned, pause=0.01), tmp_path / "s")
    pruned = [each for each in study.trials() if each.state == "pruned"]
    assert pruned and study.count()["complete"] + len(pruned) == 4
    run = Run(study.folder.trials / pruned[0].name)
    assert run.state == "stopped" and max(pruned[0].reports) < 30
    done = subprocess.run([CLEW, "train", "--resume", str(run.path), "--set", "a=1"], capture_output=True, text=True)
    assert done.returncode == 2
    resume(run)
    assert run.state == "finished"
    assert [r["epoch"] for r in run.history() if r["kind"] == "validation"] == list(range(30))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and not true():
        time.sleep(0.02)


def test_a_pack_that_is_killed_is_started_again(flat: Dataset, tmp_path: Path) -> None:
    study = tune(template(flat, once=str(tmp_path / "once"), tuned={"parallel": 1, "packed": 8}), tmp_path / "s")
    assert study.count()["complete"] == 6 and {each.attempts for each in study.trials()} == {2}


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_study_of_packs_ends_with_exactly_its_trials(flat: Dataset, tmp_path: Path, kill: int) -> None:
    settings = template(flat, train={"epochs": 12}, tuned={"trials": 8}, pause=0.05)
    (tmp_path / "my.yaml").write_text(to_yaml(settings.data))
    path = tmp_path / "s"
    words = [CLEW, "tune", "run", str(tmp_path / "my.yaml"), "--output", str(path), "--oversubscribe"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: len(list(path.glob("trials/*/records/rank-0.jsonl"))) == 8)
    until(lambda: any(Run(each).last("validation") for each in path.glob("trials/*")))
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, kill)
    output = process.communicate(timeout=60)[0]
    if kill == signal.SIGTERM:
        assert process.returncode == 75, output
        assert {Run(each).state for each in path.glob("trials/*")} == {"stopped"}
    else:
        for member in psutil.process_iter():
            if member in family:
                member.kill()
    again = subprocess.run(
        [CLEW, "tune", "run", "--resume", str(path), "--oversubscribe"], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stdout + again.stderr
    study = Study.open(path)
    assert study.count()["complete"] == 8 and len(study.trials()) == 8
    for each in study.trials():
        run = Run(study.folder.trials / each.name)
        validated_epochs = [r["epoch"] for r in run.history() if r["kind"] == "validation"]
        assert validated_epochs == list(range(12))
        assert bool(list(run.records(kind="resume"))) == (kill == signal.SIGTERM)


def test_ranks_do_not_go_with_packs(flat: Dataset) -> None:
    with pytest.raises(ConfigError, match="ranks cannot be 2"):
        template(flat, tuned={"ranks": 2})


def test_folds_are_packed_and_give_what_separate_ones_give(flat: Dataset, tmp_path: Path) -> None:
    names = {"train.optimizer.lr": {"choice": [0.003, 0.01, 0.03]}}
    tuned = {"space": names, "trials": 3, "sampler": "grid", "folds": 3, "parallel": 1}
    study = tune_here(template(flat, tuned=tuned), tmp_path / "s")
    assert study.count()["complete"] == 3 and not notes(study)
    pack_sizes = sizes(study)
    assert len(pack_sizes) == 9 and max(pack_sizes) == 3 and min(pack_sizes) > 0, (
        "the first fold of all trials together"
    )
    for each in study.trials():
        for fold in range(3):
            run = Run.open(study.folder.trials / f"{each.name}-fold-{fold}")
            alone = settings.load_settings(str(run.path))
            assert alone.train.dataset == str(study.folder.path / "folds" / f"fold-{fold}")
        best = [each.reports[fold + 1] for fold in range(3)]
        assert list(each.values) == pytest.approx([sum(best) / 3])
        assert each.spread[0] > 0
    again = clew.train(alone.recipe, None, config=alone.train, output=tmp_path / "alone")
    for one, other in zip(run.records(kind="validation"), again.records(kind="validation"), strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-4, abs=1e-3)
