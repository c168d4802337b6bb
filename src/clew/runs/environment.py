"""Machine, versions and command of a run, recorded so that results can be explained later. Contains no secrets."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from clew.storage import mask_secrets
from clew.version import __version__

_PACKAGES = (
    "torch",
    "numpy",
    "h5py",
    "awkward",
    "pydantic",
    "safetensors",
    "mpi4py",
    "uproot",
    "pyarrow",
    "optuna",
)


def capture() -> dict[str, Any]:
    """Machine, versions and command, as plain JSON."""
    return {
        "clew": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "cores_allowed": allowed_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "packages": versions(),
        "command": [Path(sys.argv[0]).name, *map(mask_secrets, sys.argv[1:])],
        "commit": _commit(),
    }


def allowed_cores() -> int:
    """Number of cores this process may use. A batch system often grants fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Versions of the packages that results may depend on."""
    return {name: version for name in _PACKAGES if (version := _version(name))}


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    """The git commit of the working folder, with a + if it has changes; empty outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        changes = _git(
            "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all", settings=_no_filters()
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}+" if changes else head


def _no_filters() -> dict[str, str]:
    """Settings that switch off the filters of a checkout: programs that git runs to compare files."""
    names = _git("config", "--name-only", "--get-regexp", r"^filter\.", missing_ok=True).splitlines()
    if any("=" in name for name in names):
        raise OSError("git reads such a name as a setting and its value")
    return {name: "false" if name.endswith(".required") else "" for name in names}


def _git(*arguments: str, settings: Mapping[str, str] | None = None, missing_ok: bool = False) -> str:
    # the working folder may be another person's: its configuration names programs that git would run
    quiet = {"core.fsmonitor": "false", "core.hooksPath": "/dev/null", "protocol.allow": "never", **(settings or {})}
    options = [word for name, value in quiet.items() for word in ("-c", f"{name}={value}")]
    result = subprocess.run(["git", *options, *arguments], capture_output=True, text=True, timeout=5, check=False)
    if not (missing_ok and result.returncode == 1):
        result.check_returncode()
    return result.stdout.strip()
