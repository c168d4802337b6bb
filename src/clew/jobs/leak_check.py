"""What a job leaves behind in its process. Whatever the next job could feel makes the process unfit for it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import inspect
import locale
import logging
import os
import pickle
import random
import signal
import socket
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import clew

_LEAK = 256 << 20
"""Bytes by which a process may grow between its first job and a later one."""
_FILES = 16
"""And the same in open files."""
_ARRAYS: np.random.RandomState = np.random.mtrand._rand
"""What `numpy.random.rand` and its like draw from."""
_FLAGS = (
    "get_default_dtype",
    "get_default_device",
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "get_float32_matmul_precision",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_anomaly_enabled",
)
"""Functions of torch's that tell of its settings."""
_BACKENDS = {"cudnn": ("enabled", "benchmark", "deterministic", "allow_tf32"), "mkldnn": ("enabled",)}


class LeakCheck:
    """A process as it is now, before its first job, to be compared with what it is after one.

    Random numbers are set back to where they were; whatever else has changed is told.
    """

    def __init__(self, code: Sequence[Path] = ()) -> None:
        """`code`: folders whose modules must not keep anything either (see `recipe_folders`)."""
        self._code = [str(each) for each in code]
        self._random = random.getstate(), _ARRAYS.get_state(), _torch_random()
        self._facts = _facts(self._code)
        self._size: tuple[int, int] | None = None

    def reset_random_numbers(self) -> None:
        """Have random numbers begin as they did for the first job."""
        python, arrays, torch = self._random
        random.setstate(python)
        _ARRAYS.set_state(arrays)
        if torch is not None:
            sys.modules["torch"].set_rng_state(torch)

    def leak(self) -> str:
        """What a job has left behind, in a word or two; '' where that is nothing."""
        now = _facts(self._code)
        for name, before in self._facts.items():
            if before is not None and now[name] != before:
                return name
        if _on_device():
            return "memory of a device"
        if self._size is None:
            self._size = _memory(), _open_files()
        if _memory() > self._size[0] + _LEAK:
            gc.collect()
            if _memory() > self._size[0] + _LEAK:
                return "memory"
        return "files" if _open_files() > self._size[1] + _FILES else ""


def recipe_folders(recipes: Iterable[type]) -> list[Path]:
    """The folders of recipes' code, where it is not clew's own."""
    own = Path(clew.__file__).parent
    files = [Path(inspect.getfile(each)).resolve() for each in recipes]
    return [file.parent for file in files if own not in file.parents]


def _facts(code: Sequence[str]) -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "working folder": str(Path.cwd()),
        "sys.path": list(sys.path),
        "threads": {each.ident for each in threading.enumerate()},
        "processes": _children(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "what is done at the end": atexit._ncallbacks(),
        "loggers": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "interpreter": (
            gc.isenabled(),
            sys.getrecursionlimit(),
            sys.excepthook,
            sys.gettrace(),
            socket.getdefaulttimeout(),
            locale.setlocale(locale.LC_ALL),
        ),
        "numpy": np.geterr(),
        "torch": _torch_flags(),
        "matplotlib": _drawing(),
        "code": [_module(each) for each in _modules(code)],
    }


def _torch_random() -> Any:
    return sys.modules["torch"].get_rng_state() if "torch" in sys.modules else None


def _torch_flags() -> list[str] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    found = [str(getattr(torch, name)()) for name in _FLAGS]
    for name, flags in _BACKENDS.items():
        found += [str(getattr(getattr(torch.backends, name), flag)) for flag in flags]
    compiled = sys.modules.get("torch._dynamo.utils")
    found.append(str(0 if compiled is None else sum(map(len, compiled.counters.values()))))
    return found


def _drawing() -> dict[str, Any] | None:
    drawing = sys.modules.get("matplotlib")
    return None if drawing is None else {name: str(each) for name, each in drawing.rcParams.items()}


def _on_device() -> bool:
    """Whether tensors are still on a CUDA device; what is free there is given back."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    gc.collect()
    torch.cuda.empty_cache()
    return any(torch.cuda.memory_reserved(each) for each in range(torch.cuda.device_count()))


def _children() -> list[str]:
    tasks = Path("/proc/self/task")
    return sorted(pid for file in tasks.glob("*/children") for pid in file.read_text().split())


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _open_files() -> int:
    files = Path("/proc/self/fd")
    return sum(1 for _ in files.iterdir()) if files.exists() else 0


def _modules(code: Sequence[str]) -> list[types.ModuleType]:
    if not code:
        return []
    places = tuple(f"{each}{os.sep}" for each in code)
    own = [each for each in list(sys.modules.values()) if str(getattr(each, "__file__", "")).startswith(places)]
    return sorted(own, key=lambda each: each.__name__)


def _module(module: types.ModuleType) -> dict[str, Any]:
    """What a module holds: rebound names show, and so do changed values of classes and of whatever can be pickled."""
    found: dict[str, Any] = {"module": module.__name__}
    for name, value in list(vars(module).items()):
        if not name.startswith("__"):
            found[name] = _token(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                found |= {f"{name}.{n}": _token(v) for n, v in list(vars(value).items()) if not n.startswith("__")}
    return found


def _token(value: Any) -> Any:
    told: Any = value
    if isinstance(value, types.FunctionType):
        told = (value.__defaults__, value.__kwdefaults__, value.__dict__)
    elif isinstance(value, (types.ModuleType, type)):
        return id(value)
    with contextlib.suppress(Exception):  # of whatever cannot be pickled
        return id(value), hashlib.sha256(pickle.dumps(told)).digest()
    return id(value)
