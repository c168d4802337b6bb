"""The parts of this machine that trials get, so that none takes what is another's."""

from __future__ import annotations

import os
from pathlib import Path

from clew.errors import ConfigError
from clew.jobs.launchers.launcher import Slot, core_share
from clew.runs.environment import allowed_cores


def trial_slots(parallel: int | None, ranks: int, *, oversubscribe: bool = False) -> list[Slot]:
    """A room for each trial that runs at a time, with cores, and devices where there are any, for each of its ranks.

    `parallel` None: as many as fit.

    Raises:
        ConfigError: more is asked for than there is.
    """
    cores, devices = available_cores(), device_count()
    fit = min(len(cores) // ranks, devices // ranks if devices else len(cores))
    wanted = parallel or max(fit, 1)
    if wanted > max(fit, int(oversubscribe)) and not oversubscribe:
        there = f"{len(cores)} cores" + (f" and {devices} devices" if devices else "")
        told = f"{wanted} trials {f'of {ranks} ranks' if ranks > 1 else 'at a time'} do not fit on {there}"
        raise ConfigError(f"{told}; lower --parallel or --ranks-per-trial, or say --oversubscribe")
    return [Slot(core_share(cores, place, wanted), _dealt(devices, place, wanted, ranks)) for place in range(wanted)]


def _dealt(devices: int, place: int, slots: int, ranks: int) -> tuple[int, ...] | None:
    if not devices:
        return None
    each = max(devices // slots, min(ranks, devices))
    return tuple((place * each + number) % devices for number in range(each))


def available_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(allowed_cores()))


def device_count() -> int:
    """How many accelerators there are; torch, which takes long to load, is only asked where there may be some."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return 0
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0
