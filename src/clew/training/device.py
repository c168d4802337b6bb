"""The device on which a process computes."""

from __future__ import annotations

import torch

from clew.errors import ConfigError


def find_device(number: int = 0, name: str = "auto") -> torch.device:
    """Return the device of a process.

    Args:
        number: Rank of the process on its host. If `name` has no number, devices are assigned in turn.
        name: "auto" for the accelerator of this machine, of any vendor, or the CPU if there is none; otherwise a
            device of torch: "cpu", "cuda", "cuda:1", "mps".

    Raises:
        ConfigError: There is no such device here.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind, _, index = name.partition(":")
    if kind == "cpu" or (kind == "auto" and accelerator is None):
        return torch.device("cpu")
    count = torch.accelerator.device_count()
    if accelerator is None or kind not in ("auto", accelerator.type) or (index and int(index) >= count):
        here = [f"{accelerator.type}:{each}" for each in range(count)] if accelerator is not None else []
        raise ConfigError(f"train.device {name}: no such device here; torch finds {', '.join(['cpu', *here])}")
    return torch.device(accelerator.type, int(index) if index else number % count)


def select_device(number: int, name: str) -> torch.device:
    """Like `find_device`, and make the device the current one of this process, as CUDA graphs need it."""
    device = find_device(number, name)
    if device.type != "cpu" and torch.accelerator.device_count() > 1:
        torch.accelerator.set_device_index(device)
    return device


def device_or_default(number: int, name: str) -> torch.device:
    """Return the device on which a run was trained, or that of this machine if it does not exist here."""
    try:
        return find_device(number, name)
    except ConfigError:
        return find_device(number)
