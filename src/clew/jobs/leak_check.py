"""What a job leaves behind in its process. A process whose state has changed cannot run another job."""

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
"""Open files by which it may grow."""
_ARRAYS: np.random.RandomState = np.random.mtrand._rand
"""The generator of `numpy.random.rand` and similar functions."""
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
"""Functions of torch that return its settings."""
_BACKENDS = {"cudnn": ("enabled", "benchmark", "deterministic", "allow_tf32"), "mkldnn": ("enabled",)}


class LeakCheck:
    """The state of a process before its first job, to be compared with its state after a job.

    Random number generators can be reset; any other change is reported.
    """

    def __init__(self, code: Sequence[Path] = ()) -> None:
        """`code`: folders whose modules must not change either (see `recipe_folders`)."""
        self._code = [str(each) for each in code]
        self._random = random.getstate(), _ARRAYS.get_state(), _torch_random()
        self._state = _state(self._code)
        self._size: tuple[int, int] | None = None

    def reset_random_numbers(self) -> None:
        """Reset the random number generators to their states before the first job."""
        python, arrays, torch = self._random
        random.setstate(python)
        _ARRAYS.set_state(arrays)
        if torch is not None:
            sys.modules["torch"].set_rng_state(torch)

    def leak(self) -> str:
        """What a job has left behind, in a word or two; '' if nothing."""
        state = _state(self._code)
        for name, before in self._state.items():
            if before is not None and state[name] != before:
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
    """The folders of the code of recipes that do not belong to clew."""
    package = Path(clew.__file__).parent
    files = [Path(inspect.getfile(each)).resolve() for each in recipes]
    return [file.parent for file in files if package not in file.parents]


def _state(code: Sequence[str]) -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "working folder": str(Path.cwd()),
        "sys.path": list(sys.path),
        "threads": {each.ident for each in threading.enumerate()},
        "processes": _children(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "exit functions": atexit._ncallbacks(),
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
    values = [str(getattr(torch, name)()) for name in _FLAGS]
    for name, flags in _BACKENDS.items():
        values += [str(getattr(getattr(torch.backends, name), flag)) for flag in flags]
    compiled = sys.modules.get("torch._dynamo.utils")
    values.append(str(0 if compiled is None else sum(map(len, compiled.counters.values()))))
    return values


def _drawing() -> dict[str, Any] | None:
    drawing = sys.modules.get("matplotlib")
    return None if drawing is None else {name: str(each) for name, each in drawing.rcParams.items()}


def _on_device() -> bool:
    """Whether tensors are still on a CUDA device; free memory is returned to it."""
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
    modules = [each for each in list(sys.modules.values()) if str(getattr(each, "__file__", "")).startswith(places)]
    return sorted(modules, key=lambda each: each.__name__)


def _module(module: types.ModuleType) -> dict[str, Any]:
    """The contents of a module. It differs for names bound again and for changed values that can be pickled."""
    contents: dict[str, Any] = {"module": module.__name__}
    for name, value in list(vars(module).items()):
        if not name.startswith("__"):
            contents[name] = _token(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                contents |= {f"{name}.{n}": _token(v) for n, v in list(vars(value).items()) if not n.startswith("__")}
    return contents


def _token(value: Any) -> Any:
    content: Any = value
    if isinstance(value, types.FunctionType):
        content = (value.__defaults__, value.__kwdefaults__, value.__dict__)
    elif isinstance(value, (types.ModuleType, type)):
        return id(value)
    with contextlib.suppress(Exception):  # it cannot be pickled
        return id(value), hashlib.sha256(pickle.dumps(content)).digest()
    return id(value)
