"""Tasks for PanDA: prun for a training, phpo for a study. PanDA's own client submits them, as the user.

PanDA takes whole tasks. Single jobs cannot be submitted or watched, so no agent can serve it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from clew.core.log_tail import last_line
from clew.errors import ConfigError, RunError
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, Supervision
from clew.jobs.sites import BatchRequest, Site, SiteCapacity, mebibytes, refuse_unsupported
from clew.jobs.supervisor import JobEnd
from clew.jobs.task import Task

_SCRIPTS = {"prun": "PrunScript", "phpo": "PhpoScript"}
_DRY_RUN = """
import json, sys
from pandaclient import {script}
print(json.dumps({script}.main(get_taskparams=True, ext_args=json.loads(sys.argv.pop()), dry_mode=True), default=str))
"""
_STEER = "clew tune steer --in %IN --out %OUT --n %NUM_POINTS --max %MAX_POINTS"
OUTPUTS = ("model.safetensors", "metrics.json", "metrics.tgz")
"""What a training returns, besides `userJobMetadata.json`, which PanDA keeps with the task."""
_ANY_GPU = "#&nvidia"
"""PanDA's way to ask for a machine with a GPU of NVIDIA."""
_CORES = (1, 8)
"""Numbers of cores that PanDA gives a job."""
_UNSUPPORTED_BY_TASKS = {
    "nodes": "a job of PanDA runs on one machine, leave it out",
    "after": "submit the task later",
    "requeue": "PanDA retries jobs itself, leave it out",
}
"""Fields of a request that no task of PanDA can honour, and what to do instead."""
_UNSUPPORTED_BY_STUDIES = {
    **_UNSUPPORTED_BY_TASKS,
    "cpus": "phpo gives each evaluation one core",
    "memory": "phpo has no such option",
    "wall_time": "phpo has no such option",
}
_GRID_JOB = ("python3", "-m", "clew.cli.training.panda_job")
"""The entry point of a training on the grid: a recipe, files separated by commas, then settings."""


class PandaLauncher:
    """PanDA in the table of schedulers. It answers in one line what cannot be done there."""

    name: ClassVar[str] = "panda"
    takes_jobs: ClassVar[bool] = False
    needs_container: ClassVar[bool] = True

    def __init__(self, site: Site | None = None, request: BatchRequest | None = None) -> None:
        self.site, self.request = site, request or BatchRequest()

    def _refuse(self) -> NoReturn:
        name = self.site.name if self.site is not None else self.name
        raise ConfigError(f"{name}: PanDA takes tasks, not jobs; use `clew train --on` and `clew tune run --on`")

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        self._refuse()

    def script(self, task: Task, folder: Path) -> str:
        self._refuse()

    def state(self, job: LaunchedJob) -> JobState:
        self._refuse()

    def end(self, job: LaunchedJob) -> JobEnd | None:
        self._refuse()

    def explain(self, job: LaunchedJob) -> str:
        self._refuse()

    def stop(self, job: LaunchedJob) -> None:
        self._refuse()

    def kill(self, job: LaunchedJob) -> None:
        self._refuse()

    def problems(self) -> list[str]:
        return problems()

    def capacity(self) -> SiteCapacity:
        name = self.site.name if self.site is not None else self.name
        raise ConfigError(f"{name}: an agent cannot watch single jobs of PanDA; use `clew train --on {name}` there")


def training_arguments(
    site: Site, request: BatchRequest, recipe: str, settings: Sequence[str], inputs: Sequence[str]
) -> list[str]:
    """The arguments of prun: one job prepares the files and trains; its metrics return with the task."""
    refuse_unsupported(request, "PanDA", _UNSUPPORTED_BY_TASKS)
    command = shlex.join([*_GRID_JOB, recipe, "%IN" if inputs else "", *settings])
    arguments = ["--exec", command, "--outputs", ",".join(OUTPUTS)]
    return [*arguments, *_common(site, request, recipe, inputs), "--containerImage", _image(site), "--noBuild"]


@dataclass(frozen=True)
class StudySize:
    """The space of a study, and how many points it evaluates."""

    space: Path
    points: int
    parallel: int


def study_arguments(
    site: Site, request: BatchRequest, recipe: str, settings: Sequence[str], inputs: Sequence[str], size: StudySize
) -> list[str]:
    """The arguments of phpo: clew proposes points and evaluates them."""
    refuse_unsupported(_with_defaults_of(site, request), "a study on PanDA", _UNSUPPORTED_BY_STUDIES)
    options = [word for setting in settings for word in ("--set", setting)]
    arguments = ["--steeringExec", _STEER, "--steeringContainer", _image(site).partition("://")[2]]
    arguments += ["--evaluationExec", shlex.join(["clew", "tune", "evaluate", recipe, *options])]
    arguments += ["--evaluationInput", "input.json", "--evaluationOutput", "output.json"]
    arguments += ["--evaluationMeta", "metadata.json", "--evaluationMetrics", "metrics.tgz"]
    arguments += ["--checkPointToSave", "run"]
    arguments += ["--evaluationContainer", _image(site), "--searchSpaceFile", str(size.space)]
    arguments += ["--maxPoints", str(size.points), "--nParallelEvaluation", str(size.parallel)]
    arguments += ["--nPointsPerIteration", str(size.parallel)]
    if inputs:
        arguments += ["--trainingDS", ",".join(inputs)]
    arguments += ["--outDS", _output_dataset(site, request), *_location(site), *_gpu_arguments(site, request)]
    return [*arguments, *site.panda.arguments]


def _common(site: Site, request: BatchRequest, recipe: str, inputs: Sequence[str]) -> list[str]:
    arguments = ["--outDS", _output_dataset(site, request), *_location(site), *site.panda.arguments]
    if Path(recipe).is_file():
        arguments.append("--useSandbox")  # the file travels with the task
    if inputs:  # all files go to one job: it trains one model
        arguments += ["--inDS", ",".join(inputs), "--nJobs", "1", "--maxNFilesPerJob", "100000"]
    return [*arguments, *_resource_arguments(site, request)]


def _resource_arguments(site: Site, request: BatchRequest) -> list[str]:
    """The resources of a job: cores rounded up to what PanDA accepts, memory per core, hours, a GPU."""
    whole = request.at(site).in_one_process()
    needed = whole.cpus or 1
    cores = next((count for count in _CORES if count >= needed), None)
    if cores is None:
        product = f"{request.workers} workers of {needed // request.workers} cores"
        raise ConfigError(f"--workers, --cpus: PanDA gives a job at most {_CORES[-1]} cores, not {needed} ({product})")
    arguments = ["--nCore", str(cores)]
    if whole.memory:
        arguments += ["--memory", str(math.ceil(mebibytes(whole.memory) / cores))]
    if request.wall_time is not None:
        arguments += ["--maxWalltime", str(math.ceil(request.wall_time / 3600))]
    return [*arguments, *_gpu_arguments(site, request)]


def _gpu_arguments(site: Site, request: BatchRequest) -> list[str]:
    gpus = (site.gpus if request.gpus is None else request.gpus) * request.workers
    if gpus > 1:
        raise ConfigError(f"--gpus: PanDA gives a job one GPU, not {gpus}; use --gpus 1 with --workers 1")
    return ["--architecture", _ANY_GPU] if gpus else []


def _with_defaults_of(site: Site, request: BatchRequest) -> BatchRequest:
    """The request with what the site's profile sets; its wall time has always a default and does not count."""
    return request.at(site).model_copy(update={"wall_time": request.wall_time})


def _location(site: Site) -> list[str]:
    arguments = ["--site", site.panda.queue] if site.panda.queue else []
    return [*arguments, *(["--cloud", site.panda.cloud] if site.panda.cloud else [])]


def _image(site: Site) -> str:
    image = str(site.container)
    return image if "://" in image else f"docker://{image}"


def _output_dataset(site: Site, request: BatchRequest) -> str:
    if site.panda.out is None:
        raise ConfigError(f"{site.name}: set `panda.out`, the name of the outputs, such as user.YOU.{{name}}")
    return site.panda.out.replace("{name}", request.name)


def dry_run(tool: str, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """The whole task as the client would submit it; nothing leaves this machine.

    Raises:
        RunError: the client does not accept it.
    """
    code = _DRY_RUN.format(script=_SCRIPTS[tool])
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(list(arguments))],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PANDA_BEHIND_REAL_LB": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = last_line(done.stderr or done.stdout)
        raise RunError(f"{tool} does not accept the task: {last}")
    task: dict[str, Any] = json.loads(lines[-1])
    return task


def submit(tool: str, arguments: Sequence[str]) -> None:
    """Have the client submit a task. Its output goes to the terminal, where it also asks for what it needs.

    Raises:
        ConfigError: there is no client.
        RunError: it was not submitted.
    """
    reasons = problems()
    if reasons:
        raise ConfigError(reasons[0])
    module = f"from pandaclient import {_SCRIPTS[tool]}; {_SCRIPTS[tool]}.main()"
    done = subprocess.run([sys.executable, "-c", module, *arguments], check=False)
    if done.returncode:
        raise RunError(f"{tool} did not submit the task (exit code {done.returncode}); its messages are above")


def problems() -> list[str]:
    """What prevents submissions from this machine."""
    if importlib.util.find_spec("pandaclient") is None:
        return ["panda-client is not installed: pip install 'clew[panda]'"]
    return []
