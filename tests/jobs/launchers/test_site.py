"""Profiles, the scripts made from them, and the states of Slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clew.errors import ConfigError
from clew.jobs import batch_script
from clew.jobs import sites as site
from clew.jobs.launchers import scheduler
from clew.jobs.launchers.launcher import recorded_state
from clew.jobs.launchers.slurm_queue import SlurmRow
from clew.jobs.sites import BatchRequest, Site
from clew.jobs.task import command_task
from tests.cli import clew, done

SITE = Site(
    name="alps",
    scheduler="slurm",
    partition="gpu",
    account="hep",
    modules=("cray-mpich", "python/3.11"),
    environment={"WHERE": "a b"},
    container="/images/clew.sif",
    container_options=("--nv", "--bind=/data"),
    scratch="/scratch/me",
    mpi="pmix",
    interface="hsn0",
    cpus=8,
    gpus=1,
    memory="100G",
    wall_time="12h",
    directives=("--constraint=a100",),
)
SCRIPT = """#!/bin/bash
#SBATCH --job-name=clew-first
#SBATCH --output=/jobs/first/log.txt
#SBATCH --open-mode=append
#SBATCH --chdir={here}
#SBATCH --partition=gpu
#SBATCH --account=hep
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:4
#SBATCH --mem=409600M
#SBATCH --time=720
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --dependency=afterok:11:12
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --constraint=a100
module load cray-mpich python/3.11
export CLEW_CACHE=/scratch/me/clew-cache
export GLOO_SOCKET_IFNAME=hsn0
export NCCL_SOCKET_IFNAME=hsn0
export WHERE='a b'
"""


def test_a_script_has_all_of_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    needs = BatchRequest(name="first", nodes=2, workers=8, after=("11", "12"), requeue=True)
    text = batch_script.slurm_script(
        SITE, needs, command_task(["train", "my.yaml", "--set", "a=[1, 2]"]), "/jobs/first"
    )
    assert text.startswith(SCRIPT.format(here=tmp_path))
    assert "srun --kill-on-bad-exit=1 --mpi=pmix /bin/bash -c" in text
    assert (
        "apptainer exec --nv --bind=/data /images/clew.sif python3 -P -m clew train my.yaml --set 'a=[1, 2]'\n" in text
    )
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_second_signal_does_not_turn_a_stopped_job_into_a_finished_one(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    programs = {"srun": 'shift; exec "$@"', "python": "exit 75", "touch": "exit 143  # ended by the second signal"}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    place = Site(name="here", scheduler="slurm", python=str(tmp_path / "python"))
    text = batch_script.slurm_script(place, BatchRequest(name="first"), command_task(["train"]), str(folder))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "1"}
    ended = subprocess.run(["/bin/bash", "-c", text], env=environment, check=False, timeout=60)
    assert ended.returncode == 75
    assert recorded_state(folder) == "stopped"


def test_a_short_job_is_signalled_a_quarter_before_its_end_and_a_very_short_one_never() -> None:
    assert not [
        each for each in batch_script.slurm_directives(SITE, BatchRequest(wall_time=60), "/jobs") if "signal" in each
    ]
    assert "--signal=USR1@100" in batch_script.slurm_directives(SITE, BatchRequest(wall_time=400), "/jobs")
    assert "--signal=USR1@120" in batch_script.slurm_directives(SITE, BatchRequest(wall_time=3600), "/jobs")


def test_a_profile_is_saved_without_defaults(sites: Path) -> None:
    output = done("site", "add", "mine", "--set", "scheduler=slurm", "--set", "wall_time=12h", "--set", "gpus=4")
    assert "clew site check mine" in output
    assert (sites / "mine.yaml").read_text() == "scheduler: slurm\ngpus: 4\nwall_time: 43200.0\n"
    assert site.load_site("mine").gpus == 4
    assert "mine" in done("site", "list")
    again = clew("site", "add", "mine", "--set", "scheduler=condor")
    assert again.code == 2 and "--replace" in again.err
    done("site", "add", "mine", "--from", str(sites / "mine.yaml"), "--set", "gpus=2", "--replace")
    assert site.load_site("mine").gpus == 2


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEW_SITES", str(tmp_path / "sites"))
    return tmp_path / "sites"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scheduler=slrm",), "scheduler"),
        (("scheduler=slurm", "partitin=gpu"), "did you mean 'partition'?"),
        (("scheduler=slurm", "wall_time=soon"), "a number and a unit"),
        (("scheduler=slurm", "memory=lots"), "expected a size such as 16G"),
        (("scheduler=panda",), "set `container`"),
        (("scheduler=slurm", "wall_time=2h", "wall_time_limit=1h"), "more than wall_time_limit"),
    ],
)
def test_a_wrong_profile_is_one_line(words: tuple[str, ...], message: str, sites: Path) -> None:
    outcome = clew("site", "add", "odd", *(word for each in words for word in ("--set", each)))
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1
    assert not sites.exists()


def test_an_unknown_site_and_options_without_one_are_reported(sites: Path) -> None:
    assert "has none, add one" in clew("train", "tracking", "--on", "nowhere").err
    assert "--nodes goes with --on SITE" in clew("train", "tracking", "--nodes", "2").err
    assert "no sites in" in done("site", "list")


def test_more_time_than_a_site_gives_is_refused() -> None:
    with pytest.raises(ConfigError, match="allows 43200"):
        BatchRequest(wall_time="2d").at(SITE.model_copy(update={"wall_time_limit": 43200}))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (SlurmRow("1", "PENDING", "Resources", ""), "for free nodes"),
        (
            SlurmRow("1", "PENDING", "QOSMaxJobsPerUserLimit", ""),
            "because a limit is reached (QOSMaxJobsPerUserLimit)",
        ),
        (SlurmRow("1", "PENDING", "Nodes required for job are DOWN", ""), "(Nodes required for job are DOWN)"),
        (SlurmRow("1", "RUNNING", "None", "n[1-2]"), "on n[1-2]"),
        (SlurmRow("1", "NODE_FAIL", "None", "n1"), "a node failed under it"),
        (SlurmRow("1", "TIMEOUT", "TimeLimit", "n1"), "killed at the end of its wall time"),
        (SlurmRow("1", "OUT_OF_MEMORY", "None", "n1"), "killed because it used more memory than it requested"),
    ],
)
def test_states_of_slurm_have_messages(row: SlurmRow, words: str) -> None:
    assert row.words() == words


def test_a_command_that_is_not_there_or_hangs_has_failed() -> None:
    assert scheduler.call(["no-such-command"]).returncode == 127
    assert scheduler.call([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.2).returncode == 124


@pytest.mark.parametrize(
    ("codes", "state"), [([], None), (["0"], "finished"), (["0", "75"], "stopped"), (["0", "75", "2"], "failed")]
)
def test_an_array_ended_as_the_worst_of_its_jobs(codes: list[str], state: str | None, tmp_path: Path) -> None:
    for number, code in enumerate(codes):
        (tmp_path / f"end-{number}.json").write_text(f'{{"code": {code}}}')
    assert recorded_state(tmp_path) == state
