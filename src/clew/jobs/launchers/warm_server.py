"""The far side of `clew.jobs.launchers.warm`: a server that has torch loaded, keepers, and those who do the jobs.

The server forks a keeper for a job, the keeper a worker; the keeper lives in a session of its own, passes signals on,
and writes down the exit code, however the worker ends. A worker that ended a job well, and left nothing behind
(`clew.jobs.leak_check`), may do the next one that is begun alike: its keeper says so to the server before it writes the
code down. Where the server is gone nobody can ask any more: who is idle leaves at once, who is busy after its job.
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

from clew.core.files import write_text
from clew.errors import ClewError
from clew.jobs import worker_process
from clew.jobs.launchers.local import bind, exit_file, pass_on
from clew.jobs.leak_check import LeakCheck, code_of
from clew.recipe import find
from clew.runs.environment import versions

# torch._dynamo: building an optimiser imports it, which takes two seconds
_PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "clew.training.loop",
    "clew.training.api",
    "clew.training.packs.pack",
    "clew.settings",
    "clew.cli.runs.follow",
    "numpy.ctypeslib",
    "numpy.ma",
    "pydantic.type_adapter",
    "torch.utils.serialization.config",
)
_MAIN = "clew.cli.main"
"""The command line, by name: it stands above this."""
_DATASETS = "clew.data.dataset.manifest"
"""By name: it stands beside this."""
_FOREIGN = ("PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID")
_MOST = 1 << 12
"""File descriptors that a process may have inherited."""
_SPLITS = 2
"""Splits of a dataset that a worker keeps for its next job: one to learn from, one to validate on."""
Request = dict[str, Any]


@dataclass
class _Kept:
    """A keeper whose worker may do another job."""

    pid: int
    alike: list[Any]
    idle: bool = False


class _Server:
    def __init__(self, bell: int, code: list[Path]) -> None:
        self._bell, self._code = bell, code
        self._kept: dict[Connection, _Kept] = {}

    def begin(self, request: Request) -> int:
        """The process number of the keeper of a job; 0 for the request that idle ones go home."""
        self._listen()
        if not request:
            for link in [link for link, each in self._kept.items() if each.idle]:
                self._drop(link)
            return 0
        alike = [request[name] for name in ("cores", "environment", "cwd", "again")]
        for link, each in list(self._kept.items()):
            if each.idle and each.alike == alike:
                try:
                    link.send(request)
                except OSError:
                    self._drop(link)
                else:
                    each.idle = False
                    return each.pid
        return self._fork(request, alike)

    def _fork(self, request: Request, alike: list[Any]) -> int:
        here, there = Pipe()
        pid = os.fork()
        if pid == 0:
            _keep(request, there, self._bell, self._code)
        there.close()
        self._kept[here] = _Kept(pid, alike)
        return pid

    def _listen(self) -> None:
        """Who says that it is idle, and who is gone."""
        for link in wait(list(self._kept), 0):
            assert isinstance(link, Connection)
            try:
                self._kept[link].idle = bool(link.recv())
            except (EOFError, OSError):
                self._drop(link)

    def _drop(self, link: Connection) -> None:
        del self._kept[link]
        link.close()


def main() -> None:
    """A line in, a keeper's process number out. It ends when nobody can ask any more."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in _PRELOAD:
        importlib.import_module(name)
    importlib.import_module(_MAIN).command()
    versions()  # remembered
    recipes = []
    for name in sys.argv[2:]:
        with contextlib.suppress(ClewError):  # a job that needs it will say so
            recipes.append(find(name))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    gc.collect()
    gc.freeze()  # what is never looked at again need not be copied for every job
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = _Server(int(sys.argv[1]), code_of(recipes))
    for line in sys.stdin:
        print(server.begin(json.loads(line)), file=answers, flush=True)


def _keep(request: Request, server: Connection, bell: int, code: list[Path]) -> NoReturn:
    """The keeper: hand jobs to a worker, wait for each, write down its exit code."""
    try:
        os.setsid()
        _close_all_but(bell, server.fileno())  # what the server holds is not the job's
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        link, child = _hire(code, bell, server)
        pass_on(child)
        while _one(request, server, link, child, bell):
            if link in wait([server, link]):
                break  # it was ended while it was idle
            request = server.recv()
        link.close()
        os.waitpid(child, 0)
    except EOFError:  # nobody can ask any more
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _one(request: Request, server: Connection, link: Connection, child: int, bell: int) -> bool:
    """A job, to its exit code on disk; whether the worker can do another."""
    folder = Path(request["folder"])
    _print_to(folder)
    link.send(request)
    again = False
    try:
        status = int(link.recv())
        again = True
        with contextlib.suppress(OSError):  # the server is gone: the next look at it says so
            server.send(True)
    except (EOFError, ConnectionError):
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write_text(exit_file(folder), str(status))
    with contextlib.suppress(OSError):
        os.write(bell, b".")
    if not again:
        os._exit(0)
    return again


def _hire(code: list[Path], bell: int, server: Connection) -> tuple[Connection, int]:
    here, there = Pipe()
    child = os.fork()
    if child == 0:
        here.close()
        server.close()
        os.close(bell)
        _work(there, code)
    there.close()
    return here, child


def _work(keeper: Connection, code: list[Path]) -> NoReturn:
    """The worker: one job, and others as long as nothing is left behind."""
    status: Any = 1
    try:
        residue: LeakCheck | None = None
        while True:
            request = keeper.recv()
            _print_to(Path(request["folder"]))
            if residue is None:
                _settle(request)
                importlib.import_module(_DATASETS).cache_splits(_SPLITS if request["again"] else 0)
                residue = LeakCheck(code)
            residue.renew()
            worker_process.begin()
            status = _run(request["arguments"])
            left = residue.found() if status == 0 and request["again"] else "it ended"
            if left:
                break
            keeper.send(status)
    except EOFError:  # not needed any more
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def _settle(request: Request) -> None:
    """What all jobs of a worker have alike."""
    bind(request["cores"])
    for name in [each for each in os.environ if each.startswith(_FOREIGN)]:
        del os.environ[name]  # of the allocation around us: this is a job of its own
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: list[str]) -> int:
    """A command, to its exit code."""
    sys.argv = ["clew", *arguments]
    try:
        importlib.import_module(_MAIN).run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _print_to(folder: Path) -> None:
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    for each in (log, nothing):
        if each > 2:
            os.close(each)


def _close_all_but(*kept: int) -> None:
    first = 3
    for each in (*sorted(kept), _MOST):
        os.closerange(first, each)
        first = each + 1


if __name__ == "__main__":
    main()
