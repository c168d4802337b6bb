"""The server side of `clew.jobs.launchers.warm`: a server that has torch loaded, supervisors, and workers.

The server forks a supervisor for a job, and the supervisor forks a worker. The supervisor has a session of its own. It
forwards signals and records the end, however the worker ends; it cannot enforce limits, because it runs jobs one after
another. A worker whose job succeeded and left nothing behind (`clew.jobs.leak_check`) may run the next job that was
requested alike: its supervisor reports that to the server before it records the end. When the server is gone no request
can come any more: idle processes exit at once, busy ones after their job.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from clew.core.disk_errors import quiet_disk_errors
from clew.errors import ClewError
from clew.jobs import worker_process
from clew.jobs.leak_check import LeakCheck, recipe_folders
from clew.jobs.supervisor import JobEnd, bind_to_cores, forward_signals, log_file, write_end
from clew.jobs.task import parse_task
from clew.recipe import find
from clew.runs.environment import versions

_RUN_TASK = "clew.cli.run_task"
"""The module that runs tasks. It is given by name because the command line stands above this package."""
_DATASETS = "clew.data.dataset.manifest"
_LAUNCHER_VARIABLES = (
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "OMPI_COMM_WORLD_",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
    "SLURM_LOCALID",
)
"""Variables of the allocation around the server. A job must not take itself for a rank of it."""
_MAX_DESCRIPTORS = 1 << 12
"""File descriptors that a process may have inherited."""
_CACHED_SPLITS = 2
"""Splits of a dataset that a worker keeps for its next job: one for training, one for validation."""
Request = dict[str, Any]


@dataclass
class _Supervisor:
    """A supervisor whose worker may run another job."""

    pid: int
    conditions: list[Any]
    """Cores, environment and folder: another job must have the same."""
    idle: bool = False


class _WarmServer:
    def __init__(self, bell: int, recipe_code: list[Path]) -> None:
        self._bell, self._recipe_code = bell, recipe_code
        self._supervisors: dict[Connection, _Supervisor] = {}

    def start(self, request: Request) -> int:
        """The process number of a job's supervisor; 0 for the request that idle processes exit."""
        self._receive_reports()
        if not request:
            for link in [link for link, each in self._supervisors.items() if each.idle]:
                self._drop(link)
            return 0
        conditions = [request[name] for name in ("cores", "environment", "cwd", "again")]
        for link, each in list(self._supervisors.items()):
            if each.idle and each.conditions == conditions:
                try:
                    link.send(request)
                except OSError:
                    self._drop(link)
                else:
                    each.idle = False
                    return each.pid
        return self._fork(request, conditions)

    def _fork(self, request: Request, conditions: list[Any]) -> int:
        server_end, supervisor_end = Pipe()
        pid = os.fork()
        if pid == 0:
            _supervise(request, supervisor_end, self._bell, self._recipe_code)
        supervisor_end.close()
        self._supervisors[server_end] = _Supervisor(pid, conditions)
        return pid

    def _receive_reports(self) -> None:
        """Note which supervisors are idle and which have exited."""
        for link in wait(list(self._supervisors), 0):
            assert isinstance(link, Connection)
            try:
                self._supervisors[link].idle = bool(link.recv())
            except (EOFError, OSError):
                self._drop(link)

    def _drop(self, link: Connection) -> None:
        del self._supervisors[link]
        link.close()


def main() -> None:
    """Read one request per line and answer with a supervisor's process number. Ends when no request can come."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    importlib.import_module(_RUN_TASK).preload()
    versions()  # cached
    recipes = []
    for name in sys.argv[2:]:
        with contextlib.suppress(ClewError):  # a job that needs it reports the error
            recipes.append(find(name))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for supervisors
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that sends requests
    gc.collect()
    gc.freeze()  # pages that the collector does not touch need not be copied for every job
    answers = os.dup(1)
    os.dup2(2, 1)
    server = _WarmServer(int(sys.argv[1]), recipe_folders(recipes))
    with contextlib.suppress(BrokenPipeError):  # the process that sends requests was killed
        for line in sys.stdin:
            os.write(answers, f"{server.start(json.loads(line))}\n".encode())


def _supervise(request: Request, server: Connection, bell: int, recipe_code: list[Path]) -> NoReturn:
    """The supervisor: give jobs to a worker, wait for each, record its end."""
    try:
        os.setsid()
        _close_descriptors_except(bell, server.fileno())  # what the server holds is not the job's
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        link, child = _fork_worker(recipe_code, bell, server)
        forward_signals(child)
        while _run_job(request, server, link, child, bell):
            if link in wait([server, link]):
                break  # the worker was killed while it was idle
            request = server.recv()
        link.close()
        os.waitpid(child, 0)
    except EOFError:  # no request can come any more
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _run_job(request: Request, server: Connection, link: Connection, child: int, bell: int) -> bool:
    """Have the worker run a job and record its end; whether the worker can run another."""
    folder = Path(request["folder"])
    _redirect_output(folder)
    link.send(request)
    reusable = False
    try:
        code = int(link.recv())
        reusable = True
        with contextlib.suppress(OSError):  # the server is gone: the next look at it shows that
            server.send(True)
    except (EOFError, ConnectionError):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write_end(folder, JobEnd(code))
    with contextlib.suppress(OSError):
        os.write(bell, b".")
    if not reusable:
        os._exit(0)
    return reusable


def _fork_worker(recipe_code: list[Path], bell: int, server: Connection) -> tuple[Connection, int]:
    supervisor_end, worker_end = Pipe()
    child = os.fork()
    if child == 0:
        supervisor_end.close()
        server.close()
        os.close(bell)
        _work(worker_end, recipe_code)
    worker_end.close()
    return supervisor_end, child


def _work(supervisor: Connection, recipe_code: list[Path]) -> NoReturn:
    """The worker: run one job, and more as long as nothing is left behind."""
    code: Any = 1
    try:
        check: LeakCheck | None = None
        while True:
            request = supervisor.recv()
            _redirect_output(Path(request["folder"]))
            if check is None:
                _set_up_worker(request)
                importlib.import_module(_DATASETS).cache_splits(_CACHED_SPLITS if request["again"] else 0)
                check = LeakCheck(recipe_code)
            check.reset_random_numbers()
            worker_process.start_job()
            code = _run_task(request["task"])
            if code != 0 or not request["again"] or check.leak():
                break
            supervisor.send(code)
    except EOFError:  # not needed any more
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _set_up_worker(request: Request) -> None:
    """Apply what all jobs of a worker have in common."""
    bind_to_cores(request["cores"])
    for name in [name for name in os.environ if name.startswith(_LAUNCHER_VARIABLES)]:
        del os.environ[name]
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quiet_disk_errors()


def _run_task(text: str) -> int:
    """Run a task; returns its exit code."""
    try:
        importlib.import_module(_RUN_TASK).run(parse_task(text))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _redirect_output(folder: Path) -> None:
    log = os.open(log_file(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    for descriptor in (log, nothing):
        if descriptor > 2:
            os.close(descriptor)


def _close_descriptors_except(*open_ones: int) -> None:
    first = 3
    for descriptor in (*sorted(open_ones), _MAX_DESCRIPTORS):
        os.closerange(first, descriptor)
        first = descriptor + 1


if __name__ == "__main__":
    main()
