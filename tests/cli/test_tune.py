"""`clew tune` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from clew import Dataset, settings
from clew.tuning.study import Study
from tests.cli import clew, done, script

SETTINGS = """
recipe: tracking
model: {hidden: 4}
train: {dataset: dataset, epochs: 2, threads: 1}
tune:
  space:
    train.optimizer.lr: {log: [1e-3, 1e-1]}
    model.hidden: {choice: [4, 8]}
  objective: val/efficiency
  trials: 3
  parallel: 1
"""


@pytest.fixture
def folder(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.yaml").write_text(SETTINGS)
    (tmp_path / "dataset").symlink_to(dataset.path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(120)
def test_a_study_from_the_first_trial_to_the_winning_settings(folder: Path) -> None:
    output = done("tune", "run", "my.yaml", "--output", "s")
    assert "study s: 3 trials, tpe" in output and "3 complete" in output and "tune best s --apply" in output
    assert output.count("complete  0.") >= 3
    assert "trial-0002  finished" in done("runs", "list", "s/trials")
    (best,) = json.loads(done("tune", "best", "s"))
    assert best["run"] == f"s/trials/trial-{best['trial']:04d}" and set(best["values"]) == {"val/efficiency"}
    assert "trial" in done("tune", "best", "s", "--apply", "best.yaml")
    best_settings = settings.load_settings("best.yaml")
    assert best_settings.train.optimizer.lr == best["settings"]["train.optimizer.lr"]
    assert best_settings.recipe.config.model.hidden == best["settings"]["model.hidden"]
    assert best_settings.tune is None and (best_settings.train.best.metric, best_settings.train.best.direction) == (
        "efficiency",
        "maximize",
    )
    values = [trial["values"][0] for trial in json.loads(done("tune", "show", "s", "--json"))]
    assert best["values"]["val/efficiency"] == max(values), "an efficiency is maximised without a word about it"
    shown = done("tune", "show", "s").splitlines()
    assert shown[2].split()[:3] == ["trial", "state", "val/efficiency"]
    assert int(shown[3].split()[0]) == best["trial"]
    assert done("tune", "show", "s", "--html").strip() == "s/report.html"
    assert len(json.loads(done("tune", "show", "s", "--json"))) == 3
    assert "study s: 4 trials" in done("tune", "run", "--resume", "s", "--trials", "4")
    assert Study.open("s").count()["complete"] == 4


def test_from_outside(folder: Path) -> None:
    first, second = map(json.loads, done("tune", "ask", "s", "--recipe", "my.yaml", "--n", "2").splitlines())
    assert set(first) == {"trial", "settings", "lease"} and set(first["settings"]) == {
        "train.optimizer.lr",
        "model.hidden",
    }
    assert done("tune", "report", "s", "0", "--epoch", "1", "--value", "0.5", "--lease", first["lease"]) == "continue\n"
    assert done("tune", "tell", "s", "0", "--value", "0.75") == ""
    assert "ended before" in done("tune", "tell", "s", "0", "--value", "0.9")
    refused = clew("tune", "tell", "s", "1", "--value", "0.9", "--lease", first["lease"])
    assert refused.code == 2 and "is gone" in refused.err
    done("tune", "tell", "s", "1", "--failed", "out of memory", "--lease", second["lease"])
    assert [each["state"] for each in json.loads(done("tune", "show", "s", "--json"))] == ["complete", "failed"]
    assert json.loads(done("tune", "best", "s"))[0]["values"] == {"val/efficiency": 0.75}
    done("tune", "ask", "s")
    assert done("tune", "ask", "s") == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run",), "name settings with a section `tune`"),
        (("run", "tracking"), "no section `tune`"),
        (("run", "my.yaml", "--set", "tune.space={model.hiden: {choice: [1]}}"), "unknown key 'model.hiden'"),
        (("run", "my.yaml", "--set", "tune.objective=efficiency"), "write val/METRIC"),
        (("run", "my.yaml", "--set", "tune.sampler=tp"), "input should be 'tpe'"),
        (("run", "my.yaml", "--parallel", "1000"), "1000 trials at a time do not fit"),
        (("run", "my.yaml", "--set", "tune.storage=mysql"), "choose journal, sqlite or a URL"),
        (
            ("run", "my.yaml", "--set", "tune.space={segments.phi_cut: {uniform: [0.1, 0.3]}}"),
            "the dataset was prepared",
        ),
        (("run", "--resume", "nothing"), "nothing: no study (config.yaml and study.json are missing)"),
        (("show", "nothing"), "no study"),
        (("best", "nothing"), "no study"),
        (("tell", "nothing", "3"), "one of --value, --pruned and --failed"),
        (("steer", "--in", "no.json", "--out", "o.json", "--n", "1", "--max", "1"), "no.json: cannot be read as JSON"),
    ],
)
def test_mistakes_get_one_line(folder: Path, words: tuple[str, ...], message: str) -> None:
    outcome = clew("tune", *words)
    assert outcome.code == 2 and message in outcome.err, outcome
    assert len(outcome.err.strip().splitlines()) == 1
    assert not (folder / "studies").exists()


@pytest.mark.parametrize(("mode", "code"), [("trials", 2), ("array", 0)])
def test_a_dry_run_at_a_site_submits_and_makes_nothing(
    folder: Path, mode: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_SITES", str(folder / "sites"))
    clew("site", "add", "alps", "--set", "scheduler=slurm")
    outcome = clew("tune", "run", "my.yaml", "--on", "alps", "--as", mode, "--dry-run")
    assert (outcome.code, "#SBATCH --array" in outcome.out) == (code, code == 0), outcome
    assert "--dry-run cannot print the jobs of trials" in outcome.err or code == 0
    assert not (folder / "studies").exists()


def test_run_may_be_left_out(folder: Path) -> None:
    outcome = script("tune", "my.yaml", "--set", "tune.objective=efficiency", folder=folder)
    assert outcome.code == 2 and "write val/METRIC" in outcome.err


def test_the_document_with_a_study_goes_back_in(folder: Path) -> None:
    (folder / "again.yaml").write_text(done("config", "show", "my.yaml"))
    assert settings.load_settings("again.yaml").tune == settings.load_settings("my.yaml").tune
    assert yaml.safe_load(done("config", "show", "my.yaml"))["tune"]["trials"] == 3
    assert "tune" not in yaml.safe_load(done("config", "show", "tracking"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tune.direction=maximize", "direction: maximize contradicts 'val/loss', which is better when it is smaller"),
        ("tune={objective: val/efficiency, direction: minimize}", "contradicts 'val/efficiency'"),
        ("tune.objective=val/significance", "'val/significance' needs a direction: minimize or maximize"),
        ("train.best={metric: loss, direction: maximize}", "direction: maximize contradicts 'loss'"),
        ("train.early_stopping={metric: f1, direction: minimize}", "direction: minimize contradicts 'f1'"),
        (
            "train.early_stopping={direction: maximize}",
            "maximize contradicts best.metric 'loss'",
        ),
    ],
)
def test_a_direction_that_contradicts_the_metric_is_refused(folder: Path, setting: str, message: str) -> None:
    (folder / "plain.yaml").write_text("recipe: tracking\ntune: {space: {train.optimizer.lr: {log: [1e-3, 1e-1]}}}\n")
    outcome = clew("tune", "run", "plain.yaml", "--set", setting)
    assert outcome.code == 2 and message in outcome.err
