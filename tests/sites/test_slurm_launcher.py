"""The contract of launchers, for real Slurm."""

from __future__ import annotations

import pytest

from clew.jobs.launchers.launcher import Launcher
from clew.jobs.launchers.slurm import SlurmLauncher
from clew.jobs.sites import load_site
from clew.testing import LauncherContract


@pytest.mark.usefixtures("site")
class TestSlurm(LauncherContract):
    binds_cores = False
    seconds = 90.0

    def make_launcher(self) -> Launcher:
        return SlurmLauncher(load_site("here"))
