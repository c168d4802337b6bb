"""Commands on this machine that begin at once: forked from a server process that has torch loaded already."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.errors import ClewError, RunError
from clew.files import write_text
from clew.launch.detached import Detached, bind, exit_file, named, pass_on, visible
from clew.launch.launcher import Job, Room
from clew.ledger.environment import versions
from clew.recipe import find

# torch._dynamo: building an optimiser imports it, which takes two seconds
_PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "clew.train.loop",
    "clew.train.api",
    "clew.train.packed.pack",
    "clew.spec",
    "clew.cli.follow",
    "numpy.ctypeslib",
    "numpy.ma",
    "pydantic.type_adapter",
    "torch.utils.serialization.config",
)
_MAIN = "clew.cli.main"
"""The command line, by name: it stands above this."""
_FOREIGN = ("PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID")
_servers: list[subprocess.Popen[bytes]] = []
"""At most one: it serves this process, and ends with it."""


class Warm(Detached):
    """As `Detached`, but a job starts in milliseconds. It outlives the server, and whoever asked for it."""

    def start(self, arguments: Sequence[str], *, folder: Path, room: Room | None = None) -> Job:
        here = room or Room()
        return fork(arguments, folder=folder, cores=here.cores, environment=visible(here))


def fork(arguments: Sequence[str], *, folder: Path, cores: Sequence[int], environment: Mapping[str, str]) -> Job:
    """Begin `clew ARGUMENTS` on some cores, with more in its environment.

    Raises:
        RunError: it cannot be started.
    """
    request = {
        "arguments": list(arguments),
        "folder": str(folder.absolute()),
        "cwd": str(Path.cwd()),
        "cores": list(cores),
        "environment": dict(environment),
    }
    try:
        folder.mkdir(parents=True)
        pid = _ask(request)
    except OSError as error:
        raise RunError(f"{folder}: cannot start a job there ({error})") from error
    return Job("warm", named(pid), str(folder))


def _ask(request: dict[str, Any]) -> int:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request).encode() + b"\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise OSError("the process that starts jobs has died")
    return int(answer)


def ready(*recipes: str) -> None:
    """Have the server loaded before the first job needs it, with recipes (their names or files); returns at once."""
    _server(*recipes)


def _server(*recipes: str) -> subprocess.Popen[bytes]:
    while _servers and _servers[0].poll() is not None:
        _servers.pop()
    if not _servers:
        _servers.append(
            subprocess.Popen([sys.executable, "-m", __name__, *recipes], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        atexit.register(_dismiss)
    return _servers[0]


def _dismiss() -> None:
    for server in _servers:
        for pipe in (server.stdin, server.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        server.kill()  # jobs do not need it, and it may still be loading
        server.wait()
    _servers.clear()


def main() -> None:
    """The server: a line in, a keeper's process number out. It ends when nobody can ask any more."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in _PRELOAD:
        importlib.import_module(name)
    importlib.import_module(_MAIN).command()
    versions()  # remembered
    for name in sys.argv[1:]:
        with contextlib.suppress(ClewError):  # a job that needs it will say so
            find(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    gc.collect()
    gc.freeze()  # what is never looked at again need not be copied for every job
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _keep(json.loads(line))
        print(pid, file=answers, flush=True)


def _keep(request: dict[str, Any]) -> None:
    """The keeper: fork the job, wait for it, write down its exit code. Never returns."""
    code = 1
    try:
        os.setsid()
        os.closerange(3, 256)  # what the server holds is not the job's
        folder = Path(request["folder"])
        log, nothing = (
            os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            os.open(os.devnull, 0),
        )
        for old, new in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(old, new)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        child = os.fork()
        if child == 0:
            _run(request)
        pass_on(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        write_text(exit_file(folder), str(code))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0 if code == 0 else 1)


def _run(request: dict[str, Any]) -> None:
    """The job itself. Never returns."""
    code: Any = 1
    try:
        bind(request["cores"])
        for name in [each for each in os.environ if each.startswith(_FOREIGN)]:
            del os.environ[name]  # of the allocation around us: this is a job of its own
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        sys.argv = ["clew", *request["arguments"]]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        importlib.import_module(_MAIN).run()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
