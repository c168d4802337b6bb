"""Tasks for PanDA: prun for a training, phpo for a study. Its own client hands them in, as the user."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.core.log_tail import last_line
from clew.errors import ConfigError, RunError
from clew.jobs.sites import BatchRequest, Site

_SCRIPTS = {"prun": "PrunScript", "phpo": "PhpoScript"}
_DRY = """
import json, sys
from pandaclient import {script}
print(json.dumps({script}.main(get_taskparams=True, ext_args=json.loads(sys.argv.pop()), dry_mode=True), default=str))
"""
_STEER = "clew tune steer --in %IN --out %OUT --n %NUM_POINTS --max %MAX_POINTS"
OUTPUTS = ("model.safetensors", "metrics.json", "metrics.tgz")
"""What a training brings back, beside `userJobMetadata.json`, which PanDA keeps with the task."""


def training(site: Site, needs: BatchRequest, recipe: str, settings: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """The words of prun: every job prepares its files and trains; its metrics come back with the task."""
    given = [word for setting in settings for word in ("--set", setting)]
    files = ["--grid", "%IN" if inputs else ""]
    words = ["--exec", shlex.join(["clew", "train", recipe, *given, *files])]
    words += ["--outputs", ",".join(OUTPUTS)]
    return [*words, *_common(site, needs, recipe, inputs), "--containerImage", _image(site), "--noBuild"]


def study(
    site: Site,
    needs: BatchRequest,
    recipe: str,
    settings: Sequence[str],
    inputs: Sequence[str],
    *,
    space: Path,
    points: int,
    parallel: int,
) -> list[str]:
    """The words of phpo: clew proposes points and judges them."""
    given = [word for setting in settings for word in ("--set", setting)]
    words = ["--steeringExec", _STEER, "--steeringContainer", _image(site).partition("://")[2]]
    words += ["--evaluationExec", shlex.join(["clew", "tune", "evaluate", recipe, *given])]
    words += ["--evaluationInput", "input.json", "--evaluationOutput", "output.json"]
    words += ["--evaluationMeta", "metadata.json", "--evaluationMetrics", "metrics.tgz", "--checkPointToSave", "run"]
    words += ["--evaluationContainer", _image(site), "--searchSpaceFile", str(space)]
    words += [
        "--maxPoints",
        str(points),
        "--nParallelEvaluation",
        str(parallel),
        "--nPointsPerIteration",
        str(parallel),
    ]
    if inputs:
        words += ["--trainingDS", ",".join(inputs)]
    return [*words, "--outDS", _out(site, needs), *_where(site), *site.panda.arguments]


def _common(site: Site, needs: BatchRequest, recipe: str, inputs: Sequence[str]) -> list[str]:
    words = ["--outDS", _out(site, needs), *_where(site), *site.panda.arguments]
    if Path(recipe).is_file():
        words.append("--useSandbox")  # the file travels with the task
    if inputs:  # all files to one job: it trains one model
        words += ["--inDS", ",".join(inputs), "--nJobs", "1", "--maxNFilesPerJob", "100000"]
    words += ["--memory", str(_megabytes(needs.memory))] if needs.memory else []
    return [*words, "--nCore", str(needs.ranks * (needs.cpus or site.cpus))]


def _where(site: Site) -> list[str]:
    words = ["--site", site.panda.queue] if site.panda.queue else []
    return [*words, *(["--cloud", site.panda.cloud] if site.panda.cloud else [])]


def _image(site: Site) -> str:
    image = str(site.container)
    return image if "://" in image else f"docker://{image}"


def _out(site: Site, needs: BatchRequest) -> str:
    if site.panda.out is None:
        raise ConfigError(f"{site.name}: give `panda.out`, the name of outputs, as user.YOU.{{name}}")
    return site.panda.out.replace("{name}", needs.name)


def _megabytes(memory: str) -> int:
    scale = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}.get(memory[-1])
    return int(memory) if scale is None else max(1, round(int(memory[:-1]) * scale))


def dry(tool: str, words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """The whole task as the client would hand it in; nothing leaves this machine.

    Raises:
        RunError: the client does not take it.
    """
    code = _DRY.format(script=_SCRIPTS[tool])
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(list(words))],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PANDA_BEHIND_REAL_LB": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = last_line(done.stderr or done.stdout)
        raise RunError(f"{tool} does not take the task: {last}")
    task: dict[str, Any] = json.loads(lines[-1])
    return task


def submit(tool: str, words: Sequence[str]) -> None:
    """Have the client hand a task in; what it says goes to the terminal, and it asks there for what it needs.

    Raises:
        ConfigError: there is no client.
        RunError: it was not taken.
    """
    told = problems()
    if told:
        raise ConfigError(told[0])
    module = f"from pandaclient import {_SCRIPTS[tool]}; {_SCRIPTS[tool]}.main()"
    done = subprocess.run([sys.executable, "-c", module, *words], check=False)
    if done.returncode:
        raise RunError(f"{tool} did not hand the task in (exit code {done.returncode}); its own words are above")


def problems() -> list[str]:
    """What keeps tasks from being handed in from here."""
    if importlib.util.find_spec("pandaclient") is None:
        return ["panda-client is not installed: pip install 'clew[panda]'"]
    return []
