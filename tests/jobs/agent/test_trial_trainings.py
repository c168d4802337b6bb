"""Studies whose trials are jobs, with real trainings: from the command line to the results on the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew import Dataset
from clew.client.submission import submission
from clew.core.config import to_yaml
from tests.cli import clew as run_clew
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_trial_jobs import ClientFor, check_complete, trial_jobs, trials_of
from tests.tuning import LR, RECIPE, SMALL
from tests.tuning.test_packed import BEND


def study_file(flat: Dataset, path: Path, recipe: str, *, epochs: int = 3, pause: float = 0.0, **tune: Any) -> Path:
    """The settings of a study."""
    study = {"space": LR, "trials": 2, "sampler": {"name": "random", "seed": 1}, **tune}
    train = {**SMALL, "dataset": str(flat.path), "epochs": epochs}
    path.write_text(to_yaml({"recipe": recipe, "pause": pause, "train": train, "tune": study}))
    return path


@pytest.mark.long
def test_folds_of_trials_are_trained_by_an_agent(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    client = client_for("ada")
    start_agent(client, "one", cpus=1, clew=True)
    file = study_file(flat, tmp_path / "study.yaml", RECIPE, folds=2)
    job = client.jobs.submit(submission(str(file), kind="tune", trials_as_jobs=True))
    check_complete(client, job.id, 2)
    trials = trials_of(client, job.id)
    assert all(len(trial.values) == 1 and trial.seconds > 0 for trial in trials)
    names = {run.name for run in client.runs.list() if run.job in {trial.job for trial in trials}}
    assert names == {f"trial-000{number}-fold-{fold}" for number in (0, 1) for fold in (0, 1)}


@pytest.mark.long
def test_the_command_line_submits_packs_whose_bad_trials_are_pruned(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_for("ada")
    agent = start_agent(client, "one", cpus=1, clew=True)
    monkeypatch.setenv("CLEW_SERVER", client.server)
    monkeypatch.setenv("CLEW_TOKEN", agent.token)
    rates = {"train.optimizer.lr": {"choice": [0.05, 0.04, 1e-6, 1e-7]}}
    pruner = {"name": "asha", "reduction": 2}
    options = {"space": rates, "trials": 4, "sampler": "grid", "packed": 4, "pruner": pruner}
    file = study_file(flat, tmp_path / "study.yaml", BEND, epochs=30, pause=0.02, **options)
    submitted = run_clew("submit", file, "--kind", "tune", "--trials-as-jobs", "--wait")
    assert submitted.code == 0, submitted
    (job,) = client.jobs.list(kind="tune")
    check_complete(client, job.id, 4, ("complete", "pruned"))
    (trained,) = trial_jobs(client, job.id)
    pruned = [trial for trial in trials_of(client, job.id) if trial.state == "pruned"]
    assert all(trial.reason.startswith("pruned: ") and max(trial.reports) < 30 for trial in pruned)
    listed = run_clew("jobs", "--study", str(job.study), "--json")
    assert [each["id"] for each in json.loads(listed.out)] == [trained.id]
    refused = run_clew("submit", file, "--trials-as-jobs")
    assert (refused.code, refused.err) == (2, "clew: --trials-as-jobs goes with --kind tune, not with train\n")
