"""What a process that starts another one sends to the server, and which commands can be forked."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCRIPT = str(Path(sys.executable).parent / "clew")
ENVIRONMENT_BYTES = 1 << 16
"""Space for the environment as other processes see it."""
_LIMITS = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
_READ_AT_IMPORT = (
    "PYTHON OMP_ MKL_ OPENBLAS_ KMP_ GOMP_ NUMBA_ TORCH TRITON_ CUDA_ KERAS_ JAX_ LD_ MPL TERM NO_COLOR FORCE_COLOR"
    " TTY_ LANG LC_ TZ HDF5_ BLOSC_"
)
"""Prefixes of variables that an interpreter or a module reads once."""
_SET_LATER = (
    *("OMP_WAIT_POLICY", "TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS"),
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
)
"""Variables that training and scikit-learn set for all processes to come, and one that the server applies itself."""
_OURS, _OUR_MODULES = ("clew", "multiprocessing.forkserver"), ("tests.", "pytest")
"""Code or a script with one of these texts, and modules with one of these names, are forked."""
_NOT_FORKED = ("sys.modules", "importtime", "resource_tracker")
"""Code with one of these texts depends on what is loaded, or is small."""
_WITHOUT_SERVER = ("serve", "supervisor")
"""Commands whose own processes are started as usual: tests count the children of the first."""


@dataclass(frozen=True)
class Request:
    """One process to fork."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    umask: int
    limits: dict[str, tuple[int, int]]
    cores: list[int]
    ignored_signals: list[int]
    new_session: bool
    process_group: int
    descriptors: list[int]
    """The numbers that the descriptors which come with the request have in the process."""


def refusal(arguments: Sequence[Any], environment: Mapping[str, str], folder: str | None = None) -> str:
    """Why a command is started as usual; empty for Python code of clew in an environment like this one."""
    words = [os.fsdecode(word) for word in arguments]
    kind, rest = split_command(words)
    text = rest[0] if rest else ""
    if kind == "file":
        text = (Path(folder or ".") / text).read_text(errors="ignore")
    ours = kind == "script" or any(part in text for part in _OURS) or (kind == "-m" and text.startswith(_OUR_MODULES))
    if not kind or not ours:
        return f"not clew's: {' '.join(words)[:100]}"
    if special := [part for part in _NOT_FORKED if part in text]:
        return f"code with {special[0]}"
    if "CLEW_AGENT_PARENT" in environment:
        return "a process of an agent"
    here, there = _import_variables(environment), _import_variables(START_ENVIRONMENT)
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return f"another value of {', '.join(names)}" if names else ""


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The kind of a command (`script`, `file`, `-c`, `-m` or nothing) and the words from its code or module on."""
    rest = list(words)
    if rest[:1] == [sys.executable]:
        del rest[0]
        while rest[:1] in (["-P"], ["-B"]):
            del rest[0]
        if rest[:1] in (["-c"], ["-m"]) and len(rest) > 1:
            return rest[0], rest[1:]
        if rest and rest[0].endswith(".py"):
            return "file", rest
    return ("script", rest) if rest[:1] == [SCRIPT] else ("", [])


def is_safe_path(words: Sequence[str]) -> bool:
    """Whether the working folder is no place to import from."""
    return "-P" in words[1:3]


def starts_processes(words: Sequence[str]) -> bool:
    """Whether processes that the command starts are forked, too."""
    return not any(part in word for word in words[:5] for part in _WITHOUT_SERVER)


def describe(
    arguments: Sequence[Any],
    environment: Mapping[str, str],
    *,
    folder: str | None,
    new_session: bool,
    process_group: int,
    descriptors: Sequence[int],
) -> dict[str, Any]:
    """A request with the properties that a process inherits from this one."""
    umask = os.umask(0)
    os.umask(umask)
    ignored = [
        number
        for number in signal.valid_signals()
        if number != signal.SIGPIPE and signal.getsignal(number) is signal.SIG_IGN
    ]
    request = Request(
        arguments=[os.fsdecode(word) for word in arguments],
        environment={os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
        folder=str(Path.cwd() if folder is None else Path(os.fsdecode(folder)).absolute()),
        umask=umask,
        limits={name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        cores=sorted(os.sched_getaffinity(0)),
        ignored_signals=[int(number) for number in ignored],
        new_session=new_session,
        process_group=process_group,
        descriptors=list(descriptors),
    )
    return asdict(request)


def _import_variables(environment: Mapping[str, str]) -> dict[str, str]:
    prefixes = tuple(_READ_AT_IMPORT.split())
    values = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return {name: value for name, value in values.items() if name.startswith(prefixes) and name not in _SET_LATER}


START_ENVIRONMENT = dict(os.environ)
"""The environment in which this process, or the one that it was forked from, was started."""
