"""What the workload is: its settings, what of them is fixed, and what is known of its accuracy."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from clew.core.config import Section
from clew.errors import ConfigError
from clew.training.config import Count

KIND = "workload"
ACCURACY, PADDED = "accuracy", "accuracy_padded"
"""Metrics of the recipe: over elements that are there, and with padding counted as the published figure does."""
PUBLISHED = {"events": 1100, "epochs": 5, "batch_size": 16}
PUBLISHED_BAND = (0.955, 0.960)
"""Of the accuracy with padding counted, after the published configuration on the public Delphes files: 0.9576 to
0.9579 were published, give or take what seeds do."""
BANDS: dict[tuple[int, int, int], tuple[float, float]] = {(32, 2, 4): (0.75, 0.93)}
"""Of the accuracy without padding on synthetic events, by events, epochs and batch size. From seeds 1 to 5 (0.826,
0.840, 0.842, 0.819, 0.865 on 2 threads), none of them the default: where another lies in 99 of 100 cases (Student)."""
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
"""What a workload is, whatever the recipe's own defaults become: events that need no Pythia, the published network and
optimiser, validations that need no fastjet."""


class WorkloadConfig(Section):
    """What is run."""

    recipe: str = "particleflow"
    name: str = "particleflow"
    events: Count = 32
    epochs: Count = 2
    batch_size: Count = 4
    """For each device."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Devices of each copy, a rank each; 0: processors alone; None: one where there is one."""
    copies: Count = 1
    """That run at the same time, on cores (and devices) of their own."""
    threads: Count | None = None
    """Of each copy; default: the cores there are, shared."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    seed: int = 0
    seeds: Count = 1
    """Trainings one after the other that differ in their seed, to see the spread."""
    deterministic: bool = False
    inference: bool = False
    batch_scan: tuple[Count, ...] = ()
    """Batch sizes to try besides."""
    data: tuple[str, ...] = ()
    """Files in the place of synthetic events."""
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Accuracy (of elements that are there) whose time is told; default: the lower edge of the pass band."""
    settings: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """Settings for the recipe: what is fixed, then the user's own."""
        return (*FIXED.get(self.recipe, ()), *self.settings)

    @property
    def comparable(self) -> str | None:
        """Why the accuracy is not comparable with the published one; None where it is."""
        if not self.data:
            return "events are synthetic; give the public Delphes files with --data"
        if not all(each.endswith(_PICKLES) for each in self.data):
            return f"the public Delphes files are named with --data '*{_PICKLES[0]}'"
        if self.settings:
            return "settings of the recipe were changed"
        if any(getattr(self, name) != value for name, value in PUBLISHED.items()):
            return "it was published for --events 1100 --epochs 5 --batch-size 16"
        return None

    @property
    def band(self) -> tuple[str, tuple[float, float]] | None:
        """Metric and range within which a sound run ends; None where none is known."""
        shape = (self.events, self.epochs, self.batch_size)
        if self.data:
            return (PADDED, PUBLISHED_BAND) if self.comparable is None else None
        known = BANDS.get(shape) if not self.settings and self.recipe == "particleflow" else None
        return (ACCURACY, known) if known else None


def devices_per_copy(config: WorkloadConfig) -> int:
    """Of each copy."""
    return min(1, device_count()) if config.gpus is None else config.gpus


def check_devices(config: WorkloadConfig) -> None:
    """Whether every copy can have its devices.

    Raises:
        ConfigError: there are too few; it would run on processors, and call them devices.
    """
    needed, found = config.copies * devices_per_copy(config), device_count()
    if needed > found:
        each = f"--gpus {devices_per_copy(config)}" + (
            f" for each of {config.copies} copies" if config.copies > 1 else ""
        )
        raise ConfigError(
            f"{each}: torch finds {found or 'no'} accelerator{'s' * (found > 1)} here; --gpus 0 is without"
        )


def device_count() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def threads_per_copy(config: WorkloadConfig) -> int:
    """Of each copy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.threads or max(1, cores // config.copies)
