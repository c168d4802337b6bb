"""The files that HTCondor gets. `tests/sites/test_condor.py` runs them in a real pool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clew.errors import ConfigError, RunError
from clew.jobs.launchers.condor import CondorLauncher
from clew.jobs.sites import BatchRequest, Site
from clew.jobs.task import FillCacheTask, command_task

SITE = Site(
    name="lxplus",
    scheduler="condor",
    account="group_u_ATLAS.u_zp",
    modules=("cuda/12.4",),
    memory="4G",
    gpus=1,
    wall_time="2h",
    directives=('+JobFlavour = "longlunch"',),
)
SUBMIT = """universe = vanilla
executable = /afs/jobs/first/job.sh
arguments = $(Process)
batch_name = clew-clew
initialdir = {here}
output = /afs/jobs/first/log.txt
error = /afs/jobs/first/log.txt
log = /afs/jobs/first/condor.log
getenv = True
request_cpus = 2
request_gpus = 2
request_memory = 8192M
accounting_group = group_u_ATLAS.u_zp
+MaxRuntime = 7200
kill_sig = SIGTERM
job_max_vacate_time = 120
on_exit_remove = (ExitBySignal == False) && (ExitCode != 75)
+JobFlavour = "longlunch"
queue 1
"""
BODY = """#!/bin/bash
module load cuda/12.4
rm -f /afs/jobs/first/end.json
timeout --preserve-status --signal=USR1 7080 {python} -P -m clew train 'my recipe.py' --workers 2 &
trap 'kill -TERM $!' TERM  # HTCondor signals this script only; the task needs it to write a checkpoint
wait $!
while kill -0 $! 2>/dev/null; do wait $!; done
wait $!
code=$?
[ $code = 75 ] && [ ! -e /afs/jobs/first/stop ] && exit 75
echo "{{\\"code\\": $code}}" > /afs/jobs/first/end.json
exit $code
"""


def test_the_submit_file_and_the_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    condor, folder = CondorLauncher(SITE, BatchRequest(workers=2, requeue=True)), Path("/afs/jobs/first")
    task = command_task(["train", "my recipe.py"])
    assert condor.script(task, folder) == SUBMIT.format(here=tmp_path)
    assert condor.executable(task, folder) == BODY.format(python=sys.executable)


def test_an_array_has_a_log_and_an_exit_code_each(tmp_path: Path) -> None:
    condor = CondorLauncher(SITE, BatchRequest(array=3))
    part = FillCacheTask(recipe="tracking", parts=3)
    text, body = condor.script(part, tmp_path), condor.executable(part, tmp_path)
    assert "queue 3\n" in text and f"output = {tmp_path}/log-$(Process).txt" in text and "on_exit_remove" not in text
    assert f"-m clew.cli.run_task {tmp_path}/task.json $1 &\n" in body and f"> {tmp_path}/end-$1.json" in body


def test_unsupported_options_are_reported() -> None:
    with pytest.raises(ConfigError, match="no dependencies"):
        CondorLauncher(SITE, BatchRequest(after=("12",))).script(command_task([]), Path("/x"))
    with pytest.raises(ConfigError, match="one machine each"):
        CondorLauncher(SITE, BatchRequest(nodes=2)).script(command_task([]), Path("/x"))


def test_without_its_commands_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="no such command here"):
        CondorLauncher(SITE).start(command_task(["--version"]), folder=tmp_path / "job")
    assert not (tmp_path / "job").exists()
