"""What a failed attempt leaves behind, and what full, read-only and moved folders are reported as."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clew import Run
from tests.cli import Outcome, script

pytestmark = pytest.mark.timeout(240)
PREPARE = ("prepare", "top_tagger.py", "--input", "events.h5", "--output")
TRAIN = ("train", "top_tagger.py", "--dataset", "dataset", "--epochs", "1")
Mounted = Callable[..., Path]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    """Mounts small or read-only file systems. This needs root."""
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=True)


def check(outcome: Outcome, *words: str) -> None:
    """One line with these words, exit code 2, nothing of HDF5 and no temporary name."""
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert not [word for word in words if word not in outcome.err], outcome.err
    assert not [word for word in ("Traceback", "errno", ".tmp", ".partial", "buf =") if word in outcome.err], (
        outcome.err
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_is_named_and_nothing_is_left(tagger: Path, mounted: Mounted, workers: str) -> None:
    disk = mounted("size=16k")
    outcome = script(*PREPARE, disk / "set", "--workers", workers, folder=tagger)
    check(outcome, str(disk / "set"), "the disk is full")
    assert not list(disk.iterdir())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_cache_is_named(tagger: Path, mounted: Mounted, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    disk = mounted("size=8k")
    monkeypatch.setenv("CLEW_CACHE", str(disk / "cache"))
    outcome = script(*PREPARE, "other", "--workers", workers, folder=tagger)
    check(outcome, f"cache {disk / 'cache'}", "the disk is full")
    assert not list(tagger.glob("*other*"))


def test_a_checkpoint_that_does_not_fit_is_named(tagger: Path, mounted: Mounted) -> None:
    disk = mounted("size=100k")
    outcome = script(*TRAIN, "--set", "hidden=5000", "--output", disk / "run", folder=tagger)
    check(outcome, "last.safetensors: cannot be written: the disk is full")


def test_a_read_only_disk_is_named(tagger: Path, mounted: Mounted) -> None:
    disk = mounted("ro")
    check(script(*PREPARE, disk / "set", folder=tagger), f"{disk / 'set'}: ", "read-only")
    check(script(*TRAIN, "--output", disk / "run", folder=tagger), f"{disk / 'run'}: ", "read-only")


def test_a_moved_dataset_leads_to_the_option(tagger: Path) -> None:
    assert script(*TRAIN, "--output", "runs/a", folder=tagger).code == 0
    (tagger / "dataset").rename(tagger / "moved")
    outcome = script("evaluate", "runs/a", folder=tagger)
    check(outcome, str(tagger / "dataset"), "moved", "--dataset")
    again = script("train", "--resume", "runs/a", "--epochs", "2", folder=tagger)
    check(again, str(tagger / "dataset"), "--dataset")
    again = script("train", "--resume", "runs/a", "--epochs", "2", "--dataset", "moved", folder=tagger)
    assert again.code == 0, again


def test_a_run_is_not_resumed_with_another_dataset(tagger: Path) -> None:
    assert script(*TRAIN, "--output", "runs/a", folder=tagger).code == 0
    assert script(*PREPARE, "other", "--set", "prepare.seed=5", folder=tagger).code == 0
    outcome = script("train", "--resume", "runs/a", "--epochs", "2", "--dataset", "other", folder=tagger)
    check(outcome, "other: not the dataset that runs/a was trained on")


def test_a_run_without_its_settings_is_still_listed(tagger: Path) -> None:
    assert script(*TRAIN, folder=tagger).code == 0
    (tagger / "runs/top_tagger-001/config.yaml").unlink()
    listed = script("runs", "list", folder=tagger)
    assert listed.code == 0
    assert "top_tagger-001" in listed.out and "damaged" in listed.out and "config.yaml is missing" in listed.out


def test_a_run_that_made_no_step_is_marked_and_its_number_is_used_again(tagger: Path) -> None:
    good = (tagger / "top_tagger.py").read_text()
    (tagger / "top_tagger.py").write_text(good.replace('batch["x"].float()', 'batch["x"].flloat()'))
    for _ in range(2):
        assert script(*TRAIN, folder=tagger).code == 2
    assert [path.name for path in (tagger / "runs").iterdir()] == ["top_tagger-001"]
    assert "failed, no step" in script("runs", "list", folder=tagger).out
    (tagger / "top_tagger.py").write_text(good)
    assert script(*TRAIN, folder=tagger).code == 0
    assert [path.name for path in (tagger / "runs").iterdir()] == ["top_tagger-001"]
    assert Run.open(tagger / "runs/top_tagger-001").state == "finished"
    assert script(*TRAIN, folder=tagger).code == 0
    assert sorted(path.name for path in (tagger / "runs").iterdir()) == ["top_tagger-001", "top_tagger-002"]


def test_the_folder_of_a_failed_attempt_can_be_named_again(tagger: Path) -> None:
    good = (tagger / "top_tagger.py").read_text()
    (tagger / "top_tagger.py").write_text(good.replace('batch["x"].float()', 'batch["x"].flloat()'))
    assert script(*TRAIN, "--output", "runs/mine", folder=tagger).code == 2
    (tagger / "top_tagger.py").write_text(good)
    assert script(*TRAIN, "--output", "runs/mine", folder=tagger).code == 0
    refused = script(*TRAIN, "--output", "runs/mine", folder=tagger)
    check(refused, "runs/mine exists already")


def test_workers_that_mostly_communicate_get_advice(edited: Callable[..., Path]) -> None:
    asleep = "import multiprocessing, time\n        "
    asleep += 'time.sleep(0.05 * multiprocessing.current_process().name.endswith("-2"))  # rank 1: rank 0 waits for it'
    folder = edited('return model(batch["x"].float())', f'{asleep}\n        return model(batch["x"].float())')
    words = ("--workers", "2", "--batch-size", "8", "--set", "train.threads=1", "--set", "train.monitor_seconds=null")
    slow = script(*TRAIN, *words, folder=folder)
    assert slow.code == 0, slow
    shares = script("runs", "show", "runs/top_tagger-001", folder=folder).out
    assert "of the time was communication" in slow.out, shares
    assert "--workers 1" in slow.out and "--batch-size" in slow.out and "advice" in shares
    shutil.rmtree(folder / "runs")
    alone = script(*TRAIN, folder=folder)
    assert "communication" not in alone.out
