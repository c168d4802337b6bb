"""Every resource that can be requested reaches a scheduler's text, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew.errors import ConfigError
from clew.jobs.launchers.condor import CondorLauncher
from clew.jobs.launchers.slurm import SlurmLauncher
from clew.jobs.sites import BatchRequest, Site
from clew.jobs.task import TrainTask

REQUESTS: dict[str, Any] = {
    "name": "special",
    "nodes": 3,
    "workers": 6,
    "cpus": 5,
    "gpus": 2,
    "memory": "7G",
    "wall_time": 7260.0,
    "after": ("12",),
    "array": 11,
    "requeue": True,
    "container": "/images/other.sif",
}
LAUNCHERS: dict[str, type[SlurmLauncher] | type[CondorLauncher]] = {"slurm": SlurmLauncher, "condor": CondorLauncher}


def text_of(scheduler: str, folder: Path, **fields: Any) -> str:
    launcher = LAUNCHERS[scheduler](Site(name="here", scheduler=scheduler), BatchRequest(**fields))
    task = TrainTask(recipe="tracking", output="run")
    return launcher.script(task, folder) + (
        launcher.executable(task, folder) if isinstance(launcher, CondorLauncher) else ""
    )


def test_every_field_of_a_request_is_listed() -> None:
    assert set(REQUESTS) == set(BatchRequest.model_fields)


@pytest.mark.parametrize("scheduler", LAUNCHERS)
@pytest.mark.parametrize("field", REQUESTS)
def test_every_field_changes_what_is_submitted_or_is_refused(scheduler: str, field: str, tmp_path: Path) -> None:
    base = {"workers": 3} if field == "nodes" else {}
    request = {**base, field: REQUESTS[field]}
    if field in LAUNCHERS[scheduler].unsupported:
        with pytest.raises(ConfigError, match=f"^--{field.replace('_', '-')}: {scheduler} cannot honour it; "):
            text_of(scheduler, tmp_path, **request)
    else:
        assert text_of(scheduler, tmp_path, **request) != text_of(scheduler, tmp_path, **base)
