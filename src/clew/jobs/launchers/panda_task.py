"""The arguments of PanDA's own client for a task: prun for one job, phpo for a search over settings.

Every resource of a request becomes an argument or is refused by name.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.core.log_tail import last_line
from clew.errors import ConfigError, RunError
from clew.jobs.sites import BatchRequest, Site, mebibytes, refuse_unsupported
from clew.jobs.task import GridSearch, GridTask

SCRIPTS = {"prun": "PrunScript", "phpo": "PhpoScript"}
"""The module of panda-client for each tool."""
_DRY_RUN = """
import json, sys
from pandaclient import {script}
print(json.dumps({script}.main(get_taskparams=True, ext_args=json.loads(sys.argv.pop()), dry_mode=True), default=str))
"""
_STEER = "clew tune steer --in %IN --out %OUT --n %NUM_POINTS --max %MAX_POINTS"
_SPACE = "search_space.json"
_ANY_GPU = "#&nvidia"
"""PanDA's way to ask for a machine with a GPU of NVIDIA."""
_CORES = (1, 8)
"""Numbers of cores that PanDA gives a job."""
UNSUPPORTED_BY_TASKS = {
    "nodes": "a job of PanDA runs on one machine, leave it out",
    "after": "submit the task later",
    "array": "submit one task per job",
    "requeue": "PanDA retries jobs itself, leave it out",
}
"""Fields of a request that no task of PanDA can honour, and what to do instead."""
UNSUPPORTED_BY_STUDIES = {
    **UNSUPPORTED_BY_TASKS,
    "cpus": "phpo gives each evaluation one core",
    "memory": "phpo has no such option",
    "wall_time": "phpo has no such option",
}


def task_arguments(site: Site, request: BatchRequest, task: GridTask) -> tuple[str, list[str]]:
    """The tool of panda-client that submits a task, and its arguments.

    Args:
        site: The profile of PanDA.
        request: The resources of a job.
        task: What the jobs run.

    Raises:
        ConfigError: PanDA cannot honour a field of the request, or the profile lacks a setting.
    """
    if task.search is not None:
        return "phpo", _study_arguments(site, request, task, task.search)
    refuse_unsupported(request, "PanDA", UNSUPPORTED_BY_TASKS)
    arguments = ["--exec", task.command, "--outputs", ",".join(task.outputs)]
    arguments += ["--outDS", output_dataset(site, request), *_location(site), *site.panda.arguments]
    if task.files:
        arguments.append("--useSandbox")  # the files of the working folder travel with the task
    if task.inputs:  # all files go to one job: it trains one model
        arguments += ["--inDS", ",".join(task.inputs), "--nJobs", "1", "--maxNFilesPerJob", "100000"]
    arguments += _resource_arguments(site, request)
    return "prun", [*arguments, "--containerImage", _image(site), "--noBuild"]


def _study_arguments(site: Site, request: BatchRequest, task: GridTask, search: GridSearch) -> list[str]:
    """The arguments of phpo: clew proposes points and evaluates them."""
    with_site = request.at(site).model_copy(update={"wall_time": request.wall_time})  # the site's is always set
    refuse_unsupported(with_site, "a study on PanDA", UNSUPPORTED_BY_STUDIES)
    arguments = ["--steeringExec", _STEER, "--steeringContainer", _image(site).partition("://")[2]]
    arguments += ["--evaluationExec", task.command]
    arguments += ["--evaluationInput", "input.json", "--evaluationOutput", "output.json"]
    arguments += ["--evaluationMeta", "metadata.json", "--evaluationMetrics", "metrics.tgz"]
    arguments += ["--checkPointToSave", "run"]
    arguments += ["--evaluationContainer", _image(site), "--searchSpaceFile", _SPACE]
    arguments += ["--maxPoints", str(search.points), "--nParallelEvaluation", str(search.parallel)]
    arguments += ["--nPointsPerIteration", str(search.parallel)]
    if task.inputs:
        arguments += ["--trainingDS", ",".join(task.inputs)]
    arguments += ["--outDS", output_dataset(site, request), *_location(site), *_gpu_arguments(site, request)]
    return [*arguments, *site.panda.arguments]


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


def _location(site: Site) -> list[str]:
    arguments = ["--site", site.panda.queue] if site.panda.queue else []
    return [*arguments, *(["--cloud", site.panda.cloud] if site.panda.cloud else [])]


def _image(site: Site) -> str:
    image = str(site.container)
    return image if "://" in image else f"docker://{image}"


def output_dataset(site: Site, request: BatchRequest) -> str:
    """The name of the outputs of a task.

    Raises:
        ConfigError: The profile does not set it.
    """
    if site.panda.out is None:
        raise ConfigError(f"{site.name}: set `panda.out`, the name of the outputs, such as user.YOU.{{name}}")
    return site.panda.out.replace("{name}", request.name)


def write_sandbox(task: GridTask, folder: Path) -> None:
    """Write the files that travel with a task into a new folder, from which the client submits it."""
    files = task.files if task.search is None else {**task.files, _SPACE: task.search.space}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def dry_run(site: Site, request: BatchRequest, task: GridTask, environment: Mapping[str, str]) -> dict[str, Any]:
    """The whole task as the client would submit it; nothing leaves this machine.

    Raises:
        ConfigError: A field of the request cannot be honoured.
        RunError: The client does not accept it.
    """
    tool, arguments = task_arguments(site, request, task)
    with tempfile.TemporaryDirectory() as folder:
        write_sandbox(task, Path(folder))
        command = client_command(_DRY_RUN.format(script=SCRIPTS[tool]), [json.dumps(arguments)])
        variables = {**environment, "PANDA_BEHIND_REAL_LB": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RunError(f"{tool} does not accept the task: {last_line(done.stderr or done.stdout)}")
    document: dict[str, Any] = json.loads(lines[-1])
    return document


def client_command(code: str, arguments: Sequence[str]) -> list[str]:
    """The words that run Python code in a process of its own; files of the working folder hide no module."""
    return [sys.executable, "-P", "-c", code, *arguments]
