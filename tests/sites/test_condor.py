"""Jobs on a real HTCondor pool: the contract of launchers, and the usual steps of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Dataset, Run
from clew.jobs.launchers.condor import CondorLauncher
from clew.jobs.launchers.launcher import Launcher
from clew.jobs.sites import load_site, scheduler_at
from clew.jobs.submitted import find_submitted
from clew.testing import LauncherContract
from tests.cli import clew, done
from tests.sites.condor_pool import Pool
from tests.sites.test_slurm import flat, train, until
from tests.training import weights

__all__ = ["flat"]


@pytest.mark.usefixtures("condor")
class TestCondor(LauncherContract):
    binds_cores = False
    seconds = 90.0

    def make_launcher(self) -> Launcher:
        return CondorLauncher(load_site("here"))


def test_two_workers_train_as_at_home(condor: Pool, flat: Dataset) -> None:
    output = done(*train(flat, "--workers", "2", "--output", "runs/two", "--on", "here", "--follow"))
    assert "finished: runs/two" in output
    done(*train(flat, "--workers", "2", "--output", "runs/home"))
    home = weights(Run.open("runs/home"))
    assert all((tensor == home[name]).all() for name, tensor in weights(Run.open("runs/two")).items())
    listed = done("jobs")
    assert find_submitted("runs/two").job.id in listed and "finished" in listed


def test_a_run_is_stopped_with_a_checkpoint_and_continues(condor: Pool, flat: Dataset) -> None:
    slow = ("--set", "slow=0.03", "--output", "runs/stop", "--on", "here", "--no-follow")
    done(*train(flat, *slow, epochs=400))
    run = Run(Path("runs/stop"))
    until(lambda: run.last("validation") is not None)
    assert "stopped" in done("stop", "runs/stop")
    assert run.state == "stopped" and any(run.path.glob("checkpoints/*.safetensors"))
    epochs = str((run.last("validation") or {})["epoch"] + 2)
    done("train", "--resume", "runs/stop", "--epochs", epochs, "--on", "here", "--follow")
    assert Run.open("runs/stop").state == "finished"


def test_a_job_that_fails_or_is_removed_says_so(condor: Pool, flat: Dataset) -> None:
    failed = clew(*train(flat, "--set", "slow=-1", "--output", "runs/fails", "--on", "here", "--follow"))
    assert failed.code != 0 and "sleep length must be non-negative" in failed.err
    done(*train(flat, "--set", "slow=0.1", "--output", "runs/gone", "--on", "here", "--no-follow", epochs=400))
    until(lambda: Run(Path("runs/gone")).last("step") is not None)
    condor.call("condor_rm", find_submitted("runs/gone").job.id)
    until(lambda: Run(Path("runs/gone")).state != "running")
    removed = clew("follow", "runs/gone")
    assert removed.code != 0 and "cancelled at the scheduler" in removed.err


def test_a_job_that_no_machine_fits_waits_and_can_be_cancelled(condor: Pool, flat: Dataset) -> None:
    done(*train(flat, "--output", "runs/big", "--cpus", "64", "--on", "here", "--no-follow"))
    assert "waiting" in done("jobs")
    assert "cancelled" in done("stop", "runs/big", "--now")


def test_the_pool_offers_what_its_machine_has(condor: Pool) -> None:
    done("site", "check", "here")
    offered = scheduler_at(load_site("here")).capacity()
    assert (offered.nodes, offered.cpus, offered.memory) == (1, 4, 4096 * 2**20)
