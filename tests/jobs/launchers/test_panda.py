"""Tasks for PanDA: made by the dry run of the real client; their commands are run as on the grid."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml

from clew import Dataset
from clew.client.grid_tasks import TRAINING_OUTPUTS, training_task
from clew.core.config import to_yaml
from clew.errors import ConfigError
from clew.jobs.launchers.panda_task import task_arguments
from clew.jobs.sites import BatchRequest, Site
from clew.tuning.config import Parameter
from clew.tuning.panda import from_panda, to_panda
from tests.cli import clew, done
from tests.tuning import template
from tests.tuning.conftest import flat

__all__ = ["flat"]

IMAGE = "docker://registry.example.org/clew:0.1"


@pytest.fixture
def work(flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with settings, and a profile of PanDA with unreachable addresses."""
    pytest.importorskip("pandaclient")
    for name in ("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"):
        monkeypatch.setenv(name, "https://127.0.0.1:9/server/panda")
    monkeypatch.setenv("CLEW_SITES", str(tmp_path / "sites"))
    monkeypatch.chdir(tmp_path)
    settings = template(flat, tune={"trials": 7}, train={"epochs": 1})
    data = {**settings.data, "prepare": {"input": ["rucio:user.me:events"]}}
    (tmp_path / "my.yaml").write_text(to_yaml(data))
    words = ("scheduler=panda", f"container={IMAGE}", "panda.out=user.me.{name}", "panda.queue=ANALY_GPU")
    done("site", "add", "panda", *(word for each in words for word in ("--set", each)))
    return tmp_path


def task(output: str) -> dict[str, Any]:
    """The task that --dry-run prints after the output of the client."""
    document: dict[str, Any] = json.loads(output[output.index("\n{") :])
    return document


def test_a_training_is_a_task_whose_command_runs(work: Path, flat: Dataset) -> None:
    output = done("train", "my.yaml", "--set", "train.optimizer.lr=0.05", "--on", "panda", "--dry-run")
    document = task(output)
    assert document["taskName"].startswith("user.me.my") and document["container_name"] == IMAGE
    assert "user.me:events" in json.dumps(document) and document["site"] == "ANALY_GPU"
    outputs = {str(each.get("dataset", "")) for each in document["jobParameters"]}
    assert any("model.safetensors" in each for each in outputs)
    payload = next(str(each["value"]) for each in document["jobParameters"] if "panda_job" in str(each.get("value")))
    command = urllib.parse.unquote(payload)
    names = [path.name for path in sorted(flat.path.parent.glob("*.npz"))]
    for name in names:
        shutil.copy(flat.path.parent / name, work)
    words = shlex.split(command.replace("%IN", ",".join(names)))
    subprocess.run([sys.executable, *words[1:]], check=True, timeout=300)
    meta = json.loads((work / "userJobMetadata.json").read_text())
    assert meta["metrics"]["loss"] > 0 and meta["figures"]["seconds"] > 0
    assert (work / "userJobMetadata.json").stat().st_size < 1 << 20
    assert all((work / name).stat().st_size for name in TRAINING_OUTPUTS)
    assert "lr: 0.05" in (work / "run" / "config.yaml").read_text()


def test_submitting_to_panda_makes_the_same_tasks(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_SERVER", "http://127.0.0.1:9")  # which is not called: tasks of PanDA have no agents
    monkeypatch.setenv("CLEW_TOKEN", "clew_none")
    words = ("my.yaml", "--set", "train.optimizer.lr=0.05", "--on", "panda", "--dry-run")
    assert task(done("submit", *words)) == task(done("train", *words))
    assert unnamed(task(done("submit", *words, "--kind", "tune"))) == unnamed(task(done("tune", "run", *words)))


def unnamed(document: dict[str, Any]) -> dict[str, Any]:
    """A task without the name of its sandbox, which is random."""
    text, number = re.subn(r"jobO\.[0-9a-f-]{36}\.tar", "jobO.tar", json.dumps(document))
    assert number == 1
    changed: dict[str, Any] = json.loads(text)
    return changed


def test_a_study_is_a_task_of_phpo_whose_commands_run(work: Path, flat: Dataset) -> None:
    document = task(done("tune", "run", "my.yaml", "--set", "train.batch_size=50", "--on", "panda", "--dry-run"))
    request = document["hpoRequestData"]
    assert request["max_points"] == 7 and request["sandbox"] == IMAGE.removeprefix("docker://")
    assert "clew tune steer --in %IN --out %OUT" in request["arguments"]
    space = {key: from_panda(key, each) for key, each in request["opt_space"].items()}
    assert space == {"train.optimizer.lr": Parameter(log=(1e-3, 1e-1))}
    (work / "in.json").write_text(json.dumps({"points": [], "opt_space": request["opt_space"]}))
    filled = {"%IN": "in.json", "%OUT": "input.json", "%NUM_POINTS": "1", "%MAX_POINTS": "7"}
    done(*(filled.get(word, word) for word in shlex.split(request["arguments"])[1:]))
    (point,) = json.loads((work / "input.json").read_text())
    (work / "input.json").write_text(json.dumps(point))
    payload = next(str(each["value"]) for each in document["jobParameters"] if "evaluate" in str(each.get("value")))
    done(*shlex.split(urllib.parse.unquote(payload))[1:])
    assert json.loads((work / "output.json").read_text())["status"] == 0
    used = yaml.safe_load((work / "run" / "config.yaml").read_text())["train"]
    assert used["batch_size"] == 50 and used["optimizer"]["lr"] == point["train.optimizer.lr"]


@pytest.mark.parametrize(
    "parameter",
    [
        Parameter(uniform=(0, 1)),
        Parameter(uniform=(2, 9), integer=True),
        Parameter(log=(1e-4, 1)),
        Parameter(log=(1, 64), integer=True),
        Parameter(choice=("a", 2, None)),
        Parameter(uniform=(0, 1), step=0.25),
    ],
)
def test_a_space_comes_back_from_pandas_to_panda(parameter: Parameter) -> None:
    assert from_panda("x", json.loads(json.dumps(to_panda(parameter)))) == parameter


def test_options_that_panda_does_not_support_are_reported(work: Path) -> None:
    with pytest.raises(ConfigError, match="does not support conditions"):
        to_panda(Parameter(uniform=(0, 1), when={"a": 1}))
    with pytest.raises(ConfigError, match=r"panda\.out"):
        task_arguments(Site(scheduler="panda", container=IMAGE), BatchRequest(), training_task("tracking"))
    assert "takes tasks, not jobs" in clew("prepare", "my.yaml", "--on", "panda").err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--workers", "2"), {"coreCount": 8}),
        (("--workers", "4", "--cpus", "2", "--memory", "3G"), {"coreCount": 8, "ramCount": 1536}),
        (("--gpus", "1", "--wall-time", "90m"), {"architecture": "#&nvidia", "maxWalltime": 2}),
        (("--cpus", "1", "--memory", "2G"), {"coreCount": None, "ramCount": 2048}),
    ],
)
def test_resources_of_a_training_reach_the_task(options: tuple[str, ...], expected: dict[str, Any], work: Path) -> None:
    made = task(done("train", "my.yaml", *options, "--on", "panda", "--dry-run"))
    assert {name: made.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("train", ("--workers", "16"), "at most 8 cores, not 16 (16 workers of 1 cores)"),
        ("train", ("--gpus", "2"), "--gpus: PanDA gives a job one GPU, not 2"),
        ("train", ("--gpus", "1", "--workers", "2"), "--gpus: PanDA gives a job one GPU, not 2"),
        ("train", ("--nodes", "2"), "--nodes: PanDA cannot honour it"),
        ("train", ("--after", "12"), "--after: PanDA cannot honour it"),
        ("train", ("--requeue",), "--requeue: PanDA cannot honour it"),
        ("train", ("--dataset", "dataset"), "--dataset: a training on PanDA cannot honour it; the job prepares"),
        ("train", ("--time-limit", "2h"), "--time-limit: a training on PanDA cannot honour it; use --wall-time"),
        ("tune", ("--cpus", "2"), "--cpus: a study on PanDA cannot honour it; phpo gives each evaluation one core"),
        ("tune", ("--memory", "4G"), "--memory: a study on PanDA cannot honour it"),
        ("tune", ("--wall-time", "2h"), "--wall-time: a study on PanDA cannot honour it"),
        ("tune", ("--nodes", "2"), "--nodes: a study on PanDA cannot honour it"),
        ("tune", ("--gpus", "4"), "--gpus: PanDA gives a job one GPU, not 4"),
    ],
)
def test_resources_that_panda_cannot_give_are_refused(
    verb: str, options: tuple[str, ...], message: str, work: Path
) -> None:
    words = {"train": ["train"], "tune": ["tune", "run"]}[verb]
    refused = clew(*words, "my.yaml", *options, "--on", "panda", "--dry-run")
    assert refused.code == 2 and message in refused.err and refused.err.count("\n") == 1


def test_options_that_are_settings_reach_the_job(work: Path) -> None:
    words = ("--epochs", "7", "--workers", "2", "--strategy", "downpour", "--output", "seven")
    made = task(done("train", "my.yaml", *words, "--on", "panda", "--dry-run"))
    payload = urllib.parse.unquote(json.dumps(made["jobParameters"]))
    assert all(text in payload for text in ("train.epochs=7", "train.workers=2", "train.strategy=", "downpour"))
    assert made["taskName"].startswith("user.me.seven")


def test_a_study_may_ask_for_a_gpu(work: Path) -> None:
    made = task(done("tune", "run", "my.yaml", "--gpus", "1", "--on", "panda", "--dry-run"))
    assert made["architecture"] == "#&nvidia"
