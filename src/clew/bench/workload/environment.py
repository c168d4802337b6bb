"""What a workload ran on: devices, container, hashes, environment, and how energy is measured."""

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
from clew.bench.workload.hardware import hardware
from clew.core.config import to_data
from clew.core.files import sha256
from clew.jobs.containers import DIGEST_VARIABLE
from clew.recipe import Recipe
from clew.runs.environment import capture
from clew.training.system_monitor import energy_sources


def device_names(config: WorkloadConfig) -> list[str]:
    """Return the names of the devices of a copy."""
    import torch

    if not devices_per_copy(config):
        return [f"cpu: {capture()['cpu']}"]
    if not torch.cuda.is_available():
        return [str(torch.accelerator.current_accelerator())] * devices_per_copy(config)
    return [torch.cuda.get_device_name(number) for number in range(devices_per_copy(config))]


def containment() -> str:
    """Return the kind of container that this process runs in."""
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "singularity"
    return "docker" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else "none"


def container_digest() -> str | None:
    """Return the digest of the image: the hash of an Apptainer file, or what $CLEW_IMAGE_DIGEST says."""
    image = Path(os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER") or "")
    return f"sha256:{sha256(image)}" if image.is_file() else os.environ.get(DIGEST_VARIABLE) or None


def hashes(config: WorkloadConfig, data: EventData) -> dict[str, str | None]:
    """Return the SHA-256 of data, fixed events, settings, code and container; None if there is none, or not known."""
    text = json.dumps(
        settings.load_settings(config.recipe, config.recipe_settings).data | {"workload": to_data(config)},
        sort_keys=True,
    )
    return {
        "data": data.checksum,
        "fixed_events": data.fixed,
        "config": hashlib.sha256(text.encode()).hexdigest(),
        "code": code_checksum(Path(clew.__file__).parent),
        "container": container_digest(),
    }


def data_facts(recipe: Recipe, data: EventData) -> dict[str, Any]:
    """Return facts about the events, including those of `Recipe.benchmark_facts`."""
    facts = {"synthetic": data.synthetic, "events": dict(data.dataset.splits), "checksum": data.checksum}
    return {**facts, **recipe.benchmark_facts(data.dataset)}


def energy_source() -> str:
    """Return how energy is measured, or why it is not."""
    sources = energy_sources(0)
    return f"{' and '.join(sources)}, sampled twice per second" if sources else "this machine does not measure energy"


def environment() -> dict[str, Any]:
    """Return the environment of a run, the load before the measurement, and limits of clocks and power."""
    import torch

    return {
        **capture(),
        "machine": platform.machine(),
        "torch_build": torch.__version__,
        "threads_there": os.cpu_count(),
        "load_before": round(psutil.getloadavg()[0], 2),
        "hardware": hardware(),
    }
