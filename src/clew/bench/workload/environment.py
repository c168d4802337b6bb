"""What a workload ran on and with: devices, container, hashes, environment, and who measures its energy."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import psutil

import clew
from clew import settings
from clew.bench.workload.config import WorkloadConfig, devices_per_copy
from clew.bench.workload.event_data import EventData, code_checksum
from clew.core.config import to_data
from clew.core.files import sha256
from clew.runs.environment import capture
from clew.training.system_monitor import energy_sources


def device_names(config: WorkloadConfig) -> list[str]:
    """Of a copy, by name."""
    import torch

    if not devices_per_copy(config):
        return [f"cpu: {capture()['cpu']}"]
    if not torch.cuda.is_available():
        return [str(torch.accelerator.current_accelerator())] * devices_per_copy(config)
    return [torch.cuda.get_device_name(number) for number in range(devices_per_copy(config))]


def containment() -> str:
    """What this process runs in."""
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "singularity"
    return "docker" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else "none"


def _container_hash() -> str | None:
    image = Path(os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER") or "")
    return sha256(image) if image.is_file() else os.environ.get("CLEW_IMAGE_DIGEST")


def hashes(config: WorkloadConfig, found: EventData) -> dict[str, str | None]:
    """SHA-256 of data, settings, code and container; None where there is none or nobody says."""
    told = json.dumps(
        settings.load_settings(config.recipe, config.given).data | {"workload": to_data(config)}, sort_keys=True
    )
    return {
        "data": found.checksum,
        "config": hashlib.sha256(told.encode()).hexdigest(),
        "code": code_checksum(Path(clew.__file__).parent),
        "container": _container_hash(),
    }


def data_facts(chosen: Any, found: EventData) -> dict[str, Any]:
    """What the events are."""
    from clew.bench.workload import inference_speed

    facts = {"synthetic": found.synthetic, "events": dict(found.dataset.splits), "checksum": found.checksum}
    return {**facts, **inference_speed.padding(chosen.recipe, found.dataset)}


def energy_source() -> str:
    """Where joules come from, or why there are none."""
    found = energy_sources(0)
    return f"{' and '.join(found)}, sampled twice a second" if found else "this machine does not tell its energy"


def environment() -> dict[str, Any]:
    """As a run has it, and a little more."""
    import torch

    return {
        **capture(),
        "machine": platform.machine(),
        "torch_build": torch.__version__,
        "threads_there": os.cpu_count(),
        "load_before": round(psutil.getloadavg()[0], 2),
    }


def load_warnings(load: float | None, cores: int | None) -> list[str]:
    """A warning where others were at work on this machine before a measurement began."""
    if load is None or not cores or load <= cores / 4:
        return []
    return [f"Others were at work here: a load of {load:.1f} on {cores} cores before it began. Figures show that too."]
