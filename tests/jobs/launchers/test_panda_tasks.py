"""Tasks of PanDA from submission to their end: the real panda-client talks to an emulated server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew import Dataset
from clew.cli.start.recipe_template import starting_points
from clew.client.grid_tasks import script_task
from clew.core.config import to_yaml
from clew.jobs import submitted
from clew.jobs.launchers.launcher import watch
from clew.jobs.sites import BatchRequest
from clew.recipe import shipped
from clew.settings import load_settings
from tests.cli import clew, done
from tests.jobs.launchers.panda_server import EmulatedPanda
from tests.tuning import RECIPE, template
from tests.tuning.conftest import flat

__all__ = ["flat"]

SCRIPT = """
import sys
import clew
from tools.losses import loss

assert sys.argv[1:] == ["--lr", "0.1"]
for epoch in range(2):
    clew.log(step=epoch, loss=loss(epoch))
clew.log(val_accuracy=0.75)
print("trained")
"""


@pytest.fixture
def panda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedPanda]:
    """A server, a profile of it, and an empty folder to work in."""
    pytest.importorskip("pandaclient")
    server = EmulatedPanda()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("CLEW_SERVER", "CLEW_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("CLEW_SITES", str(tmp_path / "sites"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    profile = {"scheduler": "panda", "container": "docker://registry.example.org/clew:0.1", "poll_seconds": "0.1"}
    words = [*(f"{name}={value}" for name, value in profile.items()), "panda.out=user.me.{name}"]
    done("site", "add", "grid", *(word for each in words for word in ("--set", each)))
    yield server
    server.close()


def own_script(folder: Path) -> None:
    """A script that imports a module of its folder."""
    (folder / "tools").mkdir()
    (folder / "tools" / "losses.py").write_text("def loss(epoch):\n    return 1.0 / (1 + epoch)\n")
    (folder / "mine.py").write_text(SCRIPT)
    (folder / "unrelated.txt").write_text("stays here")


@pytest.mark.long
def test_a_script_is_submitted_recorded_listed_followed_and_returns_its_metrics(panda: EmulatedPanda) -> None:
    own_script(Path())
    printed = done("submit", "--kind", "script", "mine.py", "--on", "grid", "--", "--lr", "0.1")
    (number,) = panda.tasks
    assert f"job {number} at grid" in printed and "follow" in printed
    row = done("jobs")
    assert str(number) in row and "waiting" in row and "PanDA has not registered it yet" in row
    panda.set_status(number, "running", "running")
    assert "running, job running at ANALY_GPU" in done("jobs")
    job = Path("..") / "job"
    pilot = threading.Thread(target=panda.run_job, args=(number, job))
    pilot.start()
    followed = done("follow", "mine")
    pilot.join()
    assert f"job {number} finished" in followed
    assert sorted(path.name for path in job.iterdir()) == ["mine.py", "run", "run.tgz", "tools", "userJobMetadata.json"]
    logs = done("logs", "mine")
    assert f"task {number} done" in logs and "rucio download user.me.mine_run.tgz/" in logs
    (report,) = panda.tasks[number].metadata.values()
    assert report["user_job_metadata"]["metrics"] == {"accuracy": 0.75}
    assert len(report["user_job_metadata"]["figures"]["epoch_seconds"]) > 0


def test_an_own_recipe_trains_in_its_sandbox_and_reports_its_times(panda: EmulatedPanda, flat: Dataset) -> None:
    Path("own_numbers.py").write_text("FACTOR = 1\n")
    Path("own.py").write_text(Path(RECIPE).read_text() + "\nimport own_numbers\nassert own_numbers.FACTOR == 1\n")
    Path("unrelated.py").write_text("stays = 'here'\n")
    settings = {**template(flat, tune={}, train={"epochs": 2}).data, "recipe": "own.py"}
    Path("my.yaml").write_text(to_yaml(settings))
    done("train", "my.yaml", "--on", "grid", "--output", "first", "--no-follow")
    (number,) = panda.tasks
    assert panda.run_job(number, Path("../job")) == 0
    assert {path.name for path in Path("../job").glob("*.py")} == {"own.py", "own_numbers.py"}
    (report,) = panda.tasks[number].metadata.values()
    figures = report["user_job_metadata"]["figures"]
    assert len(figures["epoch_seconds"]) == 2 and min(figures["epoch_seconds"]) > 0
    assert figures["load_seconds"] > 0 and figures["data_wait_seconds"] >= 0
    assert "finished" in done("follow", "first")


SETTINGS = ("--set", "prepare.input=rucio:user.me:events", "--on", "grid")


@pytest.mark.parametrize("like", starting_points())
def test_a_new_recipe_passes_a_dry_run(like: str, panda: EmulatedPanda) -> None:
    done("init", "my_recipe", "--like", like)
    document = dry_run("my_recipe.py")
    assert document["taskName"] == "user.me.my_recipe/" and document["dsForIN"] == "user.me:events"
    assert "panda_job%20my_recipe.yaml%20" in json.dumps(document) and not panda.tasks


@pytest.mark.parametrize("recipe", [each for each in shipped() if each not in ("columns", "lightning")])
def test_a_shipped_recipe_passes_a_dry_run(recipe: str, panda: EmulatedPanda) -> None:
    assert f"panda_job%20{recipe}%20" in json.dumps(dry_run(recipe)) and not panda.tasks


def dry_run(recipe: str) -> dict[str, Any]:
    """The task that the client would submit."""
    output = done("submit", recipe, *SETTINGS, "--dry-run")
    document: dict[str, Any] = json.loads(output[output.index("\n{") :])
    return document


def test_a_new_recipe_is_submitted_with_its_modules_and_nothing_else(panda: EmulatedPanda, tmp_path: Path) -> None:
    done("init", "my_recipe", "--like", "tracking")
    done("submit", "my_recipe.py", *SETTINGS)
    (number,) = panda.tasks
    panda.unpack(number, tmp_path / "job")
    sent = {path.name for path in (tmp_path / "job").iterdir()}
    assert sent == {"my_recipe.yaml", "my_recipe.py", "my_recipe_network.py"}
    loaded = load_settings(str(tmp_path / "job" / "my_recipe.yaml"))
    assert loaded.recipe.location == str(tmp_path / "job" / "my_recipe.py")


def test_a_job_that_fails_is_reported_with_its_own_error(panda: EmulatedPanda) -> None:
    Path("broken.py").write_text("raise ValueError('no such column: pt')\n")
    done("submit", "--kind", "script", "broken.py", "--on", "grid")
    (number,) = panda.tasks
    assert panda.run_job(number, Path("../job")) == 1
    followed = clew("follow", "broken")
    assert followed.code == 1 and "failed" in followed.err and "ValueError: no such column: pt" in followed.err
    assert "exit code 1" in done("logs", "broken")
    assert "ValueError" in done("jobs")


def test_a_task_that_panda_breaks_says_why(panda: EmulatedPanda) -> None:
    Path("hello.sh").write_text("echo hello\n")
    done("submit", "--kind", "script", "hello.sh", "--on", "grid")
    (number,) = panda.tasks
    panda.set_status(number, "broken").error_dialog = "no such dataset: user.me.events"
    followed = clew("follow", "hello")
    assert followed.code == 1 and "broken: no such dataset: user.me.events" in followed.err


def test_a_task_is_cancelled_once(panda: EmulatedPanda) -> None:
    Path("hello.sh").write_text("echo hello\n")
    done("submit", "--kind", "script", "hello.sh", "--on", "grid")
    (number,) = panda.tasks
    early = clew("stop", "hello")
    assert early.code == 2 and "PanDA has not registered it yet; try again in a few minutes" in early.err
    panda.set_status(number, "running", "running")
    printed = done("stop", "hello")
    assert "aborting" in printed and f"job {number} cancelled" in printed
    assert "cancelled" in done("stop", "hello")


def test_a_submission_that_panda_rejects_leaves_nothing(panda: EmulatedPanda) -> None:
    Path("hello.sh").write_text("echo hello\n")
    done("submit", "--kind", "script", "hello.sh", "--on", "grid")
    rejected = clew("submit", "--kind", "script", "hello.sh", "--on", "grid")
    assert rejected.code == 2 and "is already queued for outDS=user.me.hello" in rejected.err
    assert [path.name for path in Path("jobs").iterdir()] == ["hello"]


def test_a_server_that_does_not_answer_is_named_and_the_last_state_stays(panda: EmulatedPanda) -> None:
    Path("hello.sh").write_text("echo hello\n")
    done("submit", "--kind", "script", "hello.sh", "--on", "grid")
    (number,) = panda.tasks
    panda.set_status(number, "running", "running")
    assert "running" in done("jobs")
    panda.close()
    row = done("jobs", "list")
    assert "running" in row and "does not answer" in row
    stopped = clew("stop", "hello")
    assert stopped.code == 2 and "was not cancelled" in stopped.err


def test_tasks_from_python(panda: EmulatedPanda, tmp_path: Path) -> None:
    own_script(Path())
    task = script_task("mine.py", ["--lr", "0.1"])
    request = BatchRequest(name="python", memory="2G", container="docker://registry.example.org/other:2")
    folder = tmp_path / "jobs" / "python"
    job = submitted.submit("grid", task, request=request, folder=folder)
    number = int(job.job.id)
    assert panda.tasks[number].parameters["ramCount"] == 2048
    assert panda.tasks[number].parameters["container_name"] == "docker://registry.example.org/other:2"
    assert panda.run_job(number, tmp_path / "job") == 0
    assert list(watch(job.launcher, job.job)) == ["finished"]
    end = job.launcher.end(job.job)
    assert end is not None and end.code == 0
    assert submitted.find_submitted(folder) == job


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--store", "s3://bucket/outputs"), "--store: a script's run returns with the task of grid"),
        (("--priority", "3"), "--priority needs a server"),
        (("--set", "train.epochs=2"), "--set and --dataset: a script takes its own arguments"),
        (("--nodes", "2"), "--nodes: PanDA cannot honour it"),
        (("--requeue", "2"), "--requeue: PanDA cannot honour it"),
        (("--workers", "16"), "at most 8 cores, not 16"),
    ],
)
def test_options_that_a_script_on_panda_cannot_honour_are_refused(
    options: tuple[str, ...], message: str, panda: EmulatedPanda
) -> None:
    Path("hello.sh").write_text("echo hello\n")
    refused = clew("submit", "--kind", "script", "hello.sh", *options, "--on", "grid")
    assert refused.code == 2 and message in refused.err and refused.err.count("\n") == 1
    assert not panda.tasks and not Path("jobs").exists()


def test_a_study_is_submitted_and_recorded(panda: EmulatedPanda, flat: Dataset) -> None:
    settings = template(flat, tune={"trials": 7}, train={"epochs": 1}).data
    Path("my.yaml").write_text(to_yaml(settings))
    done("tune", "run", "my.yaml", "--on", "grid", "--no-follow")
    (number,) = panda.tasks
    assert panda.tasks[number].parameters["hpoRequestData"]["max_points"] == 7
    assert "tune" in done("jobs") and str(number) in done("site", "jobs")
