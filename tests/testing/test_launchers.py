"""The suite of launchers: each fault of a launcher fails the test that is about it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.testing import failed_tests

SOURCE = '''
import itertools
from clew.jobs.launchers.launcher import Slot, Supervision, find_launcher
from clew.testing import LauncherContract

NUMBERS = itertools.count()


class Wraps:
    name = "wraps"

    def __init__(self):
        self.local = find_launcher("local")

    def start(self, task, *, folder, slot=None, supervision=None):
        job = self.local.start(task, folder=folder, slot=slot, supervision=supervision)
        return type(job)(self.name, job.id, job.folder)

    def __getattr__(self, name):
        return getattr(self.local, name)


class TestCorrect(LauncherContract):
    launcher = Wraps


class Optimist(Wraps):
    """Calls every job that has ended finished."""
    def state(self, job):
        state = self.local.state(job)
        return "finished" if state in ("failed", "stopped", "lost") else state


class TestOptimist(LauncherContract):
    launcher = Optimist


class Repeats(Wraps):
    """Starts the task of a folder again."""
    def start(self, task, *, folder, slot=None, supervision=None):
        job = self.local.start(task, folder=folder / str(next(NUMBERS)), slot=slot, supervision=supervision)
        return type(job)(self.name, job.id, job.folder)



class TestRepeats(LauncherContract):
    launcher = Repeats


class Forgets(Wraps):
    """Ignores the slot and the environment."""
    def start(self, task, *, folder, slot=None, supervision=None):
        return super().start(task, folder=folder)


class TestForgets(LauncherContract):
    launcher = Forgets


class Deaf(Wraps):
    """Does not stop jobs."""
    def stop(self, job):
        pass


class TestDeaf(LauncherContract):
    launcher, seconds = Deaf, 10.0
'''


STARTS, FAILS = "test_the_task_of_a_folder_starts_once", "test_a_job_that_fails_is_reported"
SLOT, STOPS = "test_a_job_uses_its_cores_and_its_environment", "test_a_job_can_be_stopped"
CHOSEN = {
    "TestCorrect": [STARTS, SLOT],
    "TestOptimist": [FAILS],
    "TestRepeats": [STARTS],
    "TestForgets": [SLOT],
    "TestDeaf": [STOPS],
}


@pytest.mark.long
def test_each_fault_fails_its_test(tmp_path: Path) -> None:
    failed = failed_tests(tmp_path, SOURCE, CHOSEN)
    assert failed == {
        "TestOptimist": {FAILS},
        "TestRepeats": {STARTS},
        "TestForgets": {SLOT},
        "TestDeaf": {STOPS},
    }
    running = [process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])]
    assert not running, "the suite leaves processes of failed tests"
