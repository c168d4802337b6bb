"""The server that processes are forked from, and what a forked process does before its own code runs.

Every process has a server of its own, which is its child: so the processes that it starts are in its session, and
among its descendants. The server of the test process loads the modules. A forked process forks its server before
anything else, while it is still as clean as the one it came from.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any

from tests.warm_processes import client, request

_PRELOAD = (
    "torch torch._dynamo torch.distributed torch.utils.data h5py awkward uproot pyarrow.csv scipy.stats"
    " optuna cmaes httpx fastapi uvicorn sqlalchemy alembic.command jinja2 zmq matplotlib.figure mplhep"
    " rich.live rich.progress psutil safetensors.torch blosc2 cloudpickle clew.cli.main clew.settings"
    " clew.training.loop clew.inference clew.tuning clew.server.service clew.jobs.supervisor"
    " clew.jobs.agent clew.data.prepare.worker clew.data.table.hdf5 clew.runs.push_process"
    " clew.recipes.tracking clew.recipes.tagger clew.client clew.cli.run_task"
)


def main() -> None:
    """The first server: `python -c ... ROOT REQUESTS ENDS`, with the numbers of two descriptors."""
    sys.path.remove(sys.argv[1])
    numbers = [int(word) for word in sys.argv[2:4]]
    for name in _PRELOAD.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("clew.cli.run_task").preload()
    del os.environ["CLEW_PADDING"]
    request.START_ENVIRONMENT.pop("CLEW_PADDING")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    _run(_serve(*(socket.socket(fileno=number) for number in numbers)))


def _serve(requests: socket.socket, ends: socket.socket) -> dict[str, Any]:
    """Fork processes until the parent is gone. Returns only in a process that was forked: what it shall run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the processes of the group that do the work
    parent = os.pidfd_open(os.getppid())
    children: dict[int, int] = {}
    """Numbers of processes by the descriptors that become readable when they end."""
    while True:
        ready: list[Any] = select.select([requests.fileno(), parent, *children], [], [])[0]
        for descriptor in [each for each in ready if each in children]:
            pid = children.pop(descriptor)
            os.close(descriptor)
            with contextlib.suppress(OSError):
                ends.send(json.dumps([pid, os.waitpid(pid, 0)[1]]).encode())
        if parent in ready:
            os._exit(0)
        if requests.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 64)
            if not message:
                os._exit(0)
            pid = _fork(requests, json.loads(message), descriptors)
            if pid == 0:
                for each in (parent, *children):
                    os.close(each)
                ends.close()
                return _become(json.loads(message), descriptors)
            if pid > 0:
                children[os.pidfd_open(pid)] = pid
            for each in descriptors:
                os.close(each)


def _fork(requests: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
    """Fork and answer with the process's number; -1 for a folder that cannot be entered. 0 in the process."""
    if not os.access(request["folder"], os.X_OK) or not Path(request["folder"]).is_dir():
        message = {"errno": 2, "message": "No such file or directory", "file": request["folder"]}
        requests.send(json.dumps(message).encode())
        return -1
    pid = os.fork()
    if pid:
        requests.send(json.dumps({"pid": pid}).encode())
    else:
        requests.close()
    return pid


def _become(wanted: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Set up what the kernel knows of a process: session, limits, descriptors. Fork its server on the way."""
    if wanted["new_session"]:
        os.setsid()
    elif wanted["process_group"] >= 0:
        os.setpgid(0, wanted["process_group"])
    os.umask(wanted["umask"])
    os.sched_setaffinity(0, wanted["cores"])
    server = None
    if request.starts_processes(wanted["arguments"]):
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        our_ends, their_ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            for each in descriptors:
                os.close(each)
            parent_end.close()
            our_ends.close()
            return _serve(child_end, their_ends)
        child_end.close()
        their_ends.close()
        taken = wanted["descriptors"]
        server = client.Server(_moved(parent_end, taken), _moved(our_ends, taken))
    _place(descriptors, wanted["descriptors"])
    for name, limits in wanted["limits"].items():
        resource.setrlimit(getattr(resource, name), limits)
    client.install_with(server)
    return wanted


def _moved(link: socket.socket, taken: list[int]) -> socket.socket:
    """The same connection on a descriptor that the process does not need for something else."""
    number = fcntl.fcntl(link.fileno(), fcntl.F_DUPFD_CLOEXEC, max([*taken, 60]) + 1)
    link.close()
    return socket.socket(fileno=number)


def _place(descriptors: list[int], numbers: list[int]) -> None:
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, max([*numbers, 60]) + 10) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, number in zip(high, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)


def _run(wanted: dict[str, Any]) -> None:
    """Set up what Python knows of a process, run its code, and end as Python does."""
    words: list[str] = wanted["arguments"]
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    _show_environment(wanted["environment"])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignored = number in wanted["ignored_signals"] or number == signal.SIGPIPE
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in wanted["ignored_signals"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _open_streams()
    _set_up_libraries()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    kind, rest = request.split_command(words)
    first = {"-c": "", "-m": wanted["folder"]}.get(kind, str(Path(rest[0]).parent.absolute()))
    if not request.is_safe_path(words):
        sys.path.insert(0, first)
    sys.orig_argv = list(words)
    sys.argv = [{"-c": "-c"}.get(kind, rest[0]), *rest[1:]]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update(__builtins__=__builtins__, __annotations__={})
    if kind == "-c":
        code = compile(rest[0], "<string>", "exec")
    elif kind in ("script", "file"):
        module.__dict__["__file__"] = rest[0]
        code = compile(Path(rest[0]).read_text(), rest[0], "exec")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the module is loaded already
            _, spec, code = runpy._get_module_details(rest[0])  # type: ignore[attr-defined]
        sys.argv[0] = spec.origin
        module.__dict__.update(__file__=spec.origin, __spec__=spec, __package__=spec.parent, __loader__=spec.loader)
    _exit(_result(code, module))


def _result(code: types.CodeType, module: types.ModuleType) -> int:
    """Run the code; its exit code. -2 for an interrupt, which ends the process by a signal."""
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit(code: int) -> None:
    """End without taking all modules apart, which takes most of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as Python does
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _open_streams() -> None:
    """Standard streams as Python opens them at its start."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "r" if number == 0 else "w"
        errors = "backslashreplace" if number == 2 else "strict"
        unbuffered = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
        raw = io.FileIO(number, mode, closefd=False)
        buffer: Any = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
        lines = number == 2 or (number == 1 and os.isatty(1))
        stream = io.TextIOWrapper(buffer, "utf-8", errors=errors, line_buffering=lines, write_through=unbuffered)
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _set_up_libraries() -> None:
    """What libraries do when they are loaded: threads of torch, the width of the terminal, random numbers."""
    sys.modules["numpy.random"].seed()
    console = sys.modules["clew.cli.options"].console
    console.__init__(highlight=console._highlight, soft_wrap=console.soft_wrap)  # it reads the width and the colours
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))


def _show_environment(environment: dict[str, str]) -> None:
    """Write the environment to where `/proc/PID/environ` shows it: clew finds the processes of a job by a variable."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start, env_end
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block[: end - start], min(len(block), end - start))


if __name__ == "__main__":
    main()
