"""The settings of a workload: which are fixed, and the accuracy that a correct run reaches."""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clew.core.config import Section
from clew.errors import ConfigError
from clew.training.config import Count

KIND = "workload"
ACCURACY, PADDED = "accuracy", "accuracy_padded"
"""Metrics of the recipe: without padding, and with padding counted as in the publication."""
PUBLISHED = {"events": 1100, "epochs": 5, "batch_size": 16}
PUBLISHED_BAND = (0.955, 0.960)
"""Range of the accuracy with padding counted, for the published configuration on the public Delphes files: 0.9576 to
0.9579 were published, plus the spread over seeds."""
BANDS: dict[tuple[int, int, int], tuple[float, float]] = {(32, 2, 4): (0.75, 0.93)}
"""Range of the accuracy without padding on synthetic events, by events, epochs and batch size: the 99% prediction
interval (Student) from seeds 1 to 5 (0.826, 0.840, 0.842, 0.819, 0.865 on 2 threads), not the default seed."""
_PICKLES = (".pkl.bz2", ".pkl")
FIXED = {
    "particleflow": (
        "generator.kind=parametric",
        "model.kind=graph",
        "metrics.jets=false",
        "train.optimizer.name=adam",
        "train.optimizer.lr=1e-4",
        "train.optimizer.lr_rule=none",
        "train.schedule.name=constant",
        "train.schedule.warmup=null",
        "train.clip=null",
    )
}
"""Settings that define a workload, independent of the defaults of its recipe: events that do not need Pythia, the
published network and optimiser, and validations that do not need fastjet."""


class WorkloadConfig(Section):
    """The settings of a workload."""

    recipe: str = "particleflow"
    name: str = "particleflow"
    events: Count = 32
    epochs: Count = 2
    batch_size: Count = 4
    """Events per batch and device."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Devices per copy, one rank per device; 0: processors only; None: one if there is one."""
    copies: Count = 1
    """Copies that run at the same time, each on its own cores and devices."""
    threads: Count | None = None
    """Threads per copy. Default: the cores of the machine, divided among the copies."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    seed: int = 0
    seeds: Count = 1
    """Number of trainings with different seeds, one after the other, to measure the spread."""
    deterministic: bool = False
    inference: bool = False
    batch_scan: tuple[Count, ...] = ()
    """More batch sizes to measure."""
    data: tuple[str, ...] = ()
    """Files to use instead of synthetic events."""
    fixed_events: str | None = None
    """A folder of synthetic events with checksums (`clew bench events`), as images have it; None: generate events."""
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Accuracy without padding up to which the time is measured. Default: the lower edge of the pass band."""
    settings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if self.data and self.fixed_events is not None:
            raise ValueError("events come from `data` or from `fixed_events`, not from both")
        return self

    @property
    def recipe_settings(self) -> tuple[str, ...]:
        """Settings of the recipe: the fixed ones, then those of the user."""
        return (*FIXED.get(self.recipe, ()), *self.settings)

    @property
    def comparable(self) -> str | None:
        """Why the accuracy cannot be compared with the published one; None if it can."""
        if not self.data:
            return "events are synthetic; use the public Delphes files with --data"
        if not all(name.endswith(_PICKLES) for name in self.data):
            return f"the public Delphes files are named with --data '*{_PICKLES[0]}'"
        if self.settings:
            return "settings of the recipe were changed"
        if any(getattr(self, name) != value for name, value in PUBLISHED.items()):
            return "the published result used --events 1100 --epochs 5 --batch-size 16"
        return None

    @property
    def band(self) -> tuple[str, tuple[float, float]] | None:
        """Metric and range in which a correct run ends; None if no range is known."""
        shape = (self.events, self.epochs, self.batch_size)
        if self.data:
            return (PADDED, PUBLISHED_BAND) if self.comparable is None else None
        band = BANDS.get(shape) if not self.settings and self.recipe == "particleflow" else None
        return (ACCURACY, band) if band else None


def devices_per_copy(config: WorkloadConfig) -> int:
    """Return the number of devices per copy."""
    return min(1, device_count()) if config.gpus is None else config.gpus


def check_devices(config: WorkloadConfig) -> None:
    """Check that there are enough devices for all copies.

    Raises:
        ConfigError: There are too few.
    """
    needed, available = config.copies * devices_per_copy(config), device_count()
    if needed > available:
        option = f"--gpus {devices_per_copy(config)}" + (
            f" for each of {config.copies} copies" if config.copies > 1 else ""
        )
        raise ConfigError(
            f"{option}: torch finds {available or 'no'} accelerator{'s' * (available > 1)}; use --gpus 0 for processors"
        )


def device_count() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def threads_per_copy(config: WorkloadConfig) -> int:
    """Return the number of threads per copy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.threads or max(1, cores // config.copies)
