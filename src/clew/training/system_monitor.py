"""Measures processor, memory, device and power during a training. A thread writes the values to the records."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from clew.runs import Run

_POWERCAP = Path("/sys/class/powercap")


class SystemMonitor:
    """Writes a `usage` record every `period` seconds during its block, and one at the end.

    `energy` is in joules since the start of the block. It is the sum over the parts of the machine that report it: the
    processor package (RAPL, counted only by the first rank of a host) and the device of the rank (NVML). It is null if
    no part reports it.
    """

    def __init__(self, run: Run, rank: int, *, first: bool, device: int | None, period: float) -> None:
        self._run, self._rank, self._period = run, rank, period
        self._process = psutil.Process(os.getpid())
        self._meters: list[Any] = [*(_Package.find_all() if first else ()), *_Device.find(device)]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> SystemMonitor:
        self._process.cpu_percent()  # later calls measure from this one
        self._energy_at_start = [meter.joules() for meter in self._meters]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        # on a full disk the training itself reports the error, with its own file
        with contextlib.suppress(OSError), self._run.writer(f"usage-{self._rank}") as writer:
            while not self._stopped.wait(self._period):
                writer.write("usage", **self._sample())
            writer.write("usage", **self._sample())

    def _sample(self) -> dict[str, Any]:
        memory = self._process.memory_info().rss
        sample: dict[str, Any] = {"cpu": self._process.cpu_percent() / 100, "memory": memory, "energy": None}
        if self._meters:
            pairs = zip(self._meters, self._energy_at_start, strict=True)
            sample["energy"] = sum(meter.since(before) for meter, before in pairs)
        for meter in self._meters:
            sample.update(meter.sample())
        return sample


def energy_sources(device: int | None) -> list[str]:
    """Return the names of the parts of this machine that report their energy."""
    sources = {"processor (RAPL)": _Package.find_all(), "device (NVML)": _Device.find(device)}
    return [name for name, meters in sources.items() if list(meters)]


class _Package:
    """The energy counter of a processor package, in microjoules. It wraps around."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text()) / 1e6

    @classmethod
    def find_all(cls) -> Iterator[_Package]:
        for folder in sorted(_POWERCAP.glob("*-rapl:[0-9]")) if _POWERCAP.is_dir() else ():
            with contextlib.suppress(OSError, ValueError):  # on most machines only root may read it
                package = cls(folder)
                package.joules()
                yield package

    def joules(self) -> float:
        return int(self._file.read_text()) / 1e6

    def since(self, before: float) -> float:
        return (self.joules() - before) % self._range

    def sample(self) -> dict[str, Any]:
        return {}


class _Device:
    """An NVIDIA device, read through its management library if that is installed (extra `nvml`)."""

    def __init__(self, library: Any, number: int) -> None:
        self._library, self._number = library, number
        self._handle = _handle(library, number)

    @classmethod
    def find(cls, number: int | None) -> Iterator[_Device]:
        if number is None:
            return
        with contextlib.suppress(Exception):  # no library, no driver, or a device of another vendor
            import pynvml

            pynvml.nvmlInit()
            device = cls(pynvml, number)
            device.joules()
            yield device

    def joules(self) -> float:
        return float(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def since(self, before: float) -> float:
        return self.joules() - before

    def sample(self) -> dict[str, Any]:
        import torch

        library, handle = self._library, self._handle
        return {
            "device": library.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "device_memory": library.nvmlDeviceGetMemoryInfo(handle).used,
            "device_tensors": torch.cuda.max_memory_allocated(self._number),
            "power": library.nvmlDeviceGetPowerUsage(handle) / 1e3,
        }


def _handle(library: Any, number: int) -> Any:
    """Return the handle of the device with this number in torch.

    The management library also counts devices that are hidden from this process, so its numbers may differ.
    """
    import torch

    try:
        return library.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(number).uuid}")
    except Exception:  # an old torch or driver, or a part of a device
        return library.nvmlDeviceGetHandleByIndex(number)
