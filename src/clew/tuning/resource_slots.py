"""The cores and devices of this machine, divided among trials that run at the same time."""

from __future__ import annotations

import os
from pathlib import Path

from clew.errors import ConfigError
from clew.jobs.launchers.launcher import Slot, core_share
from clew.runs.environment import allowed_cores


def trial_slots(parallel: int | None, ranks: int, *, oversubscribe: bool = False) -> list[Slot]:
    """Return one slot per trial that runs at a time, with its own cores and devices.

    Args:
        parallel: Number of trials at a time; None: as many as fit.
        ranks: Processes per trial.
        oversubscribe: Allow more trials than there are cores or devices.

    Raises:
        ConfigError: More trials are requested than fit.
    """
    cores, devices = available_cores(), device_count()
    fit = min(len(cores) // ranks, devices // ranks if devices else len(cores))
    count = parallel or max(fit, 1)
    if count > fit and not oversubscribe:
        machine = f"{len(cores)} cores" + (f" and {devices} devices" if devices else "")
        trials = f"{count} trials {f'of {ranks} ranks' if ranks > 1 else 'at a time'}"
        raise ConfigError(
            f"{trials} do not fit on {machine}; lower --parallel or --ranks-per-trial, or add --oversubscribe"
        )
    return [
        Slot(core_share(cores, index, count), _slot_devices(devices, index, count, ranks)) for index in range(count)
    ]


def _slot_devices(devices: int, index: int, slots: int, ranks: int) -> tuple[int, ...] | None:
    if not devices:
        return None
    per_slot = max(devices // slots, min(ranks, devices))
    return tuple((index * per_slot + number) % devices for number in range(per_slot))


def available_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(allowed_cores()))


def device_count() -> int:
    """Return the number of accelerators. torch, which is slow to import, is only imported if there may be some."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return 0
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0
