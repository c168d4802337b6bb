"""Clocks and power limits of processors and GPUs: a speed means little without them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_POWERCAP = Path("/sys/class/powercap")
_PAUSE = 1.0
"""Seconds between two samples of the clocks."""


def hardware() -> dict[str, Any]:
    """Return limits of clocks (MHz) and power (W), by processor and GPU; None where the machine does not report one."""
    return {"cpu": _processor(), "gpus": [_gpu(library, handle) for library, handle in _handles()]}


def _processor() -> dict[str, Any]:
    clock = _processor_clock()
    return {
        "min_mhz": (clock.min or None) if clock else None,
        "max_mhz": (clock.max or None) if clock else None,
        "governor": _read(_CPUFREQ / "scaling_governor"),
        "power_limits_w": _power_limits(),
    }


def _processor_clock() -> Any:
    with contextlib.suppress(Exception):  # psutil raises several kinds of errors on machines that hide their clocks
        return psutil.cpu_freq()
    return None


def _power_limits() -> dict[str, float]:
    """Return the power limits of the processor packages (RAPL), by package and name of the limit."""
    limits = {}
    for package in sorted(_POWERCAP.glob("*-rapl:[0-9]")) if _POWERCAP.is_dir() else ():
        for name_file in sorted(package.glob("constraint_*_name")):
            value = _read(package / name_file.name.replace("_name", "_power_limit_uw"))
            if value is not None:
                limits[f"{_read(package / 'name')} {_read(name_file)}"] = int(value) / 1e6
    return limits


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _handles() -> Iterator[tuple[Any, Any]]:
    """Yield the library of NVIDIA and the handle of each GPU; nothing where there is no library or no driver."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            yield pynvml, pynvml.nvmlDeviceGetHandleByIndex(number)


def _gpu(library: Any, handle: Any) -> dict[str, Any]:
    def value(name: str, *arguments: Any, scale: float = 1.0) -> float | None:
        with contextlib.suppress(Exception):  # a device may not report all of them
            return float(getattr(library, name)(handle, *arguments)) / scale
        return None

    name = library.nvmlDeviceGetName(handle)
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name),
        "max_mhz": value("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_SM),
        "max_memory_mhz": value("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_MEM),
        "power_limit_w": value("nvmlDeviceGetEnforcedPowerLimit", scale=1e3),
        "default_power_limit_w": value("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e3),
    }


@dataclass
class ClockMeter:
    """Clocks during a measurement. `sample` is called often and reads them at most once per second."""

    values: dict[str, list[float]] = field(default_factory=dict)
    """Samples in MHz: `cpu` is the mean over the cores, `gpu 0` the first GPU."""
    _last: float = float("-inf")

    def sample(self) -> None:
        """Read the clocks, unless that was done a moment ago."""
        if time.monotonic() - self._last < _PAUSE:
            return
        self._last = time.monotonic()
        clock = _processor_clock()
        if clock is not None and clock.current:
            self.values.setdefault("cpu", []).append(float(clock.current))
        for number, (library, handle) in enumerate(_handles()):
            with contextlib.suppress(Exception):
                value = library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)
                self.values.setdefault(f"gpu {number}", []).append(float(value))

    def summary(self) -> dict[str, dict[str, float]]:
        """Return minimum, mean and maximum of each clock in MHz, with the number of samples."""
        return {
            name: {
                "min_mhz": min(values),
                "mean_mhz": round(sum(values) / len(values), 1),
                "max_mhz": max(values),
                "samples": len(values),
            }
            for name, values in self.values.items()
        }
