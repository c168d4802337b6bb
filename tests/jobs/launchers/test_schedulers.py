"""The table of schedulers, and those of other packages."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from clew.errors import RunError
from clew.jobs.launchers.launcher import LOCAL_LAUNCHERS, SCHEDULERS, launcher_class, scheduler_names
from clew.jobs.launchers.slurm import SlurmLauncher
from clew.jobs.sites import BatchRequest, Site, site_launcher
from clew.jobs.task import PackedTraining, PackTask, TrainTask, command_task, read_task, task_file, write_task


class MyQueueLauncher(SlurmLauncher):
    name = "myqueue"


def test_every_launcher_of_the_tables_can_be_loaded_and_has_its_name() -> None:
    for name in (*LOCAL_LAUNCHERS, *SCHEDULERS):
        assert launcher_class(name).name == name


def test_an_entry_point_adds_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"{__name__}:MyQueueLauncher"
    points = importlib.metadata.EntryPoints([importlib.metadata.EntryPoint("myqueue", place, "clew.launchers")])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **options: points.select(**options))
    assert "myqueue" in scheduler_names()
    assert isinstance(site_launcher(Site(name="there", scheduler="myqueue")), SlurmLauncher)


def test_an_unknown_scheduler_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="no scheduler 'slrm'; did you mean 'slurm'"):
        Site(name="there", scheduler="slrm")


@pytest.mark.parametrize(
    ("request_", "lines"),
    [
        (BatchRequest(nodes=2, workers=8, cpus=4, gpus=1, memory="2G"), ("--gres=gpu:4", "--mem=8192M", "--ntasks=8")),
        (BatchRequest(workers=8, cpus=4, gpus=1, memory="2G"), ("--gpus=8", "--mem-per-cpu=512M")),
        (BatchRequest(cpus=4, gpus=2, memory="2G"), ("--gres=gpu:2", "--mem=2048M", "--cpus-per-task=4")),
    ],
)
def test_resources_per_worker_become_those_of_slurm(request_: BatchRequest, lines: tuple[str, ...]) -> None:
    script = SlurmLauncher(Site(name="s", scheduler="slurm"), request_).script(command_task(["--version"]), Path("/j"))
    for line in (*lines, f"--cpus-per-task={request_.cpus}"):
        assert f"#SBATCH {line}\n" in script


def test_a_task_comes_back_from_its_file_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    task = PackTask(members=(PackedTraining(folder="/a", task=TrainTask(resume="/run", lease="/lease")),))
    write_task(task, tmp_path)
    assert read_task(task_file(tmp_path)) == task
    assert task_file(tmp_path).stat().st_mode & 0o077 == 0
    task_file(tmp_path).write_text('{"kind": "train", "epoch": 3}')
    with pytest.raises(RunError, match="epoch"):
        read_task(task_file(tmp_path))
