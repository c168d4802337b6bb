"""Jobs in container images: the words that run them, and machines that cannot. tests/sites runs real images."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clew.client.job import Resources, Slots
from clew.errors import ConfigError
from clew.jobs.agent.job_target import JobTarget, Offer
from clew.jobs.containers import Container, Runtime, mounted_folders
from clew.jobs.launchers.local import LocalLauncher
from clew.jobs.launchers.slurm import SlurmLauncher
from clew.jobs.sites import BatchRequest, Site, scheduler_at
from clew.jobs.task import command_task
from tests.cli import clew, done
from tests.jobs.launchers.test_panda import flat, task, work

__all__ = ["flat", "work"]

OTHER = "docker://registry.example.org/other:2"


@pytest.fixture
def no_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Apptainer, Singularity and Podman."""
    monkeypatch.setenv("PATH", str(tmp_path))


def slurm_text(runtime: Runtime, *, container: str | None = None) -> str:
    site = Site(name="here", scheduler="slurm", container="clew", container_runtime=runtime)
    text = SlurmLauncher(site, BatchRequest(container=container)).script(command_task(["train"]), Path("/jobs/a"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    return text


def test_slurm_runs_an_image_by_the_runtime_of_the_profile() -> None:
    here = Path.cwd()
    assert " apptainer exec clew python3 -m clew train\n" in slurm_text("apptainer")
    assert " singularity exec clew python3 -m clew train\n" in slurm_text("singularity")
    podman = slurm_text("podman")
    assert f" --volume={here}:{here} --volume=/jobs/a:/jobs/a --workdir={here} clew python3 -m clew train\n" in podman
    assert "export CLEW_IMAGE_DIGEST=$(podman image inspect" in podman
    pyxis = slurm_text("pyxis")
    assert f"srun --kill-on-bad-exit=1 --container-image=clew --container-mounts={here}:{here},/jobs/a:/jobs/a" in pyxis
    assert "/stopped python3 -m clew train\n" in pyxis


def test_a_job_may_bring_its_own_image() -> None:
    assert " apptainer exec /images/mine.sif python3" in slurm_text("apptainer", container="/images/mine.sif")


def test_a_scheduler_refuses_a_runtime_that_it_does_not_have() -> None:
    site = Site(name="pool", scheduler="condor", container="clew", container_runtime="pyxis")
    with pytest.raises(ConfigError, match=r"^pool: condor has no pyxis; choose apptainer, singularity, podman$"):
        scheduler_at(site)


def test_no_value_of_a_variable_is_on_the_command_line_of_podman() -> None:
    words = Container("clew", "podman").words(["/data"], "/work")
    assert "--env=CLEW_*" in words and words[-2:] == ["--workdir=/work", "clew"]


def test_folders_are_mounted_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    paths: list[str | Path | None] = [
        tmp_path / "a",
        tmp_path / "a" / "b",
        f"{tmp_path}/a/*.h5",
        tmp_path / "missing",
        "relative",
        None,
    ]
    assert mounted_folders(*paths) == [str(tmp_path / "a")]
    assert mounted_folders("/") == []


@pytest.mark.usefixtures("no_runtime")
def test_a_machine_without_a_runtime_refuses_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--container clew: this machine has no apptainer, singularity, podman in"):
        LocalLauncher("clew").start(command_task(["--version"]), folder=tmp_path / "job")
    assert not (tmp_path / "job").exists()
    slots = JobTarget().slots(Offer(gpus=0))
    assert not slots.containers and not Resources(container="clew").fits(slots) and Resources().fits(slots)


def test_a_job_in_an_image_goes_to_an_agent_that_runs_images() -> None:
    assert Resources(container="clew").fits(Slots(containers=True))
    assert not Resources(container="clew").fits(Slots())


def test_container_options_of_a_site_are_in_its_profile() -> None:
    with pytest.raises(ConfigError, match=r"^--container-option: set `container_options` in the profile of alps$"):
        JobTarget.named("alps", ("--nv",))


def test_container_needs_a_site_or_a_server(tmp_path: Path) -> None:
    outcome = clew("train", "tracking", "--container", "clew")
    assert outcome.code == 2 and "--container goes with --on SITE" in outcome.err


@pytest.mark.parametrize("verb", [("train",), ("submit",), ("tune", "run")])
def test_panda_gets_the_image(verb: tuple[str, ...], work: Path) -> None:
    output = done(*verb, "my.yaml", "--on", "panda", "--container", OTHER, "--dry-run")
    document = task(output)
    assert OTHER in str(document) and "registry.example.org/clew" not in str(document)
