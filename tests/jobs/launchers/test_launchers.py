"""The contract of launchers, for those that start processes on this machine."""

from __future__ import annotations

from clew.jobs.launchers.launcher import Launcher
from clew.jobs.launchers.ranks import RanksLauncher
from clew.testing import LauncherContract


class TestLocal(LauncherContract):
    launcher = "local"


class TestWarm(LauncherContract):
    launcher = "warm"


class TestRanks(LauncherContract):
    processes = 2

    def make_launcher(self) -> Launcher:
        return RanksLauncher(2)
